//! The manifest of the kubectl plugin for krew. Source of the format: krew's developer guide, "Plugin manifest".

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::VERSION;
use super::platform::{NAMES, Platform};

/// The manifest, for archives with these SHA-256 sums, which a release offers for download.
pub(super) fn manifest(sums: &BTreeMap<Platform, String>) -> String {
    let repository = env!("CARGO_PKG_REPOSITORY");
    let mut text = format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: quintet
spec:
  version: v{VERSION}
  homepage: {repository}
  shortDescription: Explain DaemonJobs and control their rollouts
  description: |
    Shows on which nodes a DaemonJob runs, and why it does not run on the other nodes.
    Follows, pauses, approves and retries rollouts of DaemonJobs and PodSets. Checks
    an installation of Quintet, the operator for these kinds, which the cluster needs.
  platforms:
"
    );
    for (platform, sum) in sums {
        let archive = archive(NAMES[1], *platform);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "    - selector:
        matchLabels:
          os: {}
          arch: {}
      uri: {repository}/releases/download/v{VERSION}/{archive}
      sha256: {sum}
      bin: {}
",
            platform.system,
            platform.arch.name(),
            NAMES[1],
        );
    }
    text
}

/// The name of the archive with a program.
pub(super) fn archive(name: &str, platform: Platform) -> String {
    format!("{name}-{VERSION}-{}.tar.gz", platform.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_manifest_names_the_archive_of_each_platform() {
        let sums = Platform::ALL.map(|platform| (platform, "ab".repeat(32)));
        let manifest: Value = serde_saphyr::from_str(&manifest(&BTreeMap::from(sums))).unwrap();
        assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
        let platforms = manifest["spec"]["platforms"].as_array().unwrap();
        assert_eq!(platforms.len(), Platform::ALL.len());
        let arm = platforms
            .iter()
            .find(|one| one["selector"]["matchLabels"] == json!({ "os": "darwin", "arch": "arm64" }));
        let arm = arm.unwrap();
        let end = format!("/releases/download/v{VERSION}/kubectl-quintet-{VERSION}-darwin-arm64.tar.gz");
        assert!(arm["uri"].as_str().unwrap().ends_with(&end), "{arm}");
        assert_eq!((&arm["bin"], &arm["sha256"]), (&json!("kubectl-quintet"), &json!("ab".repeat(32))));
        // krew's developer guide: few words, none of them redundant, and no list of commands.
        let text = |field: &str| manifest["spec"][field].as_str().unwrap().to_lowercase();
        assert!(text("shortDescription").len() <= 50, "{manifest}");
        for words in ["kubectl", "plugin"] {
            assert!(!(text("shortDescription") + &text("description")).contains(words), "{words}");
        }
    }
}
