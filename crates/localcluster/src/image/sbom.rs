//! The software bill of materials of a program in CycloneDX 1.6, for checks of vulnerabilities and licences.
//!
//! It lists the crates that are linked into the program, without those for build or test, with the checksums
//! of Cargo.lock. It also lists Rust's library and the C library, which every static program contains.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::crates::{Crate, Graph, LINKED};
use crate::build::Arch;
use crate::{paths, run};

/// A part of the program that is not a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Library {
    name: &'static str,
    version: String,
    licence: &'static str,
}

impl Library {
    fn purl(&self) -> String {
        format!("pkg:generic/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

pub(super) fn of(package: &str, program: &str, arch: Arch, created: Timestamp) -> Result<Vec<u8>> {
    let graph = Graph::of(package, arch.target(), LINKED)?;
    let lock = paths::workspace().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let bill = bill(&graph, program, &checksums(&lock), &libraries(arch)?, created)?;
    let mut text = serde_json::to_vec_pretty(&bill).context("cannot write JSON")?;
    text.push(b'\n');
    Ok(text)
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let packages = lock.split("[[package]]").skip(1);
    let field = |package: &str, key: &str| {
        let mut values = package.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        values.next().map(|value| value.trim_matches('"').to_owned())
    };
    packages
        .filter_map(|package| {
            Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?))
        })
        .collect()
}

/// The libraries that are linked besides crates.
fn libraries(arch: Arch) -> Result<Vec<Library>> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = run::stdout(Command::new(rustc).arg("--version").current_dir(paths::workspace()))?;
    let rust = rustc.split(' ').nth(1).context("rustc does not print its version")?;
    let mut libraries =
        vec![Library { name: "rust-std", version: rust.to_owned(), licence: "MIT OR Apache-2.0" }];
    // The C library of the linker, which may differ from the system's.
    let glibc = run::stdout(Command::new(arch.c_compiler()).args(["-print-file-name=libc.a"]))
        .ok()
        .and_then(|path| fs::read(path.trim()).ok())
        .and_then(|archive| glibc_version(&archive));
    if let Some(version) = glibc {
        libraries.push(Library { name: "glibc", version, licence: "LGPL-2.1-or-later" });
    }
    Ok(libraries)
}

/// The version in a C library: `GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.`
fn glibc_version(archive: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"release version ";
    let at = archive.windows(BEFORE.len()).position(|window| window == BEFORE)?;
    let rest = &archive[at + BEFORE.len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let version = std::str::from_utf8(&rest[..end]).ok()?.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

fn bill(
    graph: &Graph,
    program: &str,
    checksums: &BTreeMap<(String, String), String>,
    libraries: &[Library],
    created: Timestamp,
) -> Result<Value> {
    let root = graph.crates.get(&graph.root).context("cargo tree printed nothing")?;
    let component = |one: &Crate, kind: &str, name: &str| {
        let mut component = json!({
            "type": kind, "bom-ref": one.purl(), "name": name, "version": one.version, "purl": one.purl(),
        });
        if !one.licence.is_empty() {
            component["licenses"] = json!([{ "expression": one.licence }]);
        }
        if let Some(checksum) = checksums.get(&(one.name.clone(), one.version.clone())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if !one.repository.is_empty() {
            component["externalReferences"] = json!([{ "type": "vcs", "url": one.repository }]);
        }
        component
    };
    let mut components: Vec<Value> = graph
        .crates
        .iter()
        .filter(|(reference, _)| **reference != graph.root)
        .map(|(_, one)| component(one, "library", &one.name))
        .collect();
    components.extend(libraries.iter().map(|library| {
        json!({
            "type": "library", "bom-ref": library.purl(), "name": library.name, "version": library.version,
            "purl": library.purl(), "licenses": [{ "expression": library.licence }],
        })
    }));
    let dependencies: Vec<Value> = graph
        .depends_on
        .iter()
        .map(|(reference, on)| {
            let linked = libraries.iter().map(Library::purl).filter(|_| *reference == graph.root);
            let on: Vec<String> = on.iter().cloned().chain(linked).collect();
            json!({ "ref": reference, "dependsOn": on })
        })
        .collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created.to_string(),
            "component": component(root, "application", program),
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0quintet v0.1.0 (/code/crates/manager)\tApache-2.0\thttps://example.com/quintet\n\
        1anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow\n\
        1kit v0.1.0 (/code/crates/runtime)\tApache-2.0\t\n\
        2anyhow v1.0.1\tMIT/Apache-2.0\thttps://example.com/anyhow (*)\n\
        2zlib v1.0.0+1.2\tZlib\t\n\
        1zlib v1.0.0+1.2\tZlib\t\n";

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"anyhow\"\nversion = \"1.0.1\"\nsource = \"registry\"\n\
        checksum = \"abc\"\n\n[[package]]\nname = \"kit\"\nversion = \"0.1.0\"\ndependencies = [\n \"anyhow\",\n]\n";

    #[test]
    fn a_bill_lists_each_crate_once_with_its_checksum() {
        let glibc = Library { name: "glibc", version: "2.36".to_owned(), licence: "LGPL-2.1-or-later" };
        let created = "2026-01-02T03:04:05Z".parse().unwrap();
        let bill =
            bill(&Graph::parse(TREE).unwrap(), "quintet", &checksums(LOCK), &[glibc], created).unwrap();
        assert_eq!(bill["metadata"]["component"]["purl"], "pkg:cargo/quintet@0.1.0");
        let names: Vec<_> = bill["components"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["anyhow", "kit", "zlib", "glibc"]);
        let anyhow = &bill["components"][0];
        assert_eq!(anyhow["licenses"], json!([{ "expression": "MIT OR Apache-2.0" }]));
        assert_eq!(anyhow["hashes"], json!([{ "alg": "SHA-256", "content": "abc" }]));
        assert_eq!(bill["components"][1].get("hashes"), None);
        let on = bill["dependencies"].as_array().unwrap();
        let root = on.iter().find(|one| one["ref"] == "pkg:cargo/quintet@0.1.0").unwrap();
        assert_eq!(root["dependsOn"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn reads_the_version_of_a_c_library() {
        let text = b"\0GNU C Library (GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(glibc_version(text).as_deref(), Some("2.36"));
        assert_eq!(glibc_version(b"something else"), None);
    }
}
