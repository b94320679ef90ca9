//! `.ci/publish` with programs in place of cosign and crane that only record their arguments.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use quintet_localcluster::{image, paths, run};
use sha2::{Digest as _, Sha256};

use super::{SUMS, contents};
use crate::scratch::Scratch;

/// Records its call. `crane digest` answers with the content of the file `answer`, and fails unless it is a digest. A call
/// that contains the words of the file `fails` fails.
const STAND_IN: &str = r#"#!/usr/bin/env bash
here=$(dirname "$0")
call="$(basename "$0") $*"
echo "$call" >> "$here/calls"
if [[ $call == "crane digest"* ]]; then
  cat "$here/answer"
  grep -q '^sha256:' "$here/answer"
elif [ -s "$here/fails" ] && [[ $call == *"$(cat "$here/fails")"* ]]; then
  exit 1
fi
"#;

const ABSENT: &str = "MANIFEST_UNKNOWN: manifest unknown";

/// The version of the files.
const VERSION: &str = "1.2.3";

/// A folder with the files of a small release, and the stand-ins.
struct Stage {
    scratch: Scratch,
}

impl Stage {
    fn new(name: &str, answer: &str, fails: &str) -> Self {
        let scratch = Scratch::new(&format!("publish-{name}")).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let file = scratch.0.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, bytes).unwrap();
            file
        };
        for program in ["cosign", "crane"] {
            let file = file(&format!("tools/{program}"), STAND_IN.as_bytes());
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        file("tools/answer", answer.as_bytes());
        file("tools/fails", fails.as_bytes());
        file("tools/calls", b"");
        let archive = image::tar(&[("oci-layout", 0o644, &b"{}"[..])]).unwrap();
        let digests = "image quintet sha256:aa i.tar\nsbom quintet sha256:bb b.json\nchart charts/quintet sha256:aa c.tar\n";
        let package = format!("quintet-{VERSION}.tgz");
        let files: [(&str, &[u8]); 5] = [
            ("i.tar", &archive),
            ("c.tar", &archive),
            ("b.json", b"{}"),
            ("DIGESTS", digests.as_bytes()),
            (&package, b""),
        ];
        for (name, bytes) in files {
            file(&format!("files/{name}"), bytes);
        }
        let stage = Self { scratch };
        stage.sum();
        stage
    }

    /// Writes the checksums of the files.
    fn sum(&self) {
        let files = contents(&self.files()).unwrap();
        let sums = files.iter().filter(|(name, _)| *name != SUMS);
        let lines: Vec<_> =
            sums.map(|(name, bytes)| format!("{}  {name}\n", run::hex(&Sha256::digest(bytes)))).collect();
        fs::write(self.files().join(SUMS), lines.concat()).unwrap();
    }

    fn files(&self) -> PathBuf {
        self.scratch.0.join("files")
    }

    fn publish(&self, version: &str) -> Output {
        let mut path = vec![self.scratch.0.join("tools")];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut publish = Command::new("bash");
        publish.arg(paths::workspace().join(".ci/publish")).arg(self.files()).args(["r.example/q", version]);
        for variable in [
            "SERVER_URL",
            "REPOSITORY",
            "REPOSITORY_ID",
            "REPOSITORY_OWNER_ID",
            "EVENT_NAME",
            "WORKFLOW_REF",
            "RUN_ID",
            "RUN_ATTEMPT",
            "SHA",
        ] {
            publish.env(format!("GITHUB_{variable}"), "x");
        }
        publish.env("RUNNER_ENVIRONMENT", "x").env("COSIGN_ARGUMENTS", "--key k");
        run::output(publish.env("PATH", std::env::join_paths(path).unwrap()), None).unwrap()
    }

    /// The calls that write to the registry or sign.
    fn writes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.scratch.0.join("tools/calls")).unwrap();
        calls.lines().filter(|call| !call.starts_with("crane digest")).map(str::to_owned).collect()
    }
}

