//! The names in the chart's guard rails, for its templates.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use quintet_daemonjob::FINALIZER;
use quintet_kinds::guard_rails::{
    DAEMONJOB_KEYS, KIND_LABEL, LEDGER_LABEL, MARKED_ANNOTATION, PODSET_KEYS, bare, creates, domains,
};

use super::roles::{list, scalar};
use super::{Files, Kind, header};

/// Adds the file.
pub(super) fn insert(kinds: &[Kind], files: &mut Files) {
    let all = [&DAEMONJOB_KEYS[..], &PODSET_KEYS].concat();
    let flow = |keys: BTreeSet<&str>| list(&Vec::from_iter(keys));
    let mut text = header("crates/kinds/src/guard_rails.rs");
    text.push_str("# The manager changes only labels and annotations of these domains.\n");
    let _ = writeln!(text, "domains: [{}]", flow(domains(&all)));
    text.push_str("# Only managers change these labels and annotations of DaemonJobs' pods and ledgers.\n");
    let (protected, others) = (flow(domains(&DAEMONJOB_KEYS)), flow(bare(&DAEMONJOB_KEYS)));
    let _ = writeln!(text, "daemonjob:\n  domains: [{protected}]\n  keys: [{others}]");
    for (name, value) in [
        ("podFinalizer", FINALIZER),
        ("kindLabel", KIND_LABEL),
        ("ledgerLabel", LEDGER_LABEL),
        ("markedAnnotation", MARKED_ANNOTATION),
    ] {
        let _ = writeln!(text, "{name}: {}", scalar(value));
    }
    text.push_str("# The kinds, and the types of the objects that their controllers create.\nkinds:\n");
    for kind in kinds {
        let resource = (kind.row.resource)();
        let created = creates(kind.row).into_iter();
        let created: Vec<String> = created
            .map(|(group, resource)| format!("{{group: {}, resource: {}}}", scalar(group), scalar(resource)))
            .collect();
        let _ = writeln!(
            text,
            "  {}:\n    group: {}\n    kind: {}\n    plural: {}\n    creates: [{}]",
            kind.row.controller,
            scalar(resource.group),
            scalar(resource.kind),
            scalar(resource.plural),
            created.join(", ")
        );
    }
    files.insert("charts/quintet/files/guard-rails.yaml".to_owned(), text);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kinds;
    use super::*;

    #[test]
    fn lists_the_created_types_of_each_kind() {
        let mut files = Files::new();
        insert(&kinds(), &mut files);
        let names: Value = serde_saphyr::from_str(&files["charts/quintet/files/guard-rails.yaml"]).unwrap();
        assert_eq!(names["podFinalizer"], FINALIZER);
        assert_eq!(names["daemonjob"]["keys"], json!(["daemonjob"]));
        let pods = json!({ "group": "", "resource": "pods" });
        let expected = json!([pods, { "group": "", "resource": "configmaps" }]);
        assert_eq!(names["kinds"]["daemonjob"]["creates"], expected);
        assert_eq!(names["kinds"]["book"]["creates"], json!([]));
    }
}
