//! The time until the manager's first write for an object, while a webhook keeps each new pod and DaemonJobs
//! want thousands of pods.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use quintet_localcluster::audit::{Author, Request};
use quintet_localcluster::interrupt;
use quintet_runtime::server::client::WINDOW;
use serde_json::{Value, json};

use super::contender::Stand;
use super::figures::Results;
use super::measures::{Pair, settled};
use super::objects::{KINDS, Kind, daemon_job, daemon_jobs, name, pod_set, pod_sets, pod_spec};
use super::sizes::Sizes;
use super::webhook::{KEEPS, Webhook};
use crate::client::Patch;
use crate::rig::{Rig, pods};
use crate::stats::float;

/// The time between two objects of a kind. At this rate, fewer PodSets wait for their pod than the manager
/// reconciles at once.
const PAUSE: Duration = Duration::from_secs(1);

/// The polling interval of the audit log, which has the exact times.
const LOOK: Duration = Duration::from_secs(1);

/// The fewest pods of DaemonJobs in the webhook. The manager has as many requests at once as its window, but after an
/// answer, the next request takes a moment.
const LEAST: usize = WINDOW / 2;

/// The measured kinds, by the names of their controllers.
const MEASURED: [&str; 4] = ["book", "greeting", "podset", "pulsarconsumer"];

pub fn slow_webhook(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    let rig = stand.rig;
    pair.each(rig, "a slow webhook", |contender| {
        let (busy, namespace) = (rig.namespace()?, rig.namespace()?);
        for number in 0..sizes.slow_objects {
            rig.create(&pod_sets(&namespace), &pod_set(&name(number), 0))?;
        }
        let running = settled(stand, contender, sizes)?;
        let webhook = registered(rig, &busy)?;
        for number in 0..sizes.slow_jobs {
            rig.create(&daemon_jobs(&busy), &daemon_job(&name(number)))?;
        }
        rig.wait_until("the webhook keeps as many pods as the manager sends at once", || {
            running.must_run()?;
            Ok(webhook.kept() >= WINDOW)
        })?;
        rig.forget_requests()?;
        make(rig, &namespace, sizes.slow_objects)?;
        // The log has a request when it is answered.
        interrupt::pause(KEEPS * 2)?;
        let (mut writes, mut load) = (Vec::new(), Vec::new());
        let found = rig.poll("every object has a write of the manager", LOOK, || {
            running.must_run()?;
            let (of_jobs, others): (Vec<_>, Vec<_>) =
                rig.requests_so_far()?.into_iter().partition(|request| request.namespace == busy);
            load.extend(of_jobs);
            writes.extend(others.into_iter().filter(|other| other.is_write() && other.namespace == namespace));
            let owners = owners(rig, &namespace)?;
            let found = MEASURED.map(|kind| delays(&writes, &owners, kind, contender.author()));
            Ok(found.iter().all(|delays| delays.len() == sizes.slow_objects).then_some(found))
        })?;
        let least = least_load(&load, &writes);
        ensure!(
            least >= LEAST,
            "when a request arrived, the webhook kept only {least} pods of DaemonJobs, and at least {LEAST} are needed"
        );
        for (kind, delays) in MEASURED.into_iter().zip(found) {
            results.add(contender, pair.number, kind, delays);
        }
        results.one(contender, pair.number, "least", float(least));
        results.one(contender, pair.number, "kept", float(webhook.most()));
        // Its reconciles would wait for the webhook.
        running.kill();
        Ok(())
    })
}

/// Starts a webhook, and waits until the API server calls it.
fn registered(rig: &Rig, namespace: &str) -> Result<Webhook> {
    let webhook = Webhook::start(rig)?;
    let (dry_run, metadata) = (format!("{}?dryRun=All", pods(namespace)), json!({"name": "dry-run"}));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec("Always")});
    rig.wait_until("the API server calls the webhook", || {
        rig.create(&dry_run, &pod)?;
        Ok(webhook.called() > 0)
    })?;
    Ok(webhook)
}

/// Creates objects of three kinds and scales the PodSets, one object of each kind after another.
fn make(rig: &Rig, namespace: &str, objects: usize) -> Result<()> {
    let (api, namespace) = (rig.api(), namespace.to_owned());
    let sender = rig.spawn(async move {
        let mut ticks = tokio::time::interval(PAUSE);
        // The loop is open: a late answer does not delay the other requests.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        let mut sent = tokio::task::JoinSet::new();
        for number in 0..objects {
            ticks.tick().await;
            let is_created = |kind: &Kind| MEASURED.contains(&kind.name) && kind.name != "podset";
            for kind in KINDS.iter().filter(|kind| is_created(kind)) {
                let (api, path, object) = (api.clone(), kind.collection(&namespace), kind.object(number));
                sent.spawn(async move { api.create(&path, &object).await.map(|_| ()) });
            }
            let (api, path) = (api.clone(), format!("{}/{}/scale", pod_sets(&namespace), name(number)));
            sent.spawn(async move {
                api.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 1}})).await.map(|_| ())
            });
        }
        while let Some(one) = sent.join_next().await {
            one.context("a request's task ended early")??;
        }
        anyhow::Ok(())
    });
    rig.wait_for(async { sender.await.context("the sender's task ended early")? })
}

