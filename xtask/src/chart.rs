//! `cargo xtask chart test`: tests the Helm chart without installing it.
//!
//! helm-unittest renders and checks the chart for every case of charts/quintet/tests. Each suite's post-renderer stores the
//! rendered manifests, and a real API server validates them in a dry run. promtool tests the alerting rules. The last test
//! compares config/default with the chart.

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

use crate::scratch::Scratch;
use crate::test::{Counts, FAILED, Failed, PASSED};

use manifests::Manifests;

/// The environment variable with the output folder of helm's post-renderer.
const RENDERED: &str = "RENDERED";

/// The default name and namespace of the release.
const RELEASE: [&str; 2] = ["quintet", "quintet-system"];

/// The page with a section for each alert.
const RUNBOOKS: &str = "https://github.com/quintet-operator/quintet/blob/main/docs/operations.md";

/// `cargo xtask chart`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ChartCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ChartCommand {
    /// Test the chart: its unit tests, its manifests on a real API server, its alerting rules, and its parity with
    /// kustomize
    ///
    /// The last line is "N passed, N failed". The exit code is 1 if a test failed.
    Test {
        /// Use the running cluster of this name (see `cargo xtask cluster --help`) instead of a temporary cluster. In
        /// this cluster, the tests create only CustomResourceDefinitions, namespaces, and ServiceAccounts without
        /// permissions
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

/// Runs every test of the chart, on the named cluster or on a temporary one.
pub(crate) fn counts(name: Option<&str>) -> Result<Counts> {
    let tools = Tools(binaries::ensure(&[&binaries::ALL[..], &binaries::CHART].concat())?);
    let own = Temporary::new("chart");
    let cluster = match name {
        Some(name) => Cluster::open(name)?,
        None => Cluster::up(&UpOptions { name: own.name(), nodes: Some(0) })?.0,
    };
    let mut counts = Counts::default();
    counts += case("helm lint accepts the chart", || {
        run::stdout(tools.program("helm")?.args(["lint", "--strict"]).arg(chart())).map(drop)
    })?;
    let rendered = Scratch::new("chart-rendered")?;
    counts += unittest(&tools, &rendered.0)?;
    counts += case("the API server accepts every rendered manifest", || {
        accepted(cluster.kube(), &Manifests::below(&rendered.0)?)
    })?;
    counts += case("pods meet Pod Security restricted", || restricted(&tools, cluster.kube()))?;
    counts += case("the chart rejects an old cluster", || too_old(&tools))?;
    counts += case("config/default matches the chart", || parity::holds(&tools))?;
    counts += alerts(&tools)?;
    Ok(counts)
}

/// The programs of the tests.
struct Tools(Binaries);

impl Tools {
    fn program(&self, name: &str) -> Result<Command> {
        Ok(Command::new(self.0.path(name)?))
    }

    /// The output of `helm template` with additional arguments.
    fn template(&self, args: &[&str]) -> Result<String> {
        let mut helm = self.program("helm")?;
        helm.args(["template", RELEASE[0], "--namespace", RELEASE[1]]).arg(chart());
        run::stdout(helm.args(args))
    }
}

fn chart() -> PathBuf {
    paths::workspace().join("charts/quintet")
}

/// Runs a test and prints its error. Returns an error only for an interruption.
fn case(what: &str, test: impl FnOnce() -> Result<()>) -> Result<Counts> {
    match test() {
        Ok(()) => Ok(PASSED),
        Err(error) if error.is::<interrupt::Interrupted>() => Err(error),
        Err(error) => {
            eprintln!("failed: {what}: {error:#}");
            Ok(FAILED)
        }
    }
}

/// Runs helm-unittest, which prints the failures, and counts its cases.
fn unittest(tools: &Tools, rendered: &Path) -> Result<Counts> {
    let mut unittest = tools.program("helm-unittest")?;
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

/// Counts the cases of a JUnit report.
fn junit(report: &str) -> Counts {
    let count = |tag| report.matches(tag).count() as u64;
    let failed = count("<failure ") + count("<error ");
    Counts { passed: count("<testcase ").saturating_sub(failed), failed, skipped: 0 }
}

/// The definitions of prometheus-operator for the chart's objects.
fn monitoring() -> Result<Vec<PathBuf>> {
    let folder = paths::controlplane().join("monitoring");
    let module = "github.com/prometheus-operator/prometheus-operator";
    let dir = run::go_module(&folder, module)?;
    let file =
        |name: &str| dir.join(format!("example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"));
    Ok(["servicemonitors", "podmonitors", "prometheusrules"].map(file).to_vec())
}

/// Applies every manifest in a dry run, which also rejects unknown fields.
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
    // The API server rejects a pod without its account and its runtime class.
    apply(kube, &["--server-side"], &accounts(manifests))?;
    let runtime = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "gvisor" }, "handler": "runsc" });
    apply(kube, &["--server-side"], &[runtime])?;
    let took = apply(
        kube,
        &["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"],
        manifests.all(),
    )?;
    eprintln!("the API server accepted {took} different manifests");
    Ok(())
}

