//! `cargo xtask test --versions`: the tests of the chart and the end-to-end tests with other versions of Kubernetes and Helm.

use anyhow::Result;
use quintet_localcluster::cluster::versions::Versions;

use super::end_to_end::{self, Selection};
use super::{CHART, Report, control_plane};
use crate::chart;

const HELM: &str = "Helm 3 does not wait for objects of custom kinds";
const POLICY: &str = "Kubernetes 1.33 has no MutatingAdmissionPolicy v1";

/// The end-to-end tests that need a newer Kubernetes or Helm than the oldest, and the reason.
const NEED_NEWER: [(&str, &str); 10] = [
    (
        "conformance::fake_api_server_answers_as_the_real_one",
        "Kubernetes 1.33 does not stream lists by default, and the fake API server does",
    ),
    ("protobuf::protobuf_and_json_decode_to_the_same_objects", "Kubernetes 1.33 has no restartPolicyRules"),
    ("podset::a_policy_that_overwrites_app_changes_nothing", POLICY),
    ("podset::a_pod_without_the_label_that_cannot_be_deleted_stays_alone", POLICY),
    ("podset::a_policy_that_removes_our_labels_stops_creations", POLICY),
    ("pulsarconsumer_broker::consumes_and_reports_the_state_of_consumers", POLICY),
    ("pulsarconsumer_broker::authenticates_with_certificates_and_tokens_of_an_issuer", POLICY),
    ("pulsarconsumer_broker::mounts_tokens_and_reports_rejected_ones", POLICY),
    ("daemonjob_health::helm_waits_until_complete", HELM),
    ("daemonjob_health::helm_fails_when_the_daemonjob_fails", HELM),
];

/// The selected end-to-end tests that cannot run with these versions, and the reasons.
pub(super) fn left_out(versions: Versions, selection: Selection<'_>) -> Vec<(&'static str, &'static str)> {
    let of_versions = NEED_NEWER.into_iter().filter(|_| versions == Versions::Oldest);
    of_versions.filter(|&(test, _)| selection.contains(test)).collect()
}

/// Runs the tests with the chosen versions: those of the chart, and all end-to-end tests; with `filter`, only the end-to-end
/// tests whose names contain it.
pub(super) fn tests(report: &mut Report, filter: Option<&str>) -> Result<()> {
    let Some(filter) = filter else {
        if !control_plane(report)? {
            report.skip(CHART.0, CHART.1, end_to_end::NO_CONTROL_PLANE);
            end_to_end::skip(report);
            return Ok(());
        }
        report.part(CHART.0, CHART.1, || chart::counts(None))?;
        return end_to_end::tests(report, Selection::All);
    };
    end_to_end::build_and_test(report, Selection::Filter(filter))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use quintet_localcluster::cluster::binaries::required_version;
    use quintet_localcluster::paths;
    use quintet_localcluster::previous::COMMIT;

    use super::*;

    fn file(path: &str) -> String {
        fs::read_to_string(paths::workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn leaves_out_only_tests_that_exist() {
        for (test, reason) in NEED_NEWER {
            let (module, name) = test.split_once("::").unwrap();
            let text = file(&format!("tests/e2e/{module}.rs"));
            let (before, _) = text.split_once(&format!("\nfn {name}()")).unwrap_or_else(|| panic!("{test}"));
            let mut attributes = before.lines().rev().take_while(|line| line.starts_with('#'));
            assert!(attributes.any(|line| line == "#[test]"), "{test}");
            assert!(reason.contains("1.33") || reason.contains("Helm 3"), "{reason}");
        }
        assert!(left_out(Versions::Newest, Selection::All).is_empty());
        assert_eq!(left_out(Versions::Oldest, Selection::All).len(), NEED_NEWER.len());
        assert_eq!(left_out(Versions::Oldest, Selection::Filter("podset::")).len(), 3);
    }

    #[test]
    fn the_documents_name_the_tested_versions() {
        let table = file("docs/operations.md");
        let table = table.split("\n## ").find(|section| section.starts_with("Versions\n")).unwrap();
        for (folder, module) in [
            ("", "k8s.io/kubernetes"),
            ("oldest", "k8s.io/kubernetes"),
            ("helm", "helm.sh/helm/v4"),
            ("helm3", "helm.sh/helm/v3"),
        ] {
            let go_mod = file(&format!("tests/controlplane/{folder}/go.mod"));
            let version = required_version(&go_mod, module).unwrap().trim_start_matches('v');
            assert!(table.contains(version), "{module} {version}: {table}");
        }
        assert!(table.contains(&format!("commit {}", &COMMIT[..7])), "{COMMIT}: {table}");
    }
}
