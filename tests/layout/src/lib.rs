//! Checks the sources of every crate: imports form no circle of more than two files, and files are short.
//!
//! An import is a path that begins with `crate`, `super` or `self` and leads to another file of the crate.
//! Paths in tests and in a crate's root, which lists the modules, do not count.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum number of lines of a file, without its tests.
const MOST_LINES: usize = 700;
/// Files that may be longer, with the reason.
const LONGER: [(&str, &str); 1] =
    [("crates/fake-apiserver/src/store.rs", "the verbs of the API server act on one store under one lock")];

/// A file's module path below the crate's root.
type Module = Vec<String>;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The `src` folders of all crates.
fn sources() -> Vec<PathBuf> {
    let parents = ["crates", "tests", "."].map(|parent| workspace().join(parent));
    let crates = parents.iter().flat_map(|parent| fs::read_dir(parent).unwrap());
    let mut sources: Vec<PathBuf> = crates.map(|one| one.unwrap().path().join("src")).collect();
    sources.push(workspace().join("tests/src"));
    sources.retain(|source| source.is_dir());
    sources
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            walk(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") && !is_test {
            files.push(path);
        }
    }
}

/// The code of a file, without comments and tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules of a crate, with the code of each.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut files = Vec::new();
    walk(source, &mut files);
    let module = |file: &PathBuf| {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        (module, code(file))
    };
    files.iter().map(module).filter(|(module, _)| !module.is_empty()).collect()
}

/// The paths in a piece of code, each as its words. Trees of `use` are expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            // `pub(in crate::…)` is not an import.
            let before = &code[..at];
            let begins = before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"_:".contains(c));
            let begins = begins && !before.ends_with("(in ");
            if begins {
                unfold(&code[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Parses a path, or a tree of paths, at the beginning of a text. Returns the number of parsed bytes.
fn unfold(text: &str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let (depth, mut at) = (before.len(), 0);
    loop {
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if word > 0 {
            before.push(rest[..word].to_owned());
            at += word;
        }
        if !text[at..].starts_with("::") {
            found.push(before.clone());
            break;
        }
        at += 2;
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += text[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(text.len() - at);
                if at >= text.len() || text[at..].starts_with('}') {
                    break;
                }
                let read = unfold(&text[at..], before, found);
                at += read.max(1);
            }
            break;
        }
        if word == 0 {
            break;
        }
    }
    before.truncate(depth);
    at
}

/// The files of the same crate that a module imports.
fn imports(module: &Module, code: &str, all: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let mut imported = BTreeSet::new();
    for path in paths(code) {
        let base = match path[0].as_str() {
            "crate" => &[][..],
            "super" => &module[..module.len() - 1],
            _ => module,
        };
        let whole: Module = base.iter().cloned().chain(path.into_iter().skip(1)).collect();
        let file =
            (1..=whole.len()).rev().map(|len| whole[..len].to_vec()).find(|file| all.contains_key(file));
        imported.extend(file.filter(|file| file != module));
    }
    imported
}

fn reachable(from: &Module, graph: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(graph[module].iter().filter(|next| seen.insert((*next).clone())));
    }
    seen
}

/// The circles of more than two files, each once.
fn circles(modules: &BTreeMap<Module, String>) -> BTreeSet<Vec<String>> {
    let graph: BTreeMap<_, _> =
        modules.iter().map(|(module, code)| (module.clone(), imports(module, code, modules))).collect();
    let reach: BTreeMap<_, _> = graph.keys().map(|module| (module, reachable(module, &graph))).collect();
    let circle = |module: &Module| -> Vec<String> {
        let with = reach[module].iter().filter(|other| reach[other].contains(module));
        with.map(|module| module.join("/")).collect()
    };
    graph.keys().map(circle).filter(|circle| circle.len() > 2).collect()
}

#[test]
fn imports_form_no_circle_of_more_than_two_files() {
    let mut found = Vec::new();
    for source in sources() {
        for circle in circles(&modules(&source)) {
            found.push(format!("{}: {}", source.display(), circle.join(", ")));
        }
    }
    assert!(found.is_empty(), "these files import each other in a circle:\n{}", found.join("\n"));
}

#[test]
fn finds_a_circle() {
    let module = |name: &str, code: &str| (vec![name.to_owned()], code.to_owned());
    let of_three = [
        module("a", "use crate::{b::{X, Y}, d};"),
        module("b", "fn f() { crate::c::g() }"),
        module("c", "use super::a::Z;"),
        module("d", ""),
    ];
    assert_eq!(circles(&of_three.into()), [["a", "b", "c"].map(str::to_owned).to_vec()].into());
    let of_two = [module("a", "use crate::b;"), module("b", "use crate::a;")];
    assert!(circles(&of_two.into()).is_empty());
}

#[test]
fn files_are_short() {
    let mut files = Vec::new();
    for source in sources() {
        walk(&source, &mut files);
    }
    // Tests are lists of cases and may be long.
    let is_test = |file: &PathBuf| {
        let tests = workspace().join("tests");
        file.starts_with(&tests) && !file.starts_with(tests.join("bench"))
    };
    files.retain(|file| !is_test(file));
    let name = |file: &Path| {
        let root = workspace().components().count();
        file.components().skip(root).collect::<PathBuf>().display().to_string()
    };
    let is_long = |file: &&PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().lines().count() > MOST_LINES
    };
    let is_allowed = |name: &String| LONGER.iter().any(|(longer, _)| longer == name);
    let long: BTreeSet<String> = files.iter().filter(is_long).map(|file| name(file)).collect();
    let unexpected: Vec<&String> = long.iter().filter(|name| !is_allowed(name)).collect();
    assert!(unexpected.is_empty(), "longer than {MOST_LINES} lines: {unexpected:?}");
}
