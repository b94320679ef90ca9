//! `cargo xtask faults --mutants`: the program is broken on purpose, in one way after the other, and each time a plan must
//! notice. A sweep that finds nothing says something only if it finds these.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::progress::Step;
use crate::{paths, protoc, run, test};

/// One way to break the program.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// What becomes what; each text is there once.
    edits: &'static [(&'static str, &'static str)],
    /// The stories that are run.
    stories: &'static str,
    /// What the names of the plans contain that are run: the class of fault that must show it.
    fault: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "pods with names by chance",
        file: "crates/podset/src/plan.rs",
        edits: &[(
            "digest::short(&[uid, &number.to_string()], 10)",
            "digest::short(&[uid, &number.to_string(), &format!(\"{:?}\", std::time::Instant::now())], 10)",
        )],
        stories: "podset-create",
        fault: "/late",
    },
    Mutant {
        name: "no gate before writes",
        file: "crates/kit/src/gate.rs",
        edits: &[
            ("        self.state.send_replace(None);\n", ""),
            (
                "(until > Instant::now()).then_some(Term { until, ..term })",
                "Some(Term { until: until.max(Instant::now() + Duration::from_secs(20)), ..term })",
            ),
        ],
        stories: "podset-scale",
        fault: "/cut-off",
    },
    Mutant {
        name: "a lease that is taken before it has expired",
        file: "crates/kit/src/election.rs",
        edits: &[(
            "self.at.is_some() && self.expiry(settings) <= Instant::now()",
            "self.at.is_some() && settings.lease > Duration::ZERO",
        )],
        stories: "podset-create",
        fault: "/cut-off",
    },
    Mutant {
        name: "deletions that are not told",
        file: "crates/kit/src/informer.rs",
        edits: &[("            self.tell(&Change::Deleted { old });\n", "            let _ = old;\n")],
        stories: "podset-pod-lost",
        fault: "event:pods",
    },
    Mutant {
        name: "a list that sweeps nothing",
        file: "crates/kit/src/informer.rs",
        edits: &[("for key in &gone {\n            self.delete(key);\n        }", "drop(gone);")],
        stories: "podset-node-lost",
        fault: "/dropped",
    },
    Mutant {
        name: "lists that may be old",
        file: "crates/kit/src/informer.rs",
        edits: &[(
            "&resourceVersionMatch=NotOlderThan&timeoutSeconds=60",
            "&resourceVersionMatch=NotOlderThan&resourceVersion=0&timeoutSeconds=60",
        )],
        stories: "daemonjob-ttl",
        fault: "/stale-server",
    },
    Mutant {
        name: "410 that is not understood",
        file: "crates/kit/src/informer.rs",
        edits: &[(
            "self.code() == Some(410)\n            || matches!(self, Self::Watch(status) if status.reason == \"Expired\" || status.reason == \"Gone\")",
            "self.code() == Some(1)",
        )],
        stories: "podset-create",
        fault: "event:pods",
    },
    Mutant {
        name: "no reading of one's own writes",
        file: "crates/kit/src/executor.rs",
        edits: &[(
            "memory.get_mut(&owner.uid).is_none_or(|memory| memory.written.is_shown(followers))",
            "memory.get_mut(&owner.uid).is_none_or(|memory| memory.written.is_shown(followers) || true)",
        )],
        stories: "daemonjob-retry",
        fault: "/delayed",
    },
    Mutant {
        name: "a stranger's pod taken for one's own",
        file: "crates/kit/src/executor.rs",
        edits: &[(
            "Some(meta) if meta.is_controlled_by(owner) => {",
            "Some(meta) if !meta.uid.is_empty() => {",
        )],
        stories: "podset-create",
        fault: "/stranger",
    },
    Mutant {
        name: "a refusal that is forgotten at once",
        file: "crates/kit/src/clock.rs",
        edits: &[(
            "const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);",
            "const FIRST_BACKOFF: SignedDuration = SignedDuration::ZERO;",
        )],
        stories: "podset-create",
        fault: "/stranger",
    },
    Mutant {
        name: "a failed pass that is not repeated",
        file: "crates/kit/src/controller.rs",
        edits: &[(
            "(\"error\", Ended::Failed)",
            "(\"error\", Ended::Well { again: None, rest: Duration::ZERO })",
        )],
        stories: "book-status-changed",
        fault: "/error",
    },
    Mutant {
        name: "finalizers taken off before the ledger is written",
        file: "crates/daemonjob/src/plan.rs",
        edits: &[(
            "for mut step in [first, ledger, last, creations] {",
            "for mut step in [first, last, ledger, creations] {",
        )],
        stories: "daemonjob-done-deleted",
        fault: "/crash-",
    },
    Mutant {
        name: "a line that is said before it is claimed",
        file: "crates/greeting/src/plan.rs",
        edits: &[(
            "        plan.steps.push(vec![Action::Claim { status, token }]);\n        plan.steps.push(vec![Action::Effect(Effect::Say(say))]);",
            "        plan.steps.push(vec![Action::Effect(Effect::Say(say))]);\n        plan.steps.push(vec![Action::Claim { status, token }]);",
        )],
        stories: "greeting-life",
        fault: "/crash-",
    },
    Mutant {
        name: "ledger lines that are not read",
        file: "crates/daemonjob/src/controller.rs",
        edits: &[(
            "(if is_going { &mut world.deleted_shards } else { &mut world.ledger }).push(shard);",
            "let _ = (is_going, shard);",
        )],
        stories: "daemonjob-ttl",
        fault: "/crash-",
    },
    Mutant {
        name: "pods that wake nobody",
        file: "crates/podset/src/controller.rs",
        edits: &[(
            "pods.subscribe(move |change| waker.wake_owner(change, &resource));",
            "let _ = (waker, resource);",
        )],
        stories: "podset-pod-lost",
        fault: "event:pods",
    },
    Mutant {
        name: "a take-over without looking at what is there",
        file: "crates/kit/src/gate.rs",
        edits: &[("since.is_some_and(|since| progress.listed >= Some(since))", "since.is_some()")],
        stories: "podset-pod-lost",
        fault: "/take-over-blind",
    },
    Mutant {
        name: "deletes what has another UID by now",
        file: "crates/kit/src/executor.rs",
        edits: &[("let mut preconditions = json!({ \"uid\": uid });", "let mut preconditions = json!({});")],
        stories: "podset-scale-back",
        fault: "delete-pods",
    },
];