/// The owners of pods and Deployments by the names of these, such as `podsets/object-1`.
fn owners(rig: &Rig, namespace: &str) -> Result<BTreeMap<String, String>> {
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let mut objects = rig.list(&pods(namespace))?;
    objects.extend(rig.list(&deployments)?);
    Ok(objects.iter().filter_map(owned).collect())
}

fn owned(object: &Value) -> Option<(String, String)> {
    let owner = &object["metadata"]["ownerReferences"][0];
    let (kind, name) = (owner["kind"].as_str()?, owner["name"].as_str()?);
    Some((object["metadata"]["name"].as_str()?.to_owned(), format!("{}s/{name}", kind.to_lowercase())))
}

/// The object that a request concerns: the owner of a pod or Deployment, or the object itself.
fn subject(request: &Request, owners: &BTreeMap<String, String>) -> String {
    let resource = request.resource.split('/').next().unwrap_or_default();
    let itself = || format!("{resource}/{}", request.name);
    owners.get(&request.name).cloned().unwrap_or_else(itself)
}

/// The fewest pods in `load` that the webhook kept when a request of the bench in `writes` arrived.
fn least_load(load: &[Request], writes: &[Request]) -> usize {
    let lasted = |pod: &&Request| pod.answered.duration_since(pod.received).as_secs_f64();
    let is_kept = |pod: &&Request| pod.is_creation_of_pod() && lasted(pod) >= KEEPS.as_secs_f64();
    let kept: Vec<&Request> = load.iter().filter(is_kept).collect();
    let kept_at = |at: Timestamp| kept.iter().filter(|pod| pod.received <= at && at < pod.answered).count();
    let requests = writes.iter().filter(|write| write.author == Author::Bench);
    requests.map(|request| kept_at(request.received)).min().unwrap_or_default()
}

/// Milliseconds between the arrivals of a request for an object of this kind and of the first write of `author`
/// for this object. An object without such a write is left out.
fn delays(writes: &[Request], owners: &BTreeMap<String, String>, kind: &str, author: Author) -> Vec<f64> {
    let done = |by: Author| writes.iter().filter(move |write| write.author == by && write.is_done());
    let mut theirs: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for write in done(author).filter(|write| write.resource != "events") {
        theirs.entry(subject(write, owners)).or_default().push(write.received);
    }
    let delay = |request: &Request| {
        let of = subject(request, owners);
        if !of.strip_prefix(kind).is_some_and(|rest| rest.starts_with("s/")) {
            return None;
        }
        let first = theirs.get(&of)?.iter().filter(|at| **at >= request.received).min()?;
        Some(1_000.0 * first.duration_since(request.received).as_secs_f64())
    };
    done(Author::Bench).filter_map(delay).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(author: Author, resource: &str, name: &str, millisecond: i64) -> Request {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        Request {
            author,
            namespace: "n".to_owned(),
            verb: "patch".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            code: 200,
            message: String::new(),
            received: at,
            answered: at,
        }
    }

    #[test]
    fn load_is_what_the_webhook_keeps_at_each_request() {
        let pod = |received: i64, answered: i64| Request {
            verb: "create".to_owned(),
            answered: Timestamp::from_millisecond(answered).unwrap(),
            ..request(Author::Quintet, "pods", "", received)
        };
        // The webhook does not keep the last pod.
        let load = [pod(0, 10_000), pod(5, 10_005), pod(10_001, 20_001), pod(10_002, 10_010)];
        let least = |times: &[i64]| {
            let requests = times.iter().map(|at| request(Author::Bench, "books", "a", *at));
            let others = [request(Author::Quintet, "books/status", "a", 30_000)];
            least_load(&load, &requests.chain(others).collect::<Vec<_>>())
        };
        assert_eq!([least(&[5, 9_999]), least(&[5, 10_003]), least(&[10_000, 10_004])], [2, 2, 1]);
        assert_eq!([least(&[5, 20_001]), least(&[])], [0, 0]);
    }

    #[test]
    fn delay_is_until_the_first_write_after_the_request() {
        let writes = [
            request(Author::Quintet, "podsets/status", "a", 10),
            request(Author::Bench, "podsets/scale", "a", 20),
            request(Author::Bench, "books", "a", 20),
            request(Author::Quintet, "events", "a", 21),
            request(Author::Quintet, "podsets/status", "a", 60),
            request(Author::Quintet, "pods", "a-pod-1", 27),
            request(Author::Bench, "podsets/scale", "b", 30),
        ];
        let owners = [("a-pod-1".to_owned(), "podsets/a".to_owned())].into();
        let of = |kind| delays(&writes, &owners, kind, Author::Quintet);
        assert!(matches!(of("podset")[..], [delay] if (delay - 7.0).abs() < 1e-9), "{:?}", of("podset"));
        assert!(of("book").is_empty());
    }
}
