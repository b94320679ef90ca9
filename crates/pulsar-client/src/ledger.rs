//! Decides which entries may be acknowledged. Pulsar acknowledges entries: a message, or a batch. An entry is
//! acknowledged once, when all its messages are done, with as few commands as the subscription's type allows.
//!
//! Pure data: entries come in, their messages are done in order, and acknowledgements come out.

use std::collections::{BTreeSet, VecDeque};

use pulsar::message::proto::MessageIdData;
use pulsar::message::proto::command_subscribe::SubType;

/// The position of an entry in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// The segment of the topic's log.
    pub ledger: u64,
    /// The number in it.
    pub entry: u64,
}

impl EntryId {
    /// The position in a message's ID.
    pub fn of(id: &MessageIdData) -> Self {
        Self { ledger: id.ledger_id, entry: id.entry_id }
    }
}

/// Acknowledgements for the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acks {
    /// These entries are done.
    Each(Vec<EntryId>),
    /// This entry and all earlier ones are done.
    UpTo(EntryId),
}

/// The unacknowledged entries of one topic.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Whether entries come in order and only to this consumer, so that one acknowledgement may cover all
    /// earlier ones.
    cumulative: bool,
    /// Received entries in order, with the number of messages that are not done.
    open: VecDeque<(EntryId, u64)>,
    /// Withheld entries, which no later acknowledgement may cover. Empty if each entry is acknowledged
    /// separately.
    withheld: BTreeSet<EntryId>,
    /// The highest received entry.
    last: Option<EntryId>,
    /// Whether an entry came after a later one since `open` was empty.
    out_of_order: bool,
}

impl Ledger {
    /// An empty ledger for this subscription type.
    ///
    /// An Exclusive consumer gets all entries in order. A Failover consumer does not: after a take-over, new
    /// entries may come before those that the other consumer left. A standby also stays subscribed when an
    /// administrator resets the subscription. An acknowledgement that covers earlier entries would lose
    /// these.
    pub fn new(kind: SubType) -> Self {
        Self { cumulative: kind == SubType::Exclusive, ..Self::default() }
    }

    /// Records a received entry with this number of messages.
    pub fn received(&mut self, entry: EntryId, messages: u64) {
        self.withheld.remove(&entry);
        self.out_of_order |= self.last >= Some(entry);
        self.last = self.last.max(Some(entry));
        self.open.push_back((entry, messages));
    }

    /// Whether a received entry is a repetition, whose messages are done, or will be.
    ///
    /// An Exclusive consumer gets entries in order from the first unacknowledged one, and again from there
    /// after each redelivery request. So an entry up to the highest one is a repetition, unless it is
    /// withheld.
    ///
    /// Other types get entries in any order. There an entry is a repetition while its messages are not done.
    pub fn is_repeated(&self, entry: EntryId) -> bool {
        if self.cumulative {
            self.last >= Some(entry) && !self.withheld.contains(&entry)
        } else {
            self.last >= Some(entry) && self.open.iter().any(|(open, _)| *open == entry)
        }
    }

    /// Withholds an entry until it is received again or [`settled`](Self::settled).
    pub fn withhold(&mut self, entry: EntryId) {
        if self.cumulative {
            self.last = self.last.max(Some(entry));
            self.withheld.insert(entry);
        }
    }

    /// Returns the acknowledgement of a withheld entry that was handled elsewhere.
    pub fn settled(&mut self, entry: EntryId) -> Acks {
        self.withheld.remove(&entry);
        Acks::Each(vec![entry])
    }

    /// Records that the next messages are done, in the order in which they were received. Returns the
    /// acknowledgements.
    pub fn done(&mut self, mut messages: u64) -> Option<Acks> {
        let mut complete = Vec::new();
        while let Some((entry, left)) = self.open.front_mut() {
            let now = messages.min(*left);
            *left -= now;
            messages -= now;
            if *left > 0 {
                break;
            }
            complete.push(*entry);
            self.open.pop_front();
        }
        let last = *complete.last()?;
        let stands_for_all = complete.iter().all(|entry| *entry <= last)
            && !(self.out_of_order && self.open.iter().any(|(open, _)| *open <= last));
        self.out_of_order &= !self.open.is_empty();
        if self.cumulative && self.withheld.is_empty() && stands_for_all {
            Some(Acks::UpTo(last))
        } else {
            Some(Acks::Each(complete))
        }
    }

