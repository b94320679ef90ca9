//! `cargo xtask chart test`: the Helm chart, without installing it.
//!
//! helm-unittest renders the chart for every case of charts/quintet/tests and looks at what came out. What it rendered is
//! kept on the way (each suite's post-renderer does that) and shown to a real API server, which knows every field and rule
//! of what would be installed. promtool tests the alerting rules; and what kustomize installs is compared with what the
//! chart does.

mod manifests;
mod parity;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::binaries::{self, Binaries};
use quintet_localcluster::cluster::{Cluster, UpOptions};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::run::{self, print};
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{interrupt, paths};
use serde_json::{Value, json};

use crate::test::{Counts, FAILED, Failed, PASSED};

use manifests::Manifests;

/// The variable that tells the suites' post-renderer where to keep what was rendered.
const RENDERED: &str = "RENDERED";

/// The release's name and namespace where a test does not say another.
const RELEASE: [&str; 2] = ["quintet", "quintet-system"];

/// `cargo xtask chart`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ChartCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ChartCommand {
    /// Test the chart: its cases, every manifest on a real API server, the alerting rules, and kustomize beside it
    ///
    /// The last line is "N passed, N failed"; the exit code is 1 if anything failed.
    Test {
        /// Use this cluster, which is up (see `cargo xtask cluster --help`), instead of one of its own. Nothing is installed
        /// but definitions, namespaces and accounts without rights
        #[arg(long)]
        name: Option<String>,
    },
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let ChartCommand::Test { name } = &args.command;
    let counts = counts(name.as_deref())?;
    print(format!("{} passed, {} failed\n", counts.passed, counts.failed))?;
    if counts.failed > 0 { Err(Failed.into()) } else { Ok(()) }
}

/// Every test of the chart, on the cluster of this name or on one of its own.
pub(crate) fn counts(name: Option<&str>) -> Result<Counts> {
    let tools =
        Tools { binaries: binaries::ensure(&binaries::ALL)?, testers: binaries::ensure(&binaries::CHART)? };
    let own = Temporary::new("chart");
    let cluster = match name {
        Some(name) => Cluster::open(name)?,
        None => Cluster::up(&UpOptions { name: own.name(), nodes: Some(0) })?.0,
    };
    let mut counts = Counts::default();
    counts += case("helm lint takes the chart", || {
        run::stdout(tools.helm()?.args(["lint", "--strict"]).arg(chart())).map(drop)
    })?;
    let rendered = Scratch::new("rendered")?;
    counts += unittest(&tools, &rendered.0)?;
    counts += case("the API server takes every manifest that was rendered", || {
        accepted(cluster.kube(), &Manifests::below(&rendered.0)?)
    })?;
    counts += case("pods pass Pod Security restricted", || restricted(&tools, cluster.kube()))?;
    counts += case("a cluster that is too old is refused", || too_old(&tools))?;
    counts += case("kustomize installs what the chart does", || parity::holds(&tools))?;
    counts += alerts(&tools)?;
    Ok(counts)
}

/// The programs that are run.
struct Tools {
    binaries: Binaries,
    testers: Binaries,
}

impl Tools {
    fn helm(&self) -> Result<Command> {
        Ok(Command::new(self.binaries.path("helm")?))
    }

    fn kubectl(&self) -> Result<Command> {
        Ok(Command::new(self.binaries.path("kubectl")?))
    }

    fn promtool(&self) -> Result<Command> {
        Ok(Command::new(self.testers.path("promtool")?))
    }

    /// `helm template` of the chart, with further arguments.
    fn template(&self, args: &[&str]) -> Result<String> {
        run::stdout(
            self.helm()?
                .args(["template", RELEASE[0]])
                .arg(chart())
                .args(["--namespace", RELEASE[1]])
                .args(args),
        )
    }
}

fn chart() -> PathBuf {
    paths::workspace().join("charts/quintet")
}

/// One test; what it fails with is shown. Only an interruption ends the whole.
fn case(what: &str, test: impl FnOnce() -> Result<()>) -> Result<Counts> {
    match test() {
        Ok(()) => Ok(PASSED),
        Err(error) if error.is::<interrupt::Interrupted>() => Err(error),
        Err(error) => {
            eprintln!("not so: {what}: {error:#}");
            Ok(FAILED)
        }
    }
}

/// A folder that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("quintet-chart-{purpose}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs helm-unittest, which says itself what failed, and counts its cases.
fn unittest(tools: &Tools, rendered: &Path) -> Result<Counts> {
    let mut unittest = Command::new(tools.testers.path("helm-unittest")?);
    let report = rendered.with_extension("xml");
    unittest.arg("--strict").arg("--output-file").arg(&report).args(["--output-type", "JUnit"]).arg(chart());
    let child =
        unittest.env(RENDERED, rendered).stdin(Stdio::null()).spawn().context("cannot run helm-unittest");
    let status = run::wait(&mut child?, || ())?;
    let text = fs::read_to_string(&report).with_context(|| format!("cannot read {}", report.display()))?;
    let _ = fs::remove_file(&report);
    let mut counts = junit(&text);
    if !status.success() && counts.failed == 0 {
        counts += FAILED;
    }
    Ok(counts)
}