/// The accounts of the pods.
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

/// Runs `kubectl apply`, which reports all rejected objects, and returns the number of objects.
fn apply(kube: &Kube, args: &[&str], objects: &[Value]) -> Result<usize> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let mut kubectl = kube.kubectl();
    let taken =
        run::stdout_with_input(kubectl.arg("apply").args(args).args(["-f", "-"]), Some(&list.to_string()))?;
    let taken = taken.lines().count();
    if taken != objects.len() {
        bail!("kubectl reported {taken} of {} objects", objects.len());
    }
    Ok(taken)
}

/// Applies every pod of the chart in a namespace that enforces Pod Security `restricted`, in a dry run.
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
        // The account of the chart does not exist here.
        pod["spec"]["serviceAccountName"] = json!("default");
        apply(kube, &["--server-side", "--dry-run=server"], &[pod])?;
        checked.insert(object["kind"].as_str().unwrap_or_default());
    }
    if checked != BTreeSet::from(["Deployment", "Job", "Pod"]) {
        bail!("expected pods of a Deployment, a Job and a Pod, got {checked:?}");
    }
    // The API server must reject another pod.
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let lax = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "lax", "namespace": namespace }, "spec": spec });
    if apply(kube, &["--server-side", "--dry-run=server"], &[lax]).is_ok() {
        bail!("the API server does not enforce Pod Security");
    }
    Ok(())
}

fn too_old(tools: &Tools) -> Result<()> {
    match tools.template(&["--kube-version", "1.32.9"]) {
        Err(error) if format!("{error:#}").contains("kubeVersion: >=1.33.0-0") => Ok(()),
        other => bail!("expected an error that names the version range, got {other:?}"),
    }
}

/// Tests the rendered alerting rules with promtool.
fn alerts(tools: &Tools) -> Result<Counts> {
    let scratch = Scratch::new("chart-alerts")?;
    let set = "metrics.prometheusRule.enabled=true,metrics.prometheusRule.renderMode=alwaysRender";
    let rendered = tools.template(&["--set", set, "--show-only", "templates/prometheusrule.yaml"])?;
    let manifests = Manifests::of(&rendered)?;
    let rules = &manifests.all().first().context("the chart renders no PrometheusRule")?["spec"];
    // JSON is YAML.
    fs::write(scratch.0.join("rules.yaml"), rules.to_string())?;
    let file = paths::workspace().join("tests/chart/alerts.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let tests: Value = serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    let promtool = |args: &str| {
        run::stdout(tools.program("promtool")?.args(args.split(' ')).current_dir(&scratch.0)).map(drop)
    };
    let mut counts =
        case("promtool accepts the alerting rules", || promtool("check rules --lint-fatal rules.yaml"))?;
    for rule in rules["groups"][0]["rules"].as_array().into_iter().flatten() {
        let Some(name) = rule["alert"].as_str() else { continue };
        counts += case(&format!("alert {name} fires only when it should"), || {
            let tests = promtool_tests(rule, &tests[name]);
            if tests.len() < 3 {
                bail!("{} has no quiet case of {name}", file.display());
            }
            let tests = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests });
            fs::write(scratch.0.join("tests.yaml"), tests.to_string())?;
            promtool("test rules tests.yaml")
        })?;
    }
    Ok(counts)
}