    /// The number of unacknowledged and withheld entries.
    pub fn len(&self) -> usize {
        self.open.len() + self.withheld.len()
    }

    /// Whether the ledger is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn id(entry: u64) -> EntryId {
        EntryId { ledger: 1, entry }
    }

    #[test]
    fn acknowledges_a_batch_after_its_last_message() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 3);
        assert_eq!(ledger.done(2), None);
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(1)])));
        assert!(ledger.is_empty());
    }

    #[test]
    fn one_acknowledgement_covers_all_for_exclusive() {
        let receive = |kind| {
            let mut ledger = Ledger::new(kind);
            (1..4).for_each(|entry| ledger.received(id(entry), 2));
            ledger.done(5)
        };
        assert_eq!(receive(SubType::Exclusive), Some(Acks::UpTo(id(2))));
        assert_eq!(receive(SubType::Failover), Some(Acks::Each(vec![id(1), id(2)])));
    }

    #[test]
    fn an_empty_entry_is_done_after_the_earlier_ones() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 0);
        ledger.received(id(2), 1);
        ledger.received(id(3), 0);
        assert_eq!(ledger.done(0), Some(Acks::Each(vec![id(1)])));
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(2), id(3)])));
    }

    #[test]
    fn no_acknowledgement_covers_a_withheld_entry() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.withhold(id(1));
        ledger.received(id(2), 1);
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(2)])));
        assert_eq!(ledger.settled(id(1)), Acks::Each(vec![id(1)]));
        ledger.received(id(3), 1);
        assert_eq!(ledger.done(1), Some(Acks::UpTo(id(3))));
    }

    #[test]
    fn acknowledges_a_redelivered_entry_separately() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.received(id(5), 1);
        ledger.received(id(3), 1);
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(5), id(3)])));
    }

    #[test]
    fn no_acknowledgement_covers_an_open_redelivered_entry() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.withhold(id(3));
        ledger.received(id(4), 1);
        ledger.received(id(5), 1);
        ledger.received(id(3), 1);
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(4), id(5)])));
        assert_eq!(ledger.done(1), Some(Acks::UpTo(id(3))));
        ledger.received(id(6), 1);
        assert_eq!(ledger.done(1), Some(Acks::UpTo(id(6))));
    }

    #[test]
    fn in_any_order_open_entries_are_repetitions() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 1);
        ledger.received(id(5), 1);
        assert!(ledger.is_repeated(id(1)) && ledger.is_repeated(id(5)));
        assert!(!ledger.is_repeated(id(3)) && !ledger.is_repeated(id(6)));
        // The broker sends an entry again only if it is not acknowledged, so it must be done again.
        ledger.done(1);
        assert!(!ledger.is_repeated(id(1)) && ledger.is_repeated(id(5)));
    }

    #[test]
    fn in_order_all_but_withheld_entries_are_repetitions() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        for entry in [1, 2, 4, 5] {
            ledger.received(id(entry), 1);
        }
        ledger.withhold(id(6));
        assert_eq!(ledger.done(3), Some(Acks::Each(vec![id(1), id(2), id(4)])));
        // All are done or in progress, except the one that did not come because it was acknowledged before.
        assert!((1..=5).all(|entry| ledger.is_repeated(id(entry))));
        assert!(!ledger.is_repeated(id(6)), "it was requested again");
        assert!(!ledger.is_repeated(id(7)));
        // It is readable now. In the next repetition it counts as known.
        ledger.received(id(6), 1);
        assert!(ledger.is_repeated(id(6)));
        assert_eq!(ledger.done(2), Some(Acks::UpTo(id(6))));
        assert!(ledger.is_repeated(id(6)), "the broker sent it before the acknowledgement arrived");
    }

    #[test]
    fn a_settled_entry_is_a_repetition() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.received(id(1), 1);
        ledger.withhold(id(2));
        ledger.settled(id(2));
        assert!(ledger.is_repeated(id(2)) && !ledger.is_repeated(id(3)));
    }

    /// An administrator resets the subscription while this consumer is a standby. Then it takes over.
    #[test]
    fn failover_repeats_entries_after_a_take_over() {
        let mut ledger = Ledger::new(SubType::Failover);
        for entry in 1..=3 {
            ledger.received(id(entry), 1);
        }
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(1), id(2)])));
        assert!(!ledger.is_repeated(id(1)) && !ledger.is_repeated(id(2)));
        assert!(ledger.is_repeated(id(3)), "in progress here");
        // New entries may come before those that the other consumer left.
        ledger.received(id(9), 1);
        ledger.received(id(5), 1);
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(3), id(9)])), "and not all up to 9");
    }

    #[test]
    fn keeps_no_withheld_entries_for_separate_acks() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.withhold(id(1));
        assert!(ledger.is_empty() && !ledger.is_repeated(id(1)));
        assert_eq!(ledger.settled(id(1)), Acks::Each(vec![id(1)]));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Receive(u64),
        Withhold,
        Done(u64),
        Settle,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0_u64..5).prop_map(Step::Receive),
            1 => Just(Step::Withhold),
            4 => (0_u64..9).prop_map(Step::Done),
            1 => Just(Step::Settle),
        ];
        prop::collection::vec(step, 0..200)
    }

    fn acknowledge(
        acks: Acks,
        next: u64,
        left: &BTreeMap<EntryId, u64>,
        withheld: &BTreeSet<EntryId>,
        acknowledged: &mut BTreeSet<EntryId>,
    ) -> Result<(), TestCaseError> {
        let entries: Vec<EntryId> = match acks {
            Acks::Each(entries) => entries,
            Acks::UpTo(last) => (0..next).map(id).filter(|entry| *entry <= last).collect(),
        };
        for entry in entries {
            prop_assert_eq!(left.get(&entry).copied().unwrap_or_default(), 0, "{:?} is not done", entry);
            prop_assert!(!withheld.contains(&entry), "{:?} is withheld", entry);
            acknowledged.insert(entry);
        }
        Ok(())
    }

    proptest! {
        /// Entries come in order. A model counts the messages of each that are not done.
        #[test]
        fn acknowledges_exactly_the_done_entries(cumulative: bool, steps in steps()) {
            let kind = if cumulative { SubType::Exclusive } else { SubType::Shared };
            let mut ledger = Ledger::new(kind);
            let (mut next, mut left, mut withheld) = (0, BTreeMap::new(), BTreeSet::new());
            let mut acknowledged = BTreeSet::new();
            let finish = |left: &mut BTreeMap<EntryId, u64>, mut messages: u64| {
                for count in left.values_mut() {
                    let now = messages.min(*count);
                    *count -= now;
                    messages -= now;
                }
            };
            for step in steps {
                match step {
                    Step::Receive(messages) => {
                        ledger.received(id(next), messages);
                        left.insert(id(next), messages);
                        next += 1;
                    }
                    Step::Withhold => {
                        ledger.withhold(id(next));
                        withheld.insert(id(next));
                        next += 1;
                    }
                    Step::Done(messages) => {
                        finish(&mut left, messages);
                        if let Some(acks) = ledger.done(messages) {
                            acknowledge(acks, next, &left, &withheld, &mut acknowledged)?;
                        }
                    }
                    Step::Settle => {
                        if let Some(entry) = withheld.pop_first() {
                            let acks = ledger.settled(entry);
                            acknowledge(acks, next, &left, &withheld, &mut acknowledged)?;
                        }
                    }
                }
                // The ledger keeps exactly the entries that still need an acknowledgement.
                let elsewhere = if cumulative { 0 } else { withheld.len() };
                let kept = ledger.len() + elsewhere + acknowledged.len();
                prop_assert_eq!(kept, usize::try_from(next).unwrap());
                // In a repetition, only withheld entries are not repetitions.
                if cumulative {
                    for entry in (0..next).map(id) {
                        prop_assert_eq!(ledger.is_repeated(entry), !withheld.contains(&entry));
                    }
                }
                prop_assert!(!ledger.is_repeated(id(next)));
            }
            let rest = left.values().sum();
            finish(&mut left, rest);
            if let Some(acks) = ledger.done(rest) {
                acknowledge(acks, next, &left, &withheld, &mut acknowledged)?;
            }
            while let Some(entry) = withheld.pop_first() {
                let acks = ledger.settled(entry);
                acknowledge(acks, next, &left, &withheld, &mut acknowledged)?;
            }
            prop_assert!(ledger.is_empty());
            prop_assert_eq!(acknowledged, (0..next).map(id).collect::<BTreeSet<_>>());
        }
    }
}
