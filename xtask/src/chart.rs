//! `cargo xtask chart test`: tests the Helm chart without installing it.
//!
//! helm-unittest renders and checks the chart for every case of charts/quintet/tests. Each suite's post-renderer stores the
//! rendered manifests, and a real API server validates them in a dry run. promtool tests the alerting rules. The last test
//! compares config/default with the chart.

mod gitops;
mod manifests;
mod openshift;
mod parity;
mod releases;

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

/// The page with a section for each alert, of this version.
const RUNBOOKS: &str = concat!(
    "https://github.com/quintet-operator/quintet/blob/v",
    env!("CARGO_PKG_VERSION"),
    "/docs/alerts.md"
);

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
        None => Cluster::up(&UpOptions { name: own.name(), nodes: Some(0), ..UpOptions::default() })?.0,
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
    counts += case("releases of one name share nothing", || releases::differ(&tools))?;
    counts += case("no release has the name of a part of another release", || {
        releases::reject_names_of_parts(&tools)
    })?;
    counts += case("a parent chart can disable the chart", || releases::parent_decides(&tools))?;
    counts += case("pods meet OpenShift's restricted-v2", || openshift::restricted(&tools))?;
    counts += case("samples/gitops installs the chart", || gitops::install_the_chart(&tools))?;
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
        self.render(&chart(), RELEASE[1], args)
    }

    /// The output of `helm template` for a chart and a namespace.
    fn render(&self, chart: &Path, namespace: &str, args: &[&str]) -> Result<String> {
        let mut helm = self.program("helm")?;
        helm.args(["template", RELEASE[0], "--namespace", namespace]).arg(chart);
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
    for (kind, template) in pods(&manifests) {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "spec": template["spec"] });
        pod["metadata"] = json!({ "name": kind.to_lowercase(), "namespace": namespace });
        // The account of the chart does not exist here.
        pod["spec"]["serviceAccountName"] = json!("default");
        apply(kube, &["--server-side", "--dry-run=server"], &[pod])?;
        checked.insert(kind);
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

