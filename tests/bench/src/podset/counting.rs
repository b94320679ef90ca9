//! Counts pods from the order of creations and deletions in the audit log.

use jiff::Timestamp;
use quintet_localcluster::audit::{Author, Request};

/// The largest surplus of an author's pods over `desired`, with `before` pods at the beginning. Negative if
/// there never were `desired` pods. A pod counts from the answer to its creation to the answer to its
/// deletion. Of two answers at the same moment, the creation counts first.
pub fn most_above(writes: &[Request], author: Author, before: usize, desired: usize) -> i64 {
    let mut changes: Vec<(Timestamp, i64)> = writes
        .iter()
        .filter(|write| write.author == author)
        .filter_map(|write| match write {
            _ if write.is_creation_of_pod() => Some((write.answered, 1)),
            _ if write.is_deletion_of_pod() => Some((write.answered, -1)),
            _ => None,
        })
        .collect();
    changes.sort_by_key(|&(at, change)| (at, -change));
    let signed = |count| i64::try_from(count).unwrap_or(i64::MAX);
    let (mut counted, mut most) = (signed(before), signed(before));
    for (_, change) in changes {
        counted += change;
        most = most.max(counted);
    }
    most - signed(desired)
}

/// An author's creations of pods: answered by `moment`, answered later, and of these received later.
pub fn made_around(writes: &[Request], author: Author, moment: Timestamp) -> (u64, u64, u64) {
    let (mut before, mut after, mut sent_after) = (0, 0, 0);
    for write in writes.iter().filter(|write| write.author == author && write.is_creation_of_pod()) {
        before += u64::from(write.answered <= moment);
        after += u64::from(write.answered > moment);
        sent_after += u64::from(write.received > moment);
    }
    (before, after, sent_after)
}

/// The number of pods that the simulated kubelets have removed.
pub fn removed(writes: &[Request]) -> usize {
    writes.iter().filter(|write| write.author == Author::Other && write.is_deletion_of_pod()).count()
}

/// The last scale request of this bench.
pub fn last_scaling(writes: &[Request]) -> Option<&Request> {
    let is_scaling = |write: &&Request| write.author == Author::Bench && write.resource.ends_with("/scale");
    writes.iter().filter(is_scaling).max_by_key(|write| write.answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: &str, resource: &str, code: u16, millisecond: i64) -> Request {
        let at = |millisecond: i64| Timestamp::from_millisecond(millisecond).unwrap();
        Request {
            author: Author::Quintet,
            namespace: "n".to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
            code,
            message: String::new(),
            received: at(millisecond - 2),
            answered: at(millisecond),
        }
    }

    #[test]
    fn finds_the_largest_surplus_in_order_of_answers() {
        let writes = [
            request("create", "pods", 201, 40),
            request("create", "pods", 201, 10),
            request("delete", "pods", 200, 20),
            request("create", "pods", 201, 20),
            request("create", "pods", 409, 21),
            request("delete", "pods", 404, 22),
            Request { author: Author::ReplicaSetController, ..request("create", "pods", 201, 20) },
            request("patch", "pods", 200, 20),
        ];
        // 1, 2 (before the deletion of the same moment), 1, 2.
        let above = |before, desired| most_above(&writes, Author::Quintet, before, desired);
        assert_eq!([above(0, 1), above(0, 2), above(5, 2)], [1, 0, 5]);
        assert_eq!(most_above(&[], Author::Quintet, 0, 3), -3);
    }

    #[test]
    fn splits_creations_at_the_last_scaling() {
        let scaling = |millisecond| Request {
            author: Author::Bench,
            ..request("patch", "podsets/scale", 200, millisecond)
        };
        let mut writes = vec![scaling(5), scaling(20), request("patch", "podsets/scale", 200, 30)];
        let moment = last_scaling(&writes).unwrap().answered;
        writes.extend([10, 20, 21, 30].map(|millisecond| request("create", "pods", 201, millisecond)));
        writes.extend([request("create", "pods", 409, 31), request("delete", "pods", 200, 32)]);
        assert_eq!(made_around(&writes, Author::Quintet, moment), (2, 2, 1));
    }
}
