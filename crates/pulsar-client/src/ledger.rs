//! What may be acknowledged. Pulsar's unit is the entry: a message, or a batch of them. An entry is acknowledged when all
//! of its messages are done, once, and as few acknowledgements are sent as the subscription's type allows.
//!
//! Pure data: entries come in, messages are done in the order in which they came, acknowledgements come out.

use std::collections::{BTreeSet, VecDeque};

use pulsar::message::proto::command_subscribe::SubType;

/// The place of an entry in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// The segment of the topic's log.
    pub ledger: u64,
    /// The number in it.
    pub entry: u64,
}

/// What to tell the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acks {
    /// These entries are done.
    Each(Vec<EntryId>),
    /// This entry is done and all that were received before it.
    UpTo(EntryId),
}

/// The entries of one topic that are not acknowledged.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Whether entries come in order and to this consumer alone, so that one acknowledgement may stand for all before it.
    cumulative: bool,
    /// Received, in this order, with the messages of each that are not done.
    open: VecDeque<(EntryId, u64)>,
    /// Those that are kept back: nothing may be acknowledged in their name. None where each entry is acknowledged by
    /// itself, for then nothing is.
    withheld: BTreeSet<EntryId>,
    /// The last of all that came.
    last: Option<EntryId>,
    /// Whether one came after a later one, since `open` was empty.
    out_of_order: bool,
}

impl Ledger {
    /// An empty one of a subscription of this type.
    ///
    /// Of an Exclusive one all entries come here in order, for as long as it is ours. Failover is no such type: a consumer that takes
    /// over may be sent new entries before those that the other one leaves, and one that stands by keeps its subscription
    /// when an administrator sets it back. An acknowledgement that stands for all before it would lose these.
    pub fn new(kind: SubType) -> Self {
        Self { cumulative: kind == SubType::Exclusive, ..Self::default() }
    }

    /// An entry was received, with so many messages to be done.
    pub fn received(&mut self, entry: EntryId, messages: u64) {
        self.withheld.remove(&entry);
        self.out_of_order |= self.last >= Some(entry);
        self.last = self.last.max(Some(entry));
        self.open.push_back((entry, messages));
    }

    /// Whether an entry that comes was received before, so that its messages need not be done twice: they are done and
    /// acknowledged, or will be.
    ///
    /// To Exclusive entries come in order, from the first that is not acknowledged, and from there once more whenever one of
    /// them is asked for. So what is not after the last one came before, and only what was withheld still has to be done.
    ///
    /// To the others they come in any order; there it is those whose messages are not done yet.
    pub fn is_repeated(&self, entry: EntryId) -> bool {
        if self.cumulative {
            self.last >= Some(entry) && !self.withheld.contains(&entry)
        } else {
            self.last >= Some(entry) && self.open.iter().any(|(open, _)| *open == entry)
        }
    }

    /// An entry came that cannot be done: it is not acknowledged until it is received again or
    /// [`settled`](Self::settled).
    pub fn withhold(&mut self, entry: EntryId) {
        if self.cumulative {
            self.last = self.last.max(Some(entry));
            self.withheld.insert(entry);
        }
    }

    /// A withheld entry was dealt with elsewhere.
    pub fn settled(&mut self, entry: EntryId) -> Acks {
        self.withheld.remove(&entry);
        Acks::Each(vec![entry])
    }

    /// The next so many messages are done, in the order in which they were received. What is to be acknowledged now, if
    /// anything is.
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

    /// How many entries it keeps: those that are received and not acknowledged, and those that it withholds.
    pub fn len(&self) -> usize {
        self.open.len() + self.withheld.len()
    }

