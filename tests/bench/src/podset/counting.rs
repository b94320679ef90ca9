//! What the order of creations and deletions in the audit log tells.

use jiff::Timestamp;
use quintet_localcluster::audit::{Author, Request};

/// By how many pods an author's had become more than `wanted` at the worst moment, if `before` of them counted before;
/// below 0 where they never were as many. A pod counts from the answer to its creation until the answer to the request
/// that it go, and of two answers at the same moment the creation is taken first.
pub fn most_above(writes: &[Request], author: Author, before: usize, wanted: usize) -> i64 {
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
    most - signed(wanted)
}

/// The pods that an author made, told apart by a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeAround {
    /// Answered by then.
    pub before: u64,
    /// Answered later.
    pub after: u64,
    /// Those of them whose request came later too.
    pub sent_after: u64,
}

/// Counts the pods that an author made before and after a moment.
pub fn made_around(writes: &[Request], author: Author, moment: Timestamp) -> MadeAround {
    let mut made = MadeAround::default();
    for write in writes.iter().filter(|write| write.author == author && write.is_creation_of_pod()) {
        if write.answered <= moment {
            made.before += 1;
        } else {
            made.after += 1;
            made.sent_after += u64::from(write.received > moment);
        }
    }
    made
}

/// The last request of this bench that scaled something.
pub fn last_scaling(writes: &[Request]) -> Option<&Request> {
    let is_scaling = |write: &&Request| write.author == Author::Bench && write.resource.ends_with("/scale");
    writes.iter().filter(is_scaling).max_by_key(|write| write.answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + millisecond).unwrap()
    }

    fn write(author: Author, verb: &str, resource: &str, code: u16, received: i64, answered: i64) -> Request {
        Request {
            author,
            namespace: "n".to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            name: String::new(),
            code,
            received: at(received),
            answered: at(answered),
        }
    }

    fn ours(verb: &str, code: u16, answered: i64) -> Request {
        write(Author::Quintet, verb, "pods", code, answered - 2, answered)
    }

    #[test]
    fn the_worst_moment_is_found_in_the_order_of_answers() {
        let writes = [
            ours("create", 201, 40),
            ours("create", 201, 10),
            ours("delete", 200, 20),
            ours("create", 201, 20),
            ours("create", 409, 21),
            ours("delete", 404, 22),
            write(Author::ReplicaSetController, "create", "pods", 201, 0, 20),
            write(Author::Quintet, "patch", "pods", 200, 0, 20),
        ];
        // 1, 2 (before the deletion of the same moment), 1, 2.
        assert_eq!(most_above(&writes, Author::Quintet, 0, 1), 1);
        assert_eq!(most_above(&writes, Author::Quintet, 0, 2), 0);
        assert_eq!(most_above(&writes, Author::Quintet, 5, 2), 5);
        assert_eq!(most_above(&[], Author::Quintet, 0, 3), -3);
    }

    #[test]
    fn creations_are_told_apart_by_a_moment() {
        let writes = [
            ours("create", 201, 10),
            ours("create", 201, 20),
            ours("create", 201, 21),
            ours("create", 201, 30),
            ours("create", 409, 31),
            ours("delete", 200, 32),
        ];
        let made = made_around(&writes, Author::Quintet, at(20));
        assert_eq!(made, MadeAround { before: 2, after: 2, sent_after: 1 });
        assert_eq!(made_around(&writes, Author::ReplicaSetController, at(20)), MadeAround::default());
    }

    #[test]
    fn the_last_scaling_is_this_benchs() {
        let writes = [
            write(Author::Bench, "patch", "podsets/scale", 200, 1, 2),
            write(Author::Bench, "patch", "podsets/scale", 200, 5, 6),
            write(Author::Bench, "patch", "podsets", 200, 7, 8),
            write(Author::Other, "patch", "podsets/scale", 200, 9, 10),
        ];
        assert_eq!(last_scaling(&writes).map(|write| write.answered), Some(at(6)));
        assert_eq!(last_scaling(&writes[2..]), None);
    }
}
