//! The crates of a program and their dependencies, as resolved by cargo.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::{paths, run};

/// A crate, as `cargo tree` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// An SPDX expression; empty if the crate states none.
    pub licence: String,
    /// The URL of the source; empty if the crate states none.
    pub repository: String,
}

impl Crate {
    /// The package URL, which also identifies the crate in a [`Graph`].
    pub fn purl(&self) -> String {
        // A version's build metadata begins with a plus sign.
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

/// The dependencies between crates, by package URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The program's package.
    pub root: String,
    /// The crates.
    pub crates: BTreeMap<String, Crate>,
    /// The direct dependencies of each crate.
    pub depends_on: BTreeMap<String, BTreeSet<String>>,
}

/// The edges of crates that are linked into a program: no build scripts, no macros.
pub const LINKED: &str = "normal,no-proc-macro";

impl Graph {
    /// The crates of a package along `edges`, with the features that the package is built with for a Rust target.
    pub fn of(package: &str, target: &str, edges: &str) -> Result<Self> {
        let mut cargo = run::cargo();
        cargo
            .args(["tree", "--locked", "--package", package, "--edges", edges])
            .args(["--target", target, "--prefix", "depth", "--format", "{p}\t{l}\t{r}"])
            .current_dir(paths::workspace());
        Self::parse(&run::stdout(&mut cargo)?)
    }

    /// Parses `cargo tree`: a line begins with its depth; `(*)` marks dependencies that were shown before.
    pub fn parse(tree: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut above: Vec<String> = Vec::new();
        for line in tree.lines() {
            let (one, depth) =
                parse(line).with_context(|| format!("unexpected output of cargo tree: {line}"))?;
            let purl = one.purl();
            above.truncate(depth);
            match above.last() {
                Some(parent) => {
                    graph.depends_on.entry(parent.clone()).or_default().insert(purl.clone());
                }
                None => graph.root.clone_from(&purl),
            }
            graph.depends_on.entry(purl.clone()).or_default();
            above.push(purl.clone());
            graph.crates.insert(purl, one);
        }
        Ok(graph)
    }
}

fn parse(line: &str) -> Option<(Crate, usize)> {
    let line = line.strip_suffix(" (*)").unwrap_or(line);
    let digits = line.find(|c: char| !c.is_ascii_digit())?;
    let (depth, rest) = line.split_at(digits);
    let mut columns = rest.split('\t');
    // The path, or `(proc-macro)`, may follow.
    let mut words = columns.next()?.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let mut text = || columns.next().unwrap_or_default();
    // A slash is the old separator of licences.
    let licence = text().replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ");
    let repository = text().trim().to_owned();
    Some((
        Crate { name: name.to_owned(), version: version.to_owned(), licence, repository },
        depth.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0quintet v0.1.0 (/code/crates/manager)\tApache-2.0\thttps://example.com/quintet\n\
        1anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow\n\
        1kit v0.1.0 (/code/crates/runtime)\tApache-2.0\t\n\
        2anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow (*)\n\
        2zlib v1.0.0+1.2\tZlib\t\n\
        1zlib v2.0.0\tMIT  AND  Zlib\t\n";

    #[test]
    fn derives_dependencies_from_the_depths() {
        let graph = Graph::parse(TREE).unwrap();
        assert_eq!(graph.root, "pkg:cargo/quintet@0.1.0");
        let on = |name: &str| graph.depends_on[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(
            on("pkg:cargo/quintet@0.1.0"),
            ["pkg:cargo/anyhow@1.0.1", "pkg:cargo/kit@0.1.0", "pkg:cargo/zlib@2.0.0"]
        );
        assert_eq!(on("pkg:cargo/kit@0.1.0"), ["pkg:cargo/anyhow@1.0.1", "pkg:cargo/zlib@1.0.0%2B1.2"]);
        assert_eq!(on("pkg:cargo/anyhow@1.0.1"), [""; 0]);
        assert_eq!(graph.crates["pkg:cargo/anyhow@1.0.1"].licence, "MIT OR Apache-2.0");
        assert!(Graph::parse("not a tree").is_err());
    }
}