/// Adds up the suites of a JUnit report.
fn junit(report: &str) -> Counts {
    let mut counts = Counts::default();
    for suite in report.split("<testsuite ").skip(1) {
        let tag = suite.split('>').next().unwrap_or_default();
        let number = |name: &str| -> u64 {
            let value = tag.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            value.and_then(|value| value.parse().ok()).unwrap_or_default()
        };
        let failed = number("failures") + number("errors");
        counts.failed += failed;
        counts.passed += number("tests").saturating_sub(failed);
    }
    counts
}

/// What prometheus-operator defines; the chart writes objects of these kinds.
fn monitoring() -> Result<Vec<PathBuf>> {
    let folder = paths::controlplane().join("monitoring");
    let module = "github.com/prometheus-operator/prometheus-operator";
    let dir = run::go_module(&folder, module)?;
    let file =
        |name: &str| dir.join(format!("example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"));
    Ok(["servicemonitors", "podmonitors", "prometheusrules"].map(file).to_vec())
}

/// Shows every manifest to the API server: it checks them as if they were to be stored, unknown fields included.
fn accepted(kube: &Kube, manifests: &Manifests) -> Result<()> {
    for definition in monitoring()? {
        run::stdout(kube.kubectl().args(["apply", "--server-side", "-f"]).arg(definition))?;
    }
    let namespaces: Vec<Value> = manifests
        .namespaces()
        .into_iter()
        .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
        .collect();
    apply(kube, &["--server-side"], &namespaces)?;
    // A pod that names an account or a runtime class is refused without it.
    apply(kube, &["--server-side"], &accounts(manifests))?;
    let runtime = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "gvisor" }, "handler": "runsc" });
    apply(kube, &["--server-side"], &[runtime])?;
    let took = apply(
        kube,
        &["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"],
        manifests.all(),
    )?;
    eprintln!("the API server took {took} different manifests");
    Ok(())
}

/// The accounts that pods name, each once.
fn accounts(manifests: &Manifests) -> Vec<Value> {
    let pods = manifests.all().iter().filter(|object| object["kind"] == "Pod");
    let named: BTreeSet<(&str, &str)> = pods
        .filter_map(|pod| {
            Some((pod["metadata"]["namespace"].as_str()?, pod["spec"]["serviceAccountName"].as_str()?))
        })
        .collect();
    let account = |(namespace, name)| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } });
    named.into_iter().map(account).collect()
}

/// `kubectl apply`; how many objects it took. It goes on after those that are refused, and names them at the end.
fn apply(kube: &Kube, args: &[&str], objects: &[Value]) -> Result<usize> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let mut kubectl = kube.kubectl();
    let taken =
        run::stdout_with_input(kubectl.arg("apply").args(args).args(["-f", "-"]), Some(&list.to_string()))?;
    let taken = taken.lines().count();
    if taken != objects.len() {
        bail!("{taken} of {} objects were answered", objects.len());
    }
    Ok(taken)
}

/// Every pod that the chart makes, in a namespace that enforces Pod Security `restricted`.
fn restricted(tools: &Tools, kube: &Kube) -> Result<()> {
    let namespace = "pod-security-restricted";
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": labels } });
    apply(kube, &["--server-side"], &[object])?;
    let manifests = Manifests::of(&tools.template(&[])?)?;
    let mut checked = BTreeSet::new();
    for object in manifests.all() {
        let template = match object["kind"].as_str() {
            Some("Pod") => object,
            Some("Deployment" | "Job") => &object["spec"]["template"],
            _ => continue,
        };
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "spec": template["spec"] });
        pod["metadata"] = json!({ "name": object["metadata"]["name"], "namespace": namespace });
        // No such account is there.
        pod["spec"]["serviceAccountName"] = json!("default");
        apply(kube, &["--server-side", "--dry-run=server"], &[pod])?;
        checked.insert(object["kind"].as_str().unwrap_or_default());
    }
    if checked != BTreeSet::from(["Deployment", "Job", "Pod"]) {
        bail!("pods of {checked:?} alone were found");
    }
    // And it is enforced.
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let lax = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "lax", "namespace": namespace }, "spec": spec });
    if apply(kube, &["--server-side", "--dry-run=server"], &[lax]).is_ok() {
        bail!("the API server enforces nothing");
    }
    Ok(())
}

fn too_old(tools: &Tools) -> Result<()> {
    let Err(error) = tools.template(&["--kube-version", "1.32.9"]) else {
        bail!("Kubernetes 1.32.9 is taken")
    };
    let said = format!("{error:#}");
    if !said.contains("kubeVersion: >=1.33.0-0") {
        bail!("it is not said why: {said}");
    }
    Ok(())
}

