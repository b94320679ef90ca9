//! The time and the processor seconds from the start of a manager until its caches are filled, with many pods that the
//! manager selects.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use quintet_localcluster::cluster::components::Component;
use quintet_runtime::KIND_LABEL;
use serde_json::json;

use super::contender::{Contender, Stand};
use super::figures::Results;
use super::measures::Pair;
use super::objects::pod_spec;
use super::sizes::Sizes;
use crate::contest::order;
use crate::process;
use crate::rig::{Rig, pods};
use crate::scrape;
use crate::stats::{float, mebibytes};
use crate::table::count;

/// The owner of the pods.
const OWNER: &str = "owner";

/// The interval of the reads of the API server's processor time, and the most seconds of an idle one.
const WINDOW: (Duration, f64) = (Duration::from_secs(2), 0.5);

/// Starts the contenders one after another, several times, with the same pods.
pub fn fill(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    rig.step(format!("creating {} pods", count(sizes.many)), || create_pods(rig, sizes.many))?;
    for number in 1..=sizes.pairs {
        let contenders = order(pair.contenders, number);
        let pair = Pair { number, of: sizes.pairs, contenders: &contenders };
        pair.each(rig, "filling caches", |contender| filled(stand, sizes, number, contender, results))?;
    }
    Ok(())
}

fn filled(
    stand: &Stand<'_>,
    sizes: &Sizes,
    number: usize,
    contender: Contender,
    results: &mut Results,
) -> Result<()> {
    let rig = stand.rig;
    let api_server = rig.pid(Component::Apiserver)?;
    stand.free(contender)?;
    let sent = sent_bytes(rig)?;
    wait_until_idle(rig, api_server)?;
    let api_cpu = process::cpu_seconds(api_server)?;
    let running = stand.start(contender, "a")?.once_ready()?;
    let seconds = Timestamp::now().duration_since(running.began).as_secs_f64();
    let api_cpu = process::cpu_seconds(api_server)? - api_cpu;
    let cpu = process::cpu_seconds(running.pid())?;
    let memory = running.memory()?;
    let cached = scrape::sum(&running.metrics()?, "quintet_informer_objects", &[("resource", "pods")]);
    ensure!(cached >= float(sizes.many), "{contender} has only {cached} of {} pods", sizes.many);
    let sent = sent_bytes(rig)? - sent;
    let mut add = |figure, value| results.one(contender, number, figure, value);
    add("seconds", seconds);
    add("api-cpu", api_cpu);
    add("cpu", cpu);
    add("sent", sent / 1e6);
    add("peak", mebibytes(memory.peak_kib));
    running.stop()
}

/// Creates pods with the labels of a PodSet's pods. Their owner is a ConfigMap, so that no controller changes them and the
/// garbage collector keeps them.
fn create_pods(rig: &Rig, many: usize) -> Result<()> {
    let namespace = rig.namespace()?;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWNER}});
    let owner = rig.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &owner)?;
    let uid = &owner["metadata"]["uid"];
    let labels = json!({
        KIND_LABEL: "PodSet", "app": OWNER, "version": "v0.1", "batch.tutorial.kubebuilder.io/podset-uid": uid,
        "batch.tutorial.kubebuilder.io/template-hash": "v1-0123456789",
    });
    let owners =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": uid, "controller": true}]);
    let spec = pod_spec("Always");
    let pod = |number| {
        let metadata =
            json!({"name": format!("{OWNER}-pod-{number:010}"), "labels": labels, "ownerReferences": owners});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    };
    let bodies = (0..many).map(|number| serde_json::to_vec(&pod(number)));
    // As the administrator, whose requests have no limit.
    rig.wait_for(rig.api().create_all(&pods(&namespace), bodies.collect::<Result<_, _>>()?))?;
    Ok(())
}

/// Waits until the API server has finished its work for the previous contender, or for the creation of the pods.
fn wait_until_idle(rig: &Rig, api_server: i32) -> Result<()> {
    let (window, most) = WINDOW;
    let mut before = None;
    rig.poll("the API server is idle", window, || {
        let now = process::cpu_seconds(api_server)?;
        let before = before.replace(now);
        Ok(before.is_some_and(|before| now - before < most).then_some(()))
    })
}

/// The bytes of all events of pods that the API server has sent, before TLS.
fn sent_bytes(rig: &Rig) -> Result<f64> {
    let metrics = rig.wait_for(rig.api().text("/metrics"))?;
    Ok(scrape::sum(&metrics, "apiserver_watch_events_sizes_sum", &[("resource", "pods")]))
}