    /// Whether it keeps none.
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
    fn a_batch_is_acknowledged_when_its_last_message_is_done() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 3);
        assert_eq!(ledger.done(2), None);
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(1)])));
        assert!(ledger.is_empty());
    }

    #[test]
    fn one_acknowledgement_stands_for_all_where_it_may() {
        let receive = |kind| {
            let mut ledger = Ledger::new(kind);
            (1..4).for_each(|entry| ledger.received(id(entry), 2));
            ledger.done(5)
        };
        assert_eq!(receive(SubType::Exclusive), Some(Acks::UpTo(id(2))));
        assert_eq!(receive(SubType::Failover), Some(Acks::Each(vec![id(1), id(2)])));
    }

    #[test]
    fn an_entry_without_messages_is_done_when_those_before_it_are() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 0);
        ledger.received(id(2), 1);
        ledger.received(id(3), 0);
        assert_eq!(ledger.done(0), Some(Acks::Each(vec![id(1)])));
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(2), id(3)])));
    }

    #[test]
    fn nothing_stands_for_an_entry_that_is_withheld() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.withhold(id(1));
        ledger.received(id(2), 1);
        assert_eq!(ledger.done(1), Some(Acks::Each(vec![id(2)])));
        assert_eq!(ledger.settled(id(1)), Acks::Each(vec![id(1)]));
        ledger.received(id(3), 1);
        assert_eq!(ledger.done(1), Some(Acks::UpTo(id(3))));
    }

    #[test]
    fn an_older_entry_that_came_again_is_acknowledged_by_itself() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.received(id(5), 1);
        ledger.received(id(3), 1);
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(5), id(3)])));
    }

    #[test]
    fn nothing_stands_for_an_older_entry_that_came_again_and_is_not_done() {
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
    fn where_entries_come_in_any_order_those_are_repeated_that_are_not_done() {
        let mut ledger = Ledger::new(SubType::Shared);
        ledger.received(id(1), 1);
        ledger.received(id(5), 1);
        assert!(ledger.is_repeated(id(1)) && ledger.is_repeated(id(5)));
        assert!(!ledger.is_repeated(id(3)) && !ledger.is_repeated(id(6)));
        // The broker would not send it again if it knew that it is acknowledged: somebody has to do it.
        ledger.done(1);
        assert!(!ledger.is_repeated(id(1)) && ledger.is_repeated(id(5)));
    }

    #[test]
    fn where_entries_come_in_order_all_are_repeated_but_those_that_are_withheld() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        for entry in [1, 2, 4, 5] {
            ledger.received(id(entry), 1);
        }
        ledger.withhold(id(6));
        assert_eq!(ledger.done(3), Some(Acks::Each(vec![id(1), id(2), id(4)])));
        // They are done or under way, but for one that did not come: it was acknowledged before.
        assert!((1..=5).all(|entry| ledger.is_repeated(id(entry))));
        assert!(!ledger.is_repeated(id(6)), "it was asked for");
        assert!(!ledger.is_repeated(id(7)));
        // It can be read now; when everything comes once more, it is known.
        ledger.received(id(6), 1);
        assert!(ledger.is_repeated(id(6)));
        assert_eq!(ledger.done(2), Some(Acks::UpTo(id(6))));
        assert!(ledger.is_repeated(id(6)), "the broker sent it before it heard of the acknowledgement");
    }

    #[test]
    fn what_was_dealt_with_elsewhere_is_repeated() {
        let mut ledger = Ledger::new(SubType::Exclusive);
        ledger.received(id(1), 1);
        ledger.withhold(id(2));
        ledger.settled(id(2));
        assert!(ledger.is_repeated(id(2)) && !ledger.is_repeated(id(3)));
    }

    /// An administrator sets a subscription back while this consumer stands by; then it takes over.
    #[test]
    fn where_another_consumer_may_come_between_what_was_done_before_is_done_again() {
        let mut ledger = Ledger::new(SubType::Failover);
        for entry in 1..=3 {
            ledger.received(id(entry), 1);
        }
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(1), id(2)])));
        assert!(!ledger.is_repeated(id(1)) && !ledger.is_repeated(id(2)));
        assert!(ledger.is_repeated(id(3)), "it is under way here");
        // New ones may come before those that another one has left.
        ledger.received(id(9), 1);
        ledger.received(id(5), 1);
        assert_eq!(ledger.done(2), Some(Acks::Each(vec![id(3), id(9)])), "and not all up to 9");
    }

    #[test]
    fn nothing_is_kept_of_what_is_withheld_where_each_entry_is_acknowledged_by_itself() {
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
        /// Entries come in order; a model counts the messages of each that are not done.
        #[test]
        fn exactly_what_is_done_is_acknowledged(cumulative: bool, steps in steps()) {
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
                // Nothing is forgotten, and nothing is kept that was acknowledged, or need not be.
                let elsewhere = if cumulative { 0 } else { withheld.len() };
                let kept = ledger.len() + elsewhere + acknowledged.len();
                prop_assert_eq!(kept, usize::try_from(next).unwrap());
                // Where all comes once more, what is withheld is taken, and nothing else.
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
