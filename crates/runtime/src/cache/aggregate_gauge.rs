//! Gauges that sum over all objects of a kind, for dashboards without a series for each object.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use prometheus::{IntGaugeVec, Opts, Registry};

use crate::cache::informer::{Change, Informer};
use crate::lock;
use crate::model::object::{Key, Object};

/// A gauge with one series per state; each series is a sum over the objects of a kind.
#[derive(Clone, Debug)]
pub struct Sums<const N: usize> {
    gauge: IntGaugeVec,
    states: [&'static str; N],
    by_object: Arc<Mutex<HashMap<Key, [i64; N]>>>,
}

impl<const N: usize> Sums<N> {
    /// Creates and registers the gauge, with the label `state`.
    pub fn new(
        registry: &Registry,
        name: &str,
        help: &str,
        states: [&'static str; N],
    ) -> Result<Self, prometheus::Error> {
        let gauge = IntGaugeVec::new(Opts::new(name, help), &["state"])?;
        registry.register(Box::new(gauge.clone()))?;
        for state in states {
            gauge.with_label_values(&[state]).set(0);
        }
        Ok(Self { gauge, states, by_object: Arc::default() })
    }

    /// Sums up `counts` of each object in a cache, in the order of the states.
    pub fn follow<T: Object>(&self, objects: &Informer<T>, counts: fn(&T) -> [i64; N]) {
        let sums = self.clone();
        objects.subscribe(move |change| match change {
            Change::Applied { new, .. } => sums.set(new.key(), Some(counts(new))),
            Change::Deleted { old } => sums.set(old.key(), None),
            // An object that cannot be decoded does not count.
            Change::Undecodable { key, .. } | Change::Vanished { key } => sums.set((*key).clone(), None),
        });
    }

    fn set(&self, key: Key, counts: Option<[i64; N]>) {
        let mut by_object = lock(&self.by_object);
        let before = match counts {
            Some(counts) => by_object.insert(key, counts),
            None => by_object.remove(&key),
        };
        let (before, after) = (before.unwrap_or([0; N]), counts.unwrap_or([0; N]));
        for (at, state) in self.states.iter().enumerate() {
            self.gauge.with_label_values(&[state]).add(after[at] - before[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_added_changed_and_deleted_objects() {
        let sums = Sums::new(&Registry::new(), "pods", "Pods.", ["wanted", "ready"]).unwrap();
        let sum = |state: &str| sums.gauge.with_label_values(&[state]).get();
        let key = |name: &str| Key { namespace: "ns".into(), name: name.into(), uid: name.into() };
        sums.set(key("a"), Some([3, 1]));
        sums.set(key("b"), Some([2, 2]));
        sums.set(key("a"), Some([3, 3]));
        assert_eq!((sum("wanted"), sum("ready")), (5, 5));
        sums.set(key("a"), None);
        sums.set(key("a"), None);
        assert_eq!((sum("wanted"), sum("ready")), (2, 2));
    }
}