/// The alerting rules as they are installed, tested by promtool with made-up samples.
fn alerts(tools: &Tools) -> Result<Counts> {
    let folder = paths::workspace().join("tests/chart/alerts");
    let scratch = Scratch::new("alerts")?;
    let set = "metrics.prometheusRule.enabled=true,metrics.prometheusRule.renderMode=alwaysRender";
    let rendered = tools.template(&["--set", set, "--show-only", "templates/prometheusrule.yaml"])?;
    let manifests = Manifests::of(&rendered)?;
    let rule = manifests.all().first().context("no PrometheusRule is rendered")?;
    // JSON is YAML.
    fs::write(scratch.0.join("rules.yaml"), rule["spec"].to_string())?;
    let mut names = BTreeSet::new();
    for each in rule["spec"]["groups"][0]["rules"].as_array().into_iter().flatten() {
        names.extend(each["alert"].as_str().map(str::to_owned));
    }
    let mut counts = Counts::default();
    counts += case("promtool takes the alerting rules", || {
        run::stdout(
            tools.promtool()?.args(["check", "rules", "--lint-fatal"]).arg(scratch.0.join("rules.yaml")),
        )
        .map(drop)
    })?;
    for name in &names {
        counts += case(&format!("alert {name} fires when it should, and then alone"), || {
            let file = folder.join(format!("{name}.yaml"));
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            if text.matches("exp_alerts: []").count() == 0 || !text.contains("exp_labels") {
                bail!("{} has no case in which it fires, or none in which it does not", file.display());
            }
            let copy = scratch.0.join(format!("{name}.yaml"));
            fs::write(&copy, text)?;
            run::stdout(tools.promtool()?.args(["test", "rules"]).arg(&copy)).map(drop)
        })?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What begins so is a metric of the manager's; `process_*` come from the library.
    const PREFIXES: [&str; 5] =
        ["controller_runtime_", "workqueue_", "rest_client_", "leader_election_", "quintet_"];

    fn read(path: &str) -> String {
        fs::read_to_string(paths::workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The words of a text that look like metrics of the manager's.
    fn metrics(text: &str) -> BTreeSet<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
            .map(|word| word.trim_end_matches("_bucket").to_owned())
            .collect()
    }

    /// Every metric that the manager has, from where they are registered.
    fn registered() -> BTreeSet<String> {
        let crates = fs::read_dir(paths::workspace().join("crates")).unwrap();
        // That one is another program.
        let of_manager = crates.map(|one| one.unwrap()).filter(|one| one.file_name() != "pulsar-client");
        let files = of_manager.flat_map(|one| {
            ["metrics.rs", "server/metrics.rs"].map(|file| one.path().join("src").join(file))
        });
        let sources: String = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
        // Those that stand alone in quotation marks; the crates' own names do not.
        let quoted: Vec<&str> = sources.split('"').collect();
        quoted.into_iter().filter(|text| metrics(text).contains(*text)).map(str::to_owned).collect()
    }

    #[test]
    fn alerts_and_dashboards_ask_for_metrics_that_there_are() {
        let registered = registered();
        assert!(registered.len() > 25, "{registered:?}");
        for file in ["alerts.yaml", "dashboards/manager.json", "dashboards/kinds.json"] {
            let asked = metrics(&read(&format!("charts/quintet/files/{file}")));
            let unknown: Vec<_> = asked.difference(&registered).collect();
            assert!(!asked.is_empty() && unknown.is_empty(), "{file}: {unknown:?}");
        }
        let shown: BTreeSet<String> = ["manager", "kinds"]
            .iter()
            .flat_map(|name| metrics(&read(&format!("charts/quintet/files/dashboards/{name}.json"))))
            .collect();
        let hidden: Vec<_> = registered.difference(&shown).collect();
        assert!(hidden.is_empty(), "on no dashboard: {hidden:?}");
    }

    #[test]
    fn every_metric_and_every_alert_is_in_the_document() {
        let document = read("docs/operations.md");
        let untold: Vec<String> = registered().difference(&metrics(&document)).cloned().collect();
        assert!(untold.is_empty(), "{untold:?}");
        let alerts: Value = serde_saphyr::from_str(&read("charts/quintet/files/alerts.yaml")).unwrap();
        let schema: Value = serde_json::from_str(&read("charts/quintet/values.schema.json")).unwrap();
        let disabled = "/properties/metrics/properties/prometheusRule/properties/disabled/items/enum";
        let known: BTreeSet<&str> =
            schema.pointer(disabled).unwrap().as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let all: BTreeSet<&str> =
            alerts["alerts"].as_array().unwrap().iter().filter_map(|alert| alert["alert"].as_str()).collect();
        assert_eq!(known, all, "values.schema.json: what may be disabled");
        for alert in alerts["alerts"].as_array().unwrap() {
            let name = alert["alert"].as_str().unwrap();
            assert!(
                document.contains(&format!("\n### {name}\n")),
                "docs/operations.md has no section {name}"
            );
        }
    }

    #[test]
    fn suites_of_a_report_are_added_up() {
        let report = r#"<testsuites><testsuite name="a" tests="3" failures="1" errors="0"></testsuite>
            <testsuite tests="2" failures="0" errors="0" name="b"></testsuite></testsuites>"#;
        assert_eq!(junit(report), Counts { passed: 4, failed: 1, skipped: 0 });
        assert_eq!(junit(""), Counts::default());
    }
}