/// The tests of a rule for promtool: the quiet cases, the case that fires, and its series from another release. Those must not
/// raise the alert, except if it fires because this release has no series.
fn promtool_tests(rule: &Value, alert: &Value) -> Vec<Value> {
    let name = rule["alert"].as_str().unwrap_or_default();
    let runbook = format!("{RUNBOOKS}#{}", name.to_lowercase());
    let annotations =
        json!({ "summary": alert["summary"], "description": alert["description"], "runbook_url": runbook });
    let fired = json!([{ "exp_labels": alert["labels"], "exp_annotations": annotations }]);
    let quiet = json!([]);
    let is_absent = rule["expr"].as_str().is_some_and(|expr| expr.starts_with("absent("));
    let fires = [
        ("it fires", &alert["fires"], RELEASE[1], &fired),
        ("it is another release", &alert["fires"], "elsewhere", if is_absent { &fired } else { &quiet }),
    ];
    let cases = alert["quiet"].as_object().into_iter().flatten();
    let cases = cases.map(|(case, series)| (case.as_str(), series, RELEASE[1], &quiet)).chain(fires);
    let test = |(case, series, namespace, alerts): (&str, &Value, &str, &Value)| {
        let labels = |pod| format!("{{namespace=\"{namespace}\",pod=\"quintet-7d9c5b6f4-{pod}\"");
        let lines = series.as_array().into_iter().flatten().filter_map(|line| line.as_str()?.split_once(' '));
        let lines = lines.map(|(series, values)| {
            let series = series.replace("{A", &labels("aaaaa")).replace("{B", &labels("bbbbb"));
            json!({ "series": series, "values": values })
        });
        let alerts = json!([{ "eval_time": alert["at"], "alertname": name, "exp_alerts": alerts }]);
        json!({ "name": case, "interval": "1m", "input_series": lines.collect::<Vec<_>>(), "alert_rule_test": alerts })
    };
    cases.map(test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefixes of the manager's metrics. A library exports `process_*`.
    const PREFIXES: [&str; 5] =
        ["controller_runtime_", "workqueue_", "rest_client_", "leader_election_", "quintet_"];

    fn read(path: &str) -> String {
        fs::read_to_string(paths::workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The words of a text that look like metrics of the manager.
    fn metrics(text: &str) -> BTreeSet<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
            .map(|word| word.trim_end_matches("_bucket").to_owned())
            .collect()
    }

    /// Every metric of the manager, from the sources that register them.
    fn registered() -> BTreeSet<String> {
        let crates = fs::read_dir(paths::workspace().join("crates")).unwrap();
        // pulsar-client is another program.
        let of_manager = crates.map(|one| one.unwrap()).filter(|one| one.file_name() != "pulsar-client");
        let files = of_manager.flat_map(|one| {
            ["metrics.rs", "server/metrics.rs"].map(|file| one.path().join("src").join(file))
        });
        let sources: String = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
        // Only whole string literals: names of crates are parts of longer ones.
        let quoted: Vec<&str> = sources.split('"').collect();
        quoted.into_iter().filter(|text| metrics(text).contains(*text)).map(str::to_owned).collect()
    }

    #[test]
    fn alerts_and_dashboards_use_existing_metrics() {
        let registered = registered();
        assert!(registered.len() > 25, "{registered:?}");
        let mut shown = BTreeSet::new();
        for file in ["alerts.yaml", "dashboards/manager.json", "dashboards/kinds.json"] {
            let asked = metrics(&read(&format!("charts/quintet/files/{file}")));
            let unknown: Vec<_> = asked.difference(&registered).collect();
            assert!(!asked.is_empty() && unknown.is_empty(), "{file}: {unknown:?}");
            shown.extend(asked.into_iter().filter(|_| file.starts_with("dashboards/")));
        }
        let hidden: Vec<_> = registered.difference(&shown).collect();
        assert!(hidden.is_empty(), "on no dashboard: {hidden:?}");
    }

    #[test]
    fn operations_md_lists_every_metric_and_alert() {
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
        let lacks = |name: &&&str| !document.contains(&format!("\n### {name}\n"));
        assert_eq!(all.iter().find(lacks), None, "docs/operations.md has no such section");
    }

    #[test]
    fn counts_the_cases_of_a_report() {
        let report = r#"<testsuite tests="3"><testcase name="a"></testcase><testcase name="b"><failure message="Failed">
            &lt;failure </failure></testcase></testsuite><testsuite><testcase name="c"></testcase></testsuite>"#;
        assert_eq!(junit(report), Counts { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(junit(""), Counts::default());
    }
}
