//! Several releases in one cluster, and the chart as a part of a parent chart.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use quintet_localcluster::run;
use serde_json::Value;

use super::manifests::Manifests;
use super::{RELEASE, Scratch, Tools, chart};

/// Values that create every cluster-scoped object, and objects in a namespace that both releases use.
const FEATURES: [&str; 11] = [
    "metrics.secure=true,metrics.readers[0].kind=User,metrics.readers[0].name=prometheus",
    "metrics.dashboards.enabled=true,metrics.dashboards.namespace=monitoring",
    "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.renderMode=alwaysRender",
    "metrics.serviceMonitor.namespace=monitoring",
    "metrics.podMonitor.enabled=true,metrics.podMonitor.renderMode=alwaysRender,metrics.podMonitor.namespace=monitoring",
    "metrics.podMonitor.authorization.credentials.name=token",
    "metrics.prometheusRule.enabled=true,metrics.prometheusRule.renderMode=alwaysRender",
    "metrics.prometheusRule.namespace=monitoring,networkPolicy.enabled=true,networkPolicy.egress.enabled=true",
    "leaderElection.namespace=leases",
    "guardRails.enabled=true,guardRails.tenants.serviceAccounts=true,guardRails.tenants.hostAccess=true",
    "guardRails.tenants.urlHosts[0]=broker.pulsar.svc",
];

/// Two releases of the same name have no object, and no dashboard, in common.
pub(super) fn differ(tools: &Tools) -> Result<()> {
    let features = FEATURES.join(",");
    for watched in [false, true] {
        let release = |namespace: &str, more: &str| {
            let scope = if watched { format!(",watchNamespaces={{{namespace}}}") } else { String::new() };
            let set = format!("{features}{more}{scope}");
            let rendered = tools.render(&chart(), namespace, &["--set", &set])?;
            identities(&Manifests::of(&rendered)?)
        };
        let first = release("team-a", "")?;
        // One release of a cluster contains the definitions.
        let second = release("team-b", ",crds.enabled=false")?;
        for expected in [
            "ClusterRole ",
            "ClusterRoleBinding ",
            "Role leases/",
            "RoleBinding leases/",
            "ServiceMonitor monitoring/",
            "ValidatingAdmissionPolicy /quintet-templates.",
            "ValidatingAdmissionPolicyBinding /quintet-urls.",
            "uid ",
            "title ",
            "file ",
        ] {
            let has = |release: &BTreeSet<String>| release.iter().any(|one| one.starts_with(expected));
            ensure!(has(&first) && has(&second), "the chart renders no {expected}");
        }
        let shared: Vec<&str> = first.intersection(&second).map(String::as_str).collect();
        if !shared.is_empty() {
            bail!("two releases named {} share {}", RELEASE[0], shared.join(", "));
        }
    }
    Ok(())
}

/// In one namespace, no release has the full name of a ClusterRole of another release.
pub(super) fn reject_names_of_parts(tools: &Tools) -> Result<()> {
    let set = format!("{},crds.enabled=false", FEATURES.join(","));
    let manifests = Manifests::of(&tools.template(&["--set", &set])?)?;
    let roles = manifests.all().iter().filter(|object| object["kind"] == "ClusterRole");
    let names = roles.filter_map(|role| {
        let name = role["metadata"]["name"].as_str()?.strip_suffix(RELEASE[1])?.strip_suffix('.')?;
        (name != RELEASE[0]).then_some(name)
    });
    let names: BTreeSet<&str> = names.collect();
    ensure!(names.contains("quintet-nodes") && names.contains("quintet-book-viewer"), "{names:?}");
    for name in names {
        match tools.template(&["--set", &format!("fullnameOverride={name}")]) {
            Err(error) if format!("{error:#}").contains("Set fullnameOverride to a name") => {}
            other => bail!("fullnameOverride={name}: expected an error, got {other:?}"),
        }
    }
    Ok(())
}

/// The kinds, namespaces and names of the objects, and the UIDs, titles and files of the dashboards.
fn identities(manifests: &Manifests) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for object in manifests.all() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        found.insert(format!("{kind} {}/{}", text(&metadata["namespace"]), text(&metadata["name"])));
        let is_dashboard = !metadata["labels"]["grafana_dashboard"].is_null();
        for (file, content) in object["data"].as_object().into_iter().flatten().filter(|_| is_dashboard) {
            let board: Value = serde_json::from_str(&text(content)).with_context(|| file.clone())?;
            let names = [
                format!("file {file}"),
                format!("uid {}", board["uid"]),
                format!("title {}", board["title"]),
            ];
            found.extend(names);
        }
    }
    Ok(found)
}

/// The condition of a parent chart decides whether Helm renders the chart.
pub(super) fn parent_decides(tools: &Tools) -> Result<()> {
    let scratch = Scratch::new("parent")?;
    let charts = scratch.0.join("charts");
    fs::create_dir_all(&charts).with_context(|| format!("cannot create {}", charts.display()))?;
    run::stdout(tools.program("helm")?.arg("package").arg(chart()).arg("--destination").arg(&charts))?;
    let file = scratch.0.join("Chart.yaml");
    let write = |condition: &str| {
        let dependency = format!("{{name: quintet, version: '>=0.0.0-0'{condition}}}");
        let text = format!("apiVersion: v2\nname: parent\nversion: 0.1.0\ndependencies: [{dependency}]\n");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    let rendered = |set: &str| Manifests::of(&tools.render(&scratch.0, RELEASE[1], &["--set", set])?);
    write(", condition: quintet.enabled")?;
    for set in ["quintet.replicas=3", "quintet.enabled=true,quintet.replicas=3"] {
        let manifests = rendered(set)?;
        let found = manifests.all().iter().find(|object| object["kind"] == "Deployment");
        ensure!(found.is_some_and(|deployment| deployment["spec"]["replicas"] == 3), "{set}: {found:?}");
    }
    let disabled = rendered("quintet.enabled=false")?;
    ensure!(disabled.all().is_empty(), "a disabled chart renders {:?}", disabled.all());
    write("")?;
    match rendered("quintet.enabled=false") {
        Err(error) if format!("{error:#}").contains("condition: quintet.enabled") => Ok(()),
        other => bail!("expected an error that names the missing condition, got {other:?}"),
    }
}
