//! Checks the licences and duplicate versions of the crates in the shipped programs against `deny.toml`.
//!
//! `cargo deny check` uses the same file and checks more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use quintet_localcluster::image::crates::{Crate, Graph};
use quintet_localcluster::paths;
use serde::Deserialize;

/// The dependency edges that end up in a build.
const BUILT_WITH: &str = "normal,build";

/// The parts of `deny.toml` that this check uses.
#[derive(Debug, Deserialize)]
struct Policy {
    graph: Built,
    licenses: Licences,
    bans: Bans,
}

#[derive(Debug, Default, Deserialize)]
struct Built {
    /// The Rust targets of the programs.
    targets: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

/// A version that may exist in addition to another one.
#[derive(Debug, Deserialize)]
struct Skip {
    /// The crate's name, `@`, and the start of the version.
    #[serde(rename = "crate")]
    name: String,
}

impl Skip {
    fn covers(&self, one: &Crate) -> bool {
        self.name.split_once('@').is_some_and(|(name, version)| {
            let rest = one.version.strip_prefix(version);
            name == one.name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

impl Policy {
    fn read() -> Result<Self> {
        let file = paths::workspace().join("deny.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        toml::from_str(&text).context("deny.toml is not valid")
    }

    /// The violations, one sentence each.
    fn objections(&self, graph: &Graph) -> Vec<String> {
        let mut objections = Vec::new();
        let mut versions: BTreeMap<&str, Vec<&Crate>> = BTreeMap::new();
        for one in graph.crates.values() {
            versions.entry(&one.name).or_default().push(one);
            if !self.allows(&one.licence) {
                objections.push(format!(
                    "deny.toml does not allow the licence {:?} of {} {}",
                    one.licence, one.name, one.version
                ));
            }
        }
        for (name, several) in versions {
            let left =
                several.iter().filter(|one| !self.bans.skip.iter().any(|skip| skip.covers(one))).count();
            if several.len() > 1 && left > 1 {
                let versions: Vec<&str> = several.iter().map(|one| one.version.as_str()).collect();
                objections.push(format!(
                    "{name} has the versions {}: remove one, or add it to deny.toml with a reason",
                    versions.join(" and ")
                ));
            }
        }
        objections
    }

    fn allows(&self, licence: &str) -> bool {
        spdx::Expression::parse(licence).is_ok_and(|expression| {
            expression.evaluate(|required| self.licenses.allow.contains(&required.to_string()))
        })
    }
}

/// Checks all crates of these packages, for each target of `deny.toml`.
pub(crate) fn objections(packages: &[&str]) -> Result<Vec<String>> {
    let policy = Policy::read()?;
    let mut all = BTreeSet::new();
    for package in packages {
        for target in &policy.graph.targets {
            all.extend(policy.objections(&Graph::of(package, target, BUILT_WITH)?));
        }
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_localcluster::build::Arch;

    const TREE: &str = "0quintet v0.1.0 (/code/crates/manager)\tApache-2.0\thttps://example.com/quintet\n\
        1anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow\n\
        1kit v0.1.0 (/code/crates/runtime)\tApache-2.0\t\n\
        2anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow (*)\n\
        2zlib v1.0.0+1.2\tZlib\t\n\
        1zlib v2.0.0\tMIT  AND  Zlib\t\n";

    fn policy(allow: &[&str], skip: &[&str]) -> Policy {
        let allow = allow.iter().map(|&one| one.to_owned()).collect();
        let skip = skip.iter().map(|&one| Skip { name: one.to_owned() }).collect();
        Policy { graph: Built::default(), licenses: Licences { allow }, bans: Bans { skip } }
    }

    #[test]
    fn needs_one_allowed_alternative_of_a_licence() {
        let graph = Graph::parse(TREE).unwrap();
        let skip = ["zlib@1"];
        assert_eq!(policy(&["Apache-2.0", "Zlib", "MIT"], &skip).objections(&graph), [""; 0]);
        assert_eq!(
            policy(&["Apache-2.0", "Zlib"], &skip).objections(&graph),
            ["deny.toml does not allow the licence \"MIT AND Zlib\" of zlib 2.0.0"]
        );
        let nameless = Graph::parse("0a v1.0.0\t\t\n").unwrap();
        assert_eq!(
            policy(&["MIT"], &[]).objections(&nameless),
            ["deny.toml does not allow the licence \"\" of a 1.0.0"]
        );
    }

    #[test]
    fn a_crate_in_two_versions_needs_a_reason() {
        let graph = Graph::parse(TREE).unwrap();
        let allow = ["Apache-2.0", "Zlib", "MIT"];
        let objections = policy(&allow, &["zlib@1.1", "zlib@3"]).objections(&graph);
        assert_eq!(
            objections,
            ["zlib has the versions 1.0.0+1.2 and 2.0.0: remove one, or add it to deny.toml with a reason"]
        );
        assert_eq!(policy(&allow, &["zlib@2.0"]).objections(&graph), [""; 0]);
    }

    #[test]
    fn deny_toml_allows_the_shipped_crates() {
        let objections = objections(&["quintet", "quintet-pulsar-client"]).unwrap();
        assert_eq!(objections, [""; 0]);
    }

    #[test]
    fn deny_toml_has_the_targets_of_a_release() {
        let linux = Arch::ALL.map(|arch| arch.target().to_owned());
        let darwin = linux.clone().map(|target| target.replace("unknown-linux-gnu", "apple-darwin"));
        let targets: BTreeSet<String> = linux.into_iter().chain(darwin).collect();
        assert_eq!(Policy::read().unwrap().graph.targets, targets);
    }
}
