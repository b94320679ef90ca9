//! Compares objects with the table of states on the page of their kind, and with the health check in samples/gitops.
//!
//! kstatus (Helm, Flux) and Argo CD's Lua interpreter are real: see `quintet_localcluster::health`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use quintet_localcluster::health::{self, Health};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::{TestEnv, condition, workspace};

/// The section of the page with the table.
const SECTION: &str = "### Health in Argo CD, Flux and Helm";
/// The ConfigMap with the health checks.
const CHECKS: &str = "samples/gitops/argo-cd-health.yaml";
/// The last columns of each table. The columns between the first one and them are conditions.
const TOOLS: [&str; 2] = ["kstatus", "Argo CD"];

/// The page of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The file in `docs`.
    pub file: &'static str,
    /// The kind, as kubectl names it.
    pub kind: &'static str,
    /// The ConfigMap key of Argo CD's health check.
    pub key: &'static str,
    /// The conditions that have a column.
    pub conditions: &'static [&'static str],
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// Reasons of Ready. Empty allows any reason.
    reasons: Vec<String>,
    /// The cells after the first.
    cells: Vec<String>,
}

impl Page {
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.conditions.iter().copied().chain(TOOLS)
    }

    /// The rows of the table by state.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        let text =
            fs::read_to_string(workspace().join("docs").join(self.file)).expect("the page can be read");
        let (_, section) = text.split_once(SECTION).expect("the page has the section");
        let section = section.split("\n#").next().unwrap_or_default();
        let mut lines = section.lines().filter(|line| line.starts_with('|'));
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let head = cells(lines.next().expect("the section has a table"));
        assert_eq!(head[1..], self.columns().collect::<Vec<_>>());
        assert!(lines.next().is_some_and(|line| line.starts_with("|---")));
        let mut rows = BTreeMap::new();
        for line in lines {
            let mut cells = cells(line);
            let first = cells.remove(0);
            let (state, reasons) = first.split_once(" (").unwrap_or((&first, ""));
            let reasons = reasons.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            assert_eq!(cells.len(), self.columns().count(), "{line}");
            assert!(rows.insert(state.to_owned(), Row { reasons, cells }).is_none(), "{state} has two rows");
        }
        rows
    }

    /// Asserts that the states of the table are exactly these.
    pub fn has_exactly(&self, states: &[&str]) {
        let rows = self.rows();
        assert_eq!(
            rows.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            states.iter().copied().collect()
        );
    }
}

/// Compares objects with the table.
pub struct Judge<'a> {
    env: &'a TestEnv,
    page: Page,
    rows: BTreeMap<String, Row>,
    script: PathBuf,
    /// The reasons of Ready that occurred, by state.
    seen: RefCell<BTreeMap<String, BTreeSet<String>>>,
}

impl<'a> Judge<'a> {
    /// Reads the page.
    pub fn new(env: &'a TestEnv, page: Page) -> Self {
        // kubectl parses the YAML, as it does for Argo CD.
        let mut kubectl = env.kube().kubectl();
        kubectl.args(["create", "--dry-run=client", "-o", "json", "-f"]).arg(workspace().join(CHECKS));
        let config = run::stdout(&mut kubectl).expect("kubectl reads the ConfigMap");
        let config: Value = serde_json::from_str(&config).expect("kubectl prints JSON");
        assert_eq!(
            (&config["kind"], &config["metadata"]["name"]),
            (&json!("ConfigMap"), &json!("argocd-cm"))
        );
        let script = env.kube().dir().join(format!("{}.lua", env.namespace()));
        let text = config["data"][page.key].as_str().expect("the ConfigMap has the health check");
        fs::write(&script, text).expect("the cluster's folder is writable");
        Self { env, page, rows: page.rows(), script, seen: RefCell::default() }
    }

    /// The health of each object.
    pub fn health(&self, objects: &[&Value]) -> Vec<Health> {
        health::of(objects, Some(&self.script)).expect("the health program runs")
    }

    /// Asserts that the object matches the row of this state, and returns its health.
    pub fn expect(&self, state: &str, object: &Value) -> Health {
        let row = self.rows.get(state).unwrap_or_else(|| panic!("the table has no row for {state:?}"));
        let health = self.health(&[object]).remove(0);
        let argo = health.argo.as_ref().expect("the health program ran the script");
        // GetResourceHealth of Argo CD does not run the script for an object that is being deleted.
        let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
        for (column, cell) in self.page.columns().zip(&row.cells) {
            let found = match column {
                "kstatus" => health.kstatus.status.clone(),
                "Argo CD" if is_deleted => "Progressing".to_owned(),
                "Argo CD" => argo.status.clone(),
                type_ => match condition(object, type_).0 {
                    absent if absent.is_empty() => "absent".to_owned(),
                    status => status,
                },
            };
            let is_any = !TOOLS.contains(&column) && (cell == "any" || cell.ends_with("as before"));
            assert!(
                is_any || *cell == found,
                "{state}: {column} must be {cell}, is {found}: {:#}",
                object["status"]
            );
        }
        let reason = condition(object, "Ready").1;
        let is_right = row.reasons.is_empty() || row.reasons.contains(&reason);
        assert!(is_right, "{state}: the reason must be one of {:?}, is {reason}", row.reasons);
        assert!(!argo.message.is_empty(), "{state}: Argo CD shows no message: {:#}", object["status"]);
        self.seen.borrow_mut().entry(state.to_owned()).or_default().insert(reason);
        health
    }

    /// Waits for an object whose status is about its spec, then asserts its state as [`Self::expect`] does.
    pub fn wait(&self, state: &str, name: &str, ready: impl Fn(&Value) -> bool) -> Value {
        let object =
            self.env.wait_for(self.page.kind, name, state, |object| is_observed(object) && ready(object));
        self.expect(state, &object);
        object
    }

    /// Waits until Ready has this reason, then asserts the state as [`Self::wait`] does.
    pub fn wait_for_reason(&self, state: &str, name: &str, reason: &str) {
        self.wait(state, name, |object| condition(object, "Ready").1 == reason);
    }

    /// Asserts that the test has produced every row of the table, each for every reason.
    pub fn end_of_table(self) {
        let rows = self.page.rows();
        self.end(&rows.keys().map(String::as_str).collect::<Vec<_>>());
    }

    /// Asserts that the test has produced these states, each for every reason in the table.
    pub fn end(self, states: &[&str]) {
        let seen = self.seen.into_inner();
        assert_eq!(
            seen.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            states.iter().copied().collect()
        );
        for (state, seen) in seen {
            let named = &self.rows[&state].reasons;
            assert!(named.iter().all(|reason| seen.contains(reason)), "{state}: {seen:?} of {named:?}");
        }
    }
}

/// Whether the status is about the current spec.
pub fn is_observed(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}