#[test]
fn sets_tags_after_everything_is_signed() {
    let stage = Stage::new("all", ABSENT, "");
    let output = stage.publish(VERSION);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let writes = stage.writes();
    let kinds: Vec<_> =
        writes.iter().map(|call| call.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    let image = ["crane push", "cosign sign", "cosign attest"];
    let expected =
        [&image[..], &["cosign attest"], &image, &["cosign attest-blob", "crane tag", "crane tag"]];
    assert_eq!(kinds, expected.concat());
    assert!(writes[0].ends_with("r.example/q/quintet@sha256:aa"), "{writes:?}");
    assert!(writes[3].contains("--type cyclonedx") && writes[3].ends_with("quintet@sha256:bb"), "{writes:?}");
    assert!(writes.iter().filter(|call| call.starts_with("cosign")).all(|call| call.contains("--key k")));
    assert_eq!(writes.last().unwrap(), "crane tag r.example/q/charts/quintet@sha256:aa 1.2.3");
    let notes = String::from_utf8(output.stdout).unwrap();
    assert!(notes.contains("| `r.example/q/quintet:1.2.3` | `sha256:aa` |"), "{notes}");
    assert!(!notes.contains("sha256:bb"), "{notes}");
}

#[test]
fn rejects_a_tag_that_exists_before_it_writes() {
    let stage = Stage::new("exists", "sha256:dd", "");
    let output = stage.publish(VERSION);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("a release replaces no tag"), "{error}");
    assert_eq!(stage.writes(), [""; 0]);
}

#[test]
fn runs_again_after_it_set_the_tags() {
    let stage = Stage::new("again", "sha256:aa", "");
    let output = stage.publish(VERSION);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stage.writes().iter().filter(|call| call.starts_with("crane tag")).count(), 2);
}

#[test]
fn writes_nothing_if_the_registry_does_not_answer() {
    let stage = Stage::new("outage", "unexpected status code 503 Service Unavailable", "");
    let output = stage.publish(VERSION);
    assert!(!output.status.success());
    assert_eq!(stage.writes(), [""; 0]);
}

#[test]
fn sets_no_tag_if_a_signature_fails() {
    for (number, call) in
        ["cosign sign", "--type cyclonedx", "cosign attest-blob", "crane push"].iter().enumerate()
    {
        let stage = Stage::new(&format!("fails-{number}"), ABSENT, call);
        assert!(!stage.publish(VERSION).status.success(), "{call}");
        assert!(!stage.writes().iter().any(|call| call.starts_with("crane tag")), "{call}");
    }
}

#[test]
fn rejects_a_changed_file_and_a_wrong_version() {
    let stage = Stage::new("changed", ABSENT, "");
    for (version, expected) in [
        ("v1.2.3", "the version must be"),
        ("1.2", "the version must be"),
        ("1.2.3;id", "the version must be"),
        ("", "the version must be"),
        ("1.2.4", "has no quintet-1.2.4.tgz"),
        ("1.2.3-rc.1", "has no quintet-1.2.3-rc.1.tgz"),
    ] {
        let output = stage.publish(version);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(expected), "{version}: {error}");
    }
    fs::write(stage.files().join("b.json"), "{ }").unwrap();
    assert!(!stage.publish(VERSION).status.success());
    assert_eq!(stage.writes(), [""; 0]);
}

#[test]
fn rejects_files_without_a_checksum_image_or_chart() {
    let stage = Stage::new("unlisted", ABSENT, "");
    let rejects = |expected: &str| {
        let output = stage.publish(VERSION);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(expected), "{expected}: {error}");
    };
    fs::write(stage.files().join("extra"), "").unwrap();
    rejects("extra is not in SHA256SUMS");
    for (digests, expected) in [
        ("sbom quintet sha256:bb b.json\nchart charts/quintet sha256:aa c.tar\n", "DIGESTS names no image"),
        ("image quintet sha256:aa i.tar\n", "DIGESTS names no chart"),
    ] {
        fs::write(stage.files().join("DIGESTS"), digests).unwrap();
        stage.sum();
        rejects(expected);
    }
    assert_eq!(stage.writes(), [""; 0]);
}