/// The kinds of the objects that have pods, and the pods or their templates.
fn pods(manifests: &Manifests) -> impl Iterator<Item = (&str, &Value)> {
    manifests.all().iter().filter_map(|object| match object["kind"].as_str()? {
        kind @ "Pod" => Some((kind, object)),
        kind @ ("Deployment" | "Job") => Some((kind, &object["spec"]["template"])),
        _ => None,
    })
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
    // The chart omits the alert about the certificate unless it has one.
    let set = "metrics.prometheusRule.enabled=true,metrics.prometheusRule.renderMode=alwaysRender,\
               metrics.secure=true,metrics.certSecret=metrics";
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
    let rules = rules["groups"][0]["rules"].as_array().context("the PrometheusRule has no rules")?;
    counts += case("every tested alert is rendered", || {
        let rendered: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["alert"].as_str()).collect();
        let tested = tests.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let unknown: Vec<_> = tested.filter(|name| !rendered.contains(name)).collect();
        if unknown.is_empty() { Ok(()) } else { bail!("the chart renders no alert {}", unknown.join(", ")) }
    })?;
    for rule in rules {
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

/// The tests of a rule for promtool: the quiet cases, the cases that fire, and the first of these from another release. That
/// one must not raise the alert, except if the alert fires because this release has no series.
fn promtool_tests(rule: &Value, alert: &Value) -> Vec<Value> {
    let name = rule["alert"].as_str().unwrap_or_default();
    let fired = |case: &Value| {
        let own = |key: &str| case.get(key).unwrap_or(&alert[key]);
        let annotations = json!({ "summary": own("summary"), "description": own("description"),
            "runbook_url": format!("{RUNBOOKS}#{}", name.to_lowercase()) });
        json!([{ "exp_labels": own("labels"), "exp_annotations": annotations }])
    };
    let test = |case: &str, series: &Value, namespace: &str, alerts: Value| {
        let lines = series.as_array().into_iter().flatten().filter_map(Value::as_str);
        let series: Vec<Value> = lines.filter_map(|line| input(line, namespace)).collect();
        let alerts = json!([{ "eval_time": alert["at"], "alertname": name, "exp_alerts": alerts }]);
        json!({ "name": case, "interval": "1m", "input_series": series, "alert_rule_test": alerts })
    };
    let cases = |key: &str| alert[key].as_object().into_iter().flatten();
    let is_absent = rule["expr"].as_str().is_some_and(|expr| expr.starts_with("absent("));
    let elsewhere = if is_absent { fired(alert) } else { json!([]) };
    let mut tests: Vec<Value> =
        cases("quiet").map(|(case, series)| test(case, series, RELEASE[1], json!([]))).collect();
    tests.push(test("it fires", &alert["fires"], RELEASE[1], fired(alert)));
    tests.push(test("it is another release", &alert["fires"], "elsewhere", elsewhere));
    tests.extend(cases("also_fires").map(|(case, one)| test(case, &one["series"], RELEASE[1], fired(one))));
    tests
}

/// A line of the tests as promtool reads it, for a release in this namespace: see tests/chart/alerts.yaml.
fn input(line: &str, namespace: &str) -> Option<Value> {
    let (series, values) = line.split_once(' ')?;
    let series = match series.strip_prefix("OBJECT").and_then(|object| object.split_once('{')) {
        Some((number, labels)) => {
            let object = format!("exported_namespace=\"shop\",name=\"web{number}\"");
            format!("quintet_object_problem_seconds{{{},{object}}}", labels.trim_end_matches('}'))
        }
        None => series.to_owned(),
    };
    let labels = |namespace, pod| format!("{{namespace=\"{namespace}\",pod=\"quintet-7d9c5b6f4-{pod}\"");
    let pods = [("{A", namespace, "aaaaa"), ("{B", namespace, "bbbbb"), ("{OTHER", "other-system", "ccccc")];
    let series = pods
        .iter()
        .fold(series, |series, (word, namespace, pod)| series.replace(word, &labels(namespace, pod)));
    Some(json!({ "series": series, "values": values }))
}

#[cfg(test)]
mod tests {
    use quintet_localcluster::documents;

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
    fn operations_md_lists_every_metric() {
        let document = read("docs/operations.md");
        let missing: Vec<String> = registered().difference(&metrics(&document)).cloned().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// The names of all alerts.
    fn names_of_alerts() -> BTreeSet<String> {
        let alerts: Value = serde_saphyr::from_str(&read("charts/quintet/files/alerts.yaml")).unwrap();
        let all = alerts["alerts"].as_array().unwrap().iter();
        all.map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn values_can_disable_every_alert() {
        let schema: Value = serde_json::from_str(&read("charts/quintet/values.schema.json")).unwrap();
        let disabled = "/properties/metrics/properties/prometheusRule/properties/disabled/items/enum";
        let known = schema.pointer(disabled).unwrap().as_array().unwrap().iter();
        let known: BTreeSet<String> = known.map(|name| name.as_str().unwrap().to_owned()).collect();
        assert_eq!(known, names_of_alerts());
    }

    /// Every alert has a runbook with its meaning, commands that show more, and the fix. Other tests run the commands of the
    /// blocks.
    #[test]
    fn every_alert_has_a_runbook_with_commands() {
        let document = read("docs/alerts.md");
        let sections = document.split("\n### ").skip(1).map(|text| text.split_once('\n').unwrap());
        let sections: Vec<(&str, &str)> = sections.filter(|(name, _)| name.starts_with("Quintet")).collect();
        let names: BTreeSet<String> = sections.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names, names_of_alerts());
        for (name, text) in sections {
            let text = text.split("\n## ").next().unwrap();
            let parts: Vec<&str> = text.split("\n*").skip(1).collect();
            let begin: Vec<&str> = parts.iter().map(|part| part.split('*').next().unwrap()).collect();
            assert_eq!(begin, ["Means", "Check", "Fix"], "{name}");
            assert!(parts[1].contains("\n```sh\n"), "{name}: Check has no command");
            // A command within a sentence runs in no test.
            let sentences = text.split("\n```").step_by(2);
            let spans = sentences.flat_map(|part| part.split('`').skip(1).step_by(2));
            let is_command = |span: &&str| {
                ["helm ", "kubectl ", "quintet "].iter().any(|program| span.starts_with(program))
                    && [" -n ", " --namespace "].iter().any(|flag| span.contains(flag))
            };
            let hidden: Vec<&str> = spans.filter(is_command).collect();
            assert_eq!(hidden, Vec::<&str>::new(), "{name}");
        }
    }

    fn source(folder: &Path) -> String {
        let text = |path: PathBuf| {
            if path.is_dir() { source(&path) } else { fs::read_to_string(path).unwrap() }
        };
        fs::read_dir(folder).unwrap().map(|entry| text(entry.unwrap().path())).collect()
    }

    /// In the tests of the commands, grep may find nothing.
    #[test]
    fn runbooks_search_the_log_for_phrases_that_the_manager_logs() {
        let source = source(&paths::workspace().join("crates/runtime/src"));
        let commands = documents::commands(&paths::workspace().join("docs/alerts.md"));
        let searches = commands.iter().filter(|command| command.starts_with("kubectl logs "));
        let searches = searches.filter_map(|command| command.split_once(" | grep "));
        let phrases: BTreeSet<&str> =
            searches.flat_map(|(_, search)| search.split('\'').skip(1).step_by(2)).collect();
        assert!(phrases.contains("reconcile failed"), "{phrases:?}");
        for phrase in phrases {
            let is_logged = |line: &str| line.split('"').skip(1).step_by(2).any(|text| text.contains(phrase));
            assert!(source.lines().any(is_logged), "the manager never logs {phrase:?}");
        }
    }

    #[test]
    fn counts_the_cases_of_a_report() {
        let report = r#"<testsuite tests="3"><testcase name="a"></testcase><testcase name="b"><failure message="Failed">
            &lt;failure </failure></testcase></testsuite><testsuite><testcase name="c"></testcase></testsuite>"#;
        assert_eq!(junit(report), Counts { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(junit(""), Counts::default());
    }
}