/// Where the broken copies are.
fn copy_of(workspace: &Path) -> std::path::PathBuf {
    workspace.join("target/mutants")
}

/// Breaks the program in each way whose name contains `filter`, and says which plan noticed.
pub fn run(filter: Option<&str>) -> Result<()> {
    let workspace = paths::workspace();
    let copy = copy_of(workspace);
    fs::create_dir_all(&copy).with_context(|| format!("{} cannot be made", copy.display()))?;
    let mut built = BTreeSet::new();
    let done = try_all(workspace, &copy, filter.unwrap_or_default(), &mut built);
    // The broken programs, and what they were made of, are of use to nobody.
    for file in &built {
        let _ = fs::remove_file(file);
    }
    let _ = fs::remove_dir_all(&copy);
    done
}

fn try_all(workspace: &Path, copy: &Path, filter: &str, built: &mut BTreeSet<PathBuf>) -> Result<()> {
    let mut caught = 0;
    let mut table = Vec::new();
    let tried: Vec<&Mutant> = MUTANTS.iter().filter(|mutant| mutant.name.contains(filter)).collect();
    for mutant in &tried {
        let step = Step::start_long(format!("trying {}", mutant.name));
        let noticed = try_one(workspace, copy, mutant, built)?;
        step.done();
        let line = match &noticed {
            Some(plan) => format!("{:<52} {plan}", mutant.name),
            None => format!("{:<52} NOT CAUGHT", mutant.name),
        };
        println!("{line}");
        caught += usize::from(noticed.is_some());
        table.push(line);
    }
    println!("\n{}\n{caught} of {} mutants caught", table.join("\n"), tried.len());
    if caught == tried.len() { Ok(()) } else { Err(test::Failed.into()) }
}

/// The first plan that notices. What the build made of the copy is added to `built`.
fn try_one(
    workspace: &Path,
    copy: &Path,
    mutant: &Mutant,
    built: &mut BTreeSet<PathBuf>,
) -> Result<Option<String>> {
    for part in ["Cargo.toml", "Cargo.lock", "crates", "tests", "xtask"] {
        sync(&workspace.join(part), &copy.join(part))
            .with_context(|| format!("{part} cannot be copied to {}", copy.display()))?;
    }
    let file = copy.join(mutant.file);
    let mut text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    for (from, to) in mutant.edits {
        if text.matches(from).count() != 1 {
            bail!(
                "the mutant {:?} no longer fits {}: mend its text in xtask/src/mutants.rs",
                mutant.name,
                mutant.file
            );
        }
        text = text.replace(from, to);
    }
    fs::write(&file, text)?;
    let mut cargo = run::cargo();
    // The dependencies are those of the workspace; of the copy nothing is kept that would make the next build of it faster.
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", workspace.join("target")).env("CARGO_INCREMENTAL", "0");
    protoc::tell(&mut cargo);
    cargo.args(["test", "--quiet", "--package", "quintet-faults", "--test", "faults", "--no-run"]);
    cargo.args(["--message-format", "json"]);
    let mut program = None;
    for line in run::stdout(&mut cargo).with_context(|| format!("{:?}", mutant.name))?.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let is_ours = message["manifest_path"].as_str().is_some_and(|path| Path::new(path).starts_with(copy));
        if message["reason"] != "compiler-artifact" || !is_ours {
            continue;
        }
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        built.extend(files.map(PathBuf::from));
        program = message["executable"].as_str().map(PathBuf::from).or(program);
    }
    let program = program.context("cargo does not say what it has built")?;
    let mut faults = Command::new(program);
    faults.env("CARGO_MANIFEST_DIR", copy);
    faults.args([mutant.stories, "--stop-after", "1", "--fault", mutant.fault, "--every", "1"]);
    let output = run::output(&mut faults, None)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !said.contains(" violations") {
        bail!("{:?} cannot be run: {}", mutant.name, String::from_utf8_lossy(&output.stderr).trim());
    }
    // A violation is indented below the name of its plan.
    let lines: Vec<&str> = said.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("    ")).filter(|at| *at > 0);
    Ok(at.map(|at| format!("{}: {}", lines[at - 1], lines[at].trim())))
}

/// Copies what has changed. What is gone stays: nobody builds it.
fn sync(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if name != "target" && name != "node_modules" {
                sync(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    let new = fs::read(from)?;
    if fs::read(to).ok().as_ref() != Some(&new) {
        fs::write(to, new)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_fits_the_source() {
        for mutant in MUTANTS {
            let text = fs::read_to_string(paths::workspace().join(mutant.file)).unwrap();
            for (from, _) in mutant.edits {
                assert_eq!(text.matches(from).count(), 1, "{}", mutant.name);
            }
        }
    }
}
