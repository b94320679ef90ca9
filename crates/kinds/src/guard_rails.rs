//! The names in the chart's guard rails, which are admission policies, from the constants and rules of the kinds.
//!
//! `cargo xtask generate` writes them to `charts/quintet/files/guard-rails.yaml`, the only source of names for the
//! templates. So the policies cannot differ from the manager.

use std::collections::BTreeSet;

use quintet_daemonjob::labels as daemonjob;
pub use quintet_daemonjob::labels::MARKED_ANNOTATION;
pub use quintet_daemonjob::ledger::LEDGER_LABEL;
use quintet_daemonjob::outcome::DELETED_FOR_ANNOTATION;
use quintet_podset::labels as podset;
pub use quintet_runtime::KIND_LABEL;

use crate::Kind;

/// The keys of labels and annotations of a DaemonJob's pods and ledgers. Plans read them, so only managers and
/// privileged users may change them.
pub const DAEMONJOB_KEYS: [&str; 15] = [
    KIND_LABEL,
    LEDGER_LABEL,
    DELETED_FOR_ANNOTATION,
    daemonjob::NAME_LABEL,
    daemonjob::UID_LABEL,
    daemonjob::NODE_UID_LABEL,
    daemonjob::HASH_LABEL,
    daemonjob::POD_NUMBER_LABEL,
    daemonjob::ROLLOUT_ANNOTATION,
    daemonjob::RUN_ANNOTATION,
    daemonjob::DUE_TIME_ANNOTATION,
    daemonjob::NODE_NAME_ANNOTATION,
    daemonjob::NODE_READY_ANNOTATION,
    daemonjob::BOOT_ID_ANNOTATION,
    daemonjob::MACHINE_ID_ANNOTATION,
];

/// The keys that the manager changes on existing pods of PodSets.
pub const PODSET_KEYS: [&str; 4] =
    [KIND_LABEL, podset::UID_LABEL, podset::HASH_LABEL, podset::RELEASED_LABEL];

/// The domains of keys, each with its slash.
pub fn domains<'k>(keys: &[&'k str]) -> BTreeSet<&'k str> {
    let first = |key: &'k str| key.split_inclusive('/').next();
    keys.iter().copied().filter_map(first).filter(|part| part.ends_with('/')).collect()
}

/// The keys without a domain.
pub fn bare<'k>(keys: &[&'k str]) -> BTreeSet<&'k str> {
    keys.iter().copied().filter(|key| !key.contains('/')).collect()
}

/// The group and plural of each type of objects that a kind's controller creates. The kind controls each of them.
pub fn creates(kind: &Kind) -> Vec<(&'static str, &'static str)> {
    let rules = kind.rules.iter().filter(|rule| rule.verbs.contains(&"create"));
    rules.flat_map(|rule| rule.resources.iter().map(move |resource| (rule.group, *resource))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KINDS;

    #[test]
    fn splits_keys_into_domains_and_bare_keys() {
        let keys = ["b.example/x", "a.example/y", "b.example/z", "plain"];
        assert_eq!(Vec::from_iter(domains(&keys)), ["a.example/", "b.example/"]);
        assert_eq!(Vec::from_iter(bare(&keys)), ["plain"]);
    }

    #[test]
    fn protects_every_key_of_a_daemonjobs_pods() {
        let domains = domains(&DAEMONJOB_KEYS);
        assert_eq!(Vec::from_iter(&domains), [&"dj.dysproz.io/", &"quintet.dev/"]);
        assert_eq!(Vec::from_iter(bare(&DAEMONJOB_KEYS)), ["daemonjob"]);
        let is_protected = |key: &str| domains.iter().any(|domain| key.starts_with(domain));
        assert!(is_protected(MARKED_ANNOTATION) && is_protected(daemonjob::APPROVED_ANNOTATION));
        // Their labels and annotations stay the user's.
        assert!(!PODSET_KEYS.iter().any(|key| *key != KIND_LABEL && is_protected(key)));
    }

    #[test]
    fn other_objects_than_pods_have_one_kind_of_owner() {
        let mut seen = BTreeSet::new();
        for (group, resource) in KINDS.iter().flat_map(creates).filter(|(_, resource)| *resource != "pods") {
            assert!(!group.is_empty() || resource == "configmaps", "{resource} is a new core type");
            assert!(seen.insert(resource), "{resource} belongs to two kinds");
        }
        assert!(seen.contains("configmaps") && seen.contains("deployments"), "{seen:?}");
    }
}
