//! Feeds every decoder with hostile bytes. A decoder must not panic, and must report what it rejects in one
//! short message.
//!
//! The name of an input reproduces it: `bytes:pod.17`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use jiff::Timestamp;
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::ledger::{Entry, Shard, Unusable};
use quintet_podset::api::PodSet;
use quintet_runtime::model::conditions::shorten;
use quintet_runtime::model::core_types::{Deployment, Node, Pod};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::server::client::brief;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::dice::Dice;

/// The number of inputs for each decoder.
pub const EACH: usize = 100_000;
/// The largest object that the API server accepts, in bytes (etcd's limit for a request).
const LARGEST: usize = 1_500_000;
/// The longest error message, in bytes.
const LONGEST: usize = 512;

/// A decoder, and the use of its result.
struct Decoder {
    name: &'static str,
    /// A valid input.
    example: fn() -> Value,
    /// Whether the example is text instead of JSON.
    is_text: bool,
    /// Decodes the bytes and uses the result.
    decode: fn(&[u8]) -> Result<(), String>,
}

const fn of(name: &'static str, example: fn() -> Value, decode: fn(&[u8]) -> Result<(), String>) -> Decoder {
    Decoder { name, example, is_text: false, decode }
}

const DECODERS: [Decoder; 13] = [
    of("pod", pod, |bytes| json_of::<Pod>(bytes).map(drop)),
    of("node", node, |bytes| json_of::<Node>(bytes).map(drop)),
    of("deployment", deployment, |bytes| json_of::<Deployment>(bytes).map(drop)),
    of("shard", shard, |bytes| json_of::<Shard>(bytes).map(drop)),
    of("lease", lease, |bytes| {
        quintet_runtime::election::lease::holder_of(bytes)
            .map(drop)
            .map_err(|error| brief(&kube::Error::SerdeError(error)))
    }),
    of("template", template, |bytes| {
        let template = json_of::<RawTemplate>(bytes)?;
        let _ = template.hash();
        let _ = quintet_daemonjob::eligibility::Placement::of(template.spec());
        let _ = template.pod("n", "a", &json!({}), &[("l", "1")], &[("a", "1")], Some("f"));
        Ok(())
    }),
    of("statistics", statistics, |bytes| {
        quintet_pulsarconsumer::backlog::figures(bytes, "s").map(drop).map_err(|error| error.to_string())
    }),
    of("daemonjob", daemonjob, |bytes| {
        let job = json_of::<DaemonJob>(bytes)?;
        let world = quintet_daemonjob::observe::World { nodes: nodes(), ..Default::default() };
        let _ = quintet_daemonjob::plan::plan(&job, &world, NOW);
        Ok(())
    }),
    of("podset", podset, |bytes| {
        let podset = json_of::<PodSet>(bytes)?;
        let _ = quintet_podset::plan::plan(&podset, &quintet_podset::observe::World::default(), NOW);
        Ok(())
    }),
    of("pulsarconsumer", consumer, |bytes| {
        json_of::<quintet_pulsarconsumer::api::PulsarConsumer>(bytes).map(drop)
    }),
    of("greeting", greeting, |bytes| json_of::<quintet_greeting::api::Greeting>(bytes).map(drop)),
    of("book", book, |bytes| {
        let book = json_of::<quintet_book::api::Book>(bytes)?;
        let _ = quintet_book::plan::plan(&book, NOW);
        Ok(())
    }),
    Decoder {
        name: "entry",
        example: || json!(LINE),
        is_text: true,
        decode: |bytes| {
            let line = String::from_utf8_lossy(bytes);
            let entry: Entry =
                line.parse().map_err(|error: Unusable| shorten(format!("{error:?}"), LONGEST))?;
            let again: Result<Entry, _> = entry.to_string().parse();
            if again.as_ref() == Ok(&entry) {
                Ok(())
            } else {
                panic!("an entry is printed differently: {line:?}")
            }
        },
    },
];

/// A line of a ledger.
const LINE: &str = "node=n1 template=v1-abc rollout=2 run=1 pod=3 outcome=Disrupted failures=1 disruptions=1 ignored=1 \
    attempt=Disrupted/v1-abc/2/3 clear=true n-mark=a%20b ended=2026-01-01T00:00:03Z";

const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// The error as reported, because the full error may be as long as the object.
fn json_of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| shorten(error.to_string(), LONGEST))
}

fn meta() -> Value {
    json!({ "name": "a", "namespace": "default", "uid": "u-1", "resourceVersion": "12", "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
        "deletionGracePeriodSeconds": 30, "finalizers": ["dj.dysproz.io/ledger"],
        "labels": { "quintet.dev/kind": "DaemonJob", "dj.dysproz.io/pod-number": "3" },
        "annotations": { "dj.dysproz.io/node-name": "n1", "dj.dysproz.io/node-ready": "true", "dj.dysproz.io/rollout": "2",
            "dj.dysproz.io/run": "1", "dj.dysproz.io/deleted-for": "Exhausted" },
        "ownerReferences": [{ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "d", "uid": "u-2", "controller": true }] })
}

fn pod() -> Value {
    json!({ "metadata": meta(), "spec": { "nodeName": "n1" }, "status": { "phase": "Failed", "reason": "Evicted",
        "startTime": "2026-01-01T00:00:01Z",
        "conditions": [{ "type": "Ready", "status": "False", "reason": "x", "message": "y", "lastTransitionTime": "2026-01-01T00:00:02Z" }],
        "containerStatuses": [{ "name": "m", "restartCount": 2, "ready": false,
            "state": { "terminated": { "exitCode": 3, "reason": "Error", "message": "m", "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:02Z" } },
            "lastState": { "terminated": { "exitCode": 1, "finishedAt": "2026-01-01T00:00:02Z" } } }],
        "initContainerStatuses": [{ "name": "i", "restartCount": 0, "state": { "waiting": { "reason": "PodInitializing" } } }] } })
}

fn node() -> Value {
    json!({ "metadata": meta(), "spec": { "unschedulable": true, "taints": [{ "key": "k", "value": "v", "effect": "NoExecute" }] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }], "nodeInfo": { "bootID": "b" } } })
}

fn nodes() -> Vec<Arc<Node>> {
    serde_json::from_value::<Node>(node()).map(Arc::new).into_iter().collect()
}

fn deployment() -> Value {
    json!({ "metadata": meta(), "spec": { "replicas": 2, "template": template() },
        "status": { "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1,
            "conditions": [{ "type": "Progressing", "status": "False", "reason": "x", "message": "y" }] } })
}

fn shard() -> Value {
    json!({ "metadata": meta(), "data": { "u-3": LINE, "gone": "rollout=2 hour-2026-01-01T00:00:00Z=1" } })
}

fn lease() -> Value {
    json!({ "metadata": { "name": "quintet-manager", "annotations": { "quintet.dev/written": "{\"pods\":12}" } },
        "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": 3 } })
}

fn template() -> Value {
    json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } },
        "spec": { "restartPolicy": "Never", "nodeSelector": { "e": "f" },
            "tolerations": [{ "key": "k", "operator": "Exists", "effect": "NoSchedule" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "g", "operator": "Gt", "values": ["1"] }],
                  "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }] } } },
            "containers": [{ "name": "m", "image": "i" }] } })
}

fn statistics() -> Value {
    json!({ "msgRateOut": 1.5, "subscriptions": { "s": { "msgBacklog": 12, "unackedMessages": 3, "msgRateOut": 0.5,
        "consumers": [{ "consumerName": "c" }] }, "t": {} } })
}

fn custom(spec: Value, status: Value) -> Value {
    let mut object = json!({ "metadata": meta() });
    object["metadata"]["deletionTimestamp"] = Value::Null;
    object["spec"] = spec;
    object["status"] = status;
    object
}

fn daemonjob() -> Value {
    custom(
        json!({ "template": template(), "parallelism": "50%", "backoffLimit": 2, "activeDeadlineSeconds": 60,
            "pendingDeadlineSeconds": 5, "failurePolicy": { "type": "FailFast", "maxFailedNodes": 1, "nodeLostAfterSeconds": 60 },
            "disruptionLimit": 3, "unhealthyNodes": { "policy": "SkipAfter", "skipAfterSeconds": 60 }, "outdatedPods": "Replace",
            "retryToken": "a",
            "podFailurePolicy": { "rules": [{ "action": "Ignore", "onExitCodes": { "operator": "In", "values": [1, 2] } }] },
            "rerunOn": ["NodeReboot", "MachineChange"], "lateNodes": "Ignore", "ttlSecondsAfterFinished": 3 }),
        json!({ "observedGeneration": 1, "active": 1, "startTime": "2026-01-01T00:00:00Z", "templateHash": "v1-abc",
            "rollout": { "number": 2, "retryToken": "a", "base": 3, "unhealthyFromStart": 1, "ended": "DeadlineExceeded",
                "endedBy": "x", "brakedSince": "2026-01-01T00:00:00Z" }, "run": 1, "workedSeconds": 5,
            "workingSince": "2026-01-01T00:00:00Z",
            "ledgerShards": [1, 2], "failedNodes": [{ "node": "n", "reason": "r" }],
            "conditions": [{ "type": "Complete", "status": "False", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
    )
}

fn podset() -> Value {
    custom(
        json!({ "replicas": 3, "template": template(), "minReadySeconds": 2, "progressDeadlineSeconds": 60, "podsToDelete": ["a"],
            "updateStrategy": { "type": "RollingUpdate", "maxUnavailable": "25%", "maxSurge": 1, "partition": 1, "paused": false } }),
        json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "podNames": ["a"] }),
    )
}

fn consumer() -> Value {
    custom(
        json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s", "replicas": 2,
            "auth": { "tokenSecret": { "name": "a", "key": "b" } }, "deadLetterPolicy": { "maxRedeliverCount": 3 },
            "env": [{ "name": "A", "value": "b" }], "resources": { "limits": { "cpu": "1" } } }),
        json!({ "observedGeneration": 1, "readyReplicas": 1 }),
    )
}

fn greeting() -> Value {
    custom(
        json!({ "message": "hello", "intervalSeconds": 60 }),
        json!({ "greetedAt": "2026-01-01T00:00:00Z", "updates": 1, "claim": { "messageHash": "v1-a", "kind": "Create", "token": "t" } }),
    )
}

fn book() -> Value {
    custom(json!({ "author": "A", "title": "T" }), json!({ "observedGeneration": 1 }))
}

/// An unexpected value.
fn odd(dice: &mut Dice) -> Value {
    match dice.below(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(i64::MAX),
        4 => json!(u64::MAX),
        5 => json!(1e308),
        6 => json!(0.5),
        7 => json!(""),
        8 => json!("\u{0}\u{1b}[31m\n\r\u{202e}\u{10ffff}"),
        9 => json!("9999-12-31T23:59:60Z"),
        10 => json!("-999999999999999999999%"),
        11 => json!("x".repeat(1 << dice.below(12))),
        12 => json!([]),
        13 => json!({}),
        14 => json!([[[[{ "a": [null] }]]]]),
        _ => json!(i32::MIN),
    }
}

/// Changes one part of a value: replaces, removes or adds it.
fn mutate(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !dice.is(8) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let name = dice.one(&names).clone();
            match dice.below(10) {
                0 => drop(fields.remove(&name)),
                1 => drop(fields.insert(name, odd(dice))),
                2 => drop(fields.insert("\u{ffff}".repeat(dice.below(40)), odd(dice))),
                _ => mutate(&mut fields[&name], dice),
            }
        }
        Value::Array(items) if !items.is_empty() && !dice.is(8) => {
            let at = dice.below(items.len());
            match dice.below(8) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                2 => items[at] = odd(dice),
                _ => mutate(&mut items[at], dice),
            }
        }
        other => *other = odd(dice),
    }
}

/// Changes, removes, repeats and nests bytes.
fn maul(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = dice.below(bytes.len());
        match dice.below(7) {
            0 => bytes.truncate(at),
            1 => bytes[at] = u8::try_from(dice.below(256)).unwrap_or(0),
            2 => bytes.insert(at, *dice.one(b"{}[]\",:\\\0\xff9e-")),
            3 => drop(bytes.remove(at)),
            4 => {
                let end = (at + dice.below(64)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            5 => drop(bytes.splice(at..at, std::iter::repeat_n(b'[', dice.below(300)))),
            _ => bytes.swap(0, at),
        }
    }
}

/// An input of a decoder.
pub struct Input {
    decoder: &'static Decoder,
    number: usize,
}

impl Input {
    /// The name of the input.
    pub fn name(&self) -> String {
        format!("bytes:{}.{}", self.decoder.name, self.number)
    }

    /// The input of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let (decoder, number) = name.strip_prefix("bytes:")?.split_once('.')?;
        let decoder = DECODERS.iter().find(|one| one.name == decoder)?;
        Some(Self { decoder, number: number.parse().ok()? })
    }

    /// Every `every`-th input of the decoders whose names contain `filter`.
    pub fn all(filter: &str, every: usize) -> Vec<Self> {
        let decoders = DECODERS.iter().filter(|decoder| decoder.name.contains(filter));
        decoders
            .flat_map(|decoder| (0..EACH).step_by(every).map(move |number| Self { decoder, number }))
            .collect()
    }

    /// The bytes. Input 0 is the example, input 1 has the largest size.
    pub fn bytes(&self, seed: u64) -> Vec<u8> {
        let mut dice = Dice::of(seed, &self.name());
        let mut value = (self.decoder.example)();
        match self.number {
            0 => {}
            1 => swell(&mut value),
            _ if dice.is(10) => {
                let bytes = (0..dice.below(200)).map(|_| u8::try_from(dice.below(256)).unwrap_or(0));
                return bytes.collect();
            }
            _ if !self.decoder.is_text => {
                for _ in 0..=dice.below(3) {
                    mutate(&mut value, &mut dice);
                }
            }
            _ => {}
        }
        let mut bytes = match (&value, self.decoder.is_text) {
            (Value::String(text), true) => text.clone().into_bytes(),
            (value, _) => value.to_string().into_bytes(),
        };
        if self.number > 1 && (self.decoder.is_text || dice.is(50)) {
            maul(&mut bytes, &mut dice);
        }
        bytes
    }

    /// Decodes the input and returns the violations.
    pub fn run(&self, seed: u64) -> Vec<String> {
        let bytes = self.bytes(seed);
        match catch_unwind(AssertUnwindSafe(|| (self.decoder.decode)(&bytes))) {
            Err(_panic) => vec!["a panic".to_owned()],
            Ok(Err(error)) if self.number == 0 => vec![format!("the example is rejected: {error}")],
            Ok(Err(error)) if error.trim().is_empty() => vec!["the error has no message".to_owned()],
            Ok(Err(error)) if error.len() > LONGEST + 3 && self.decoder.name != "statistics" => {
                vec![format!("the message has {} bytes", error.len())]
            }
            Ok(_) => Vec::new(),
        }
    }
}

/// Grows the value to the largest size, with many labels, fields and lines, and one long text.
fn swell(value: &mut Value) {
    let many: Map<String, Value> =
        (0..10_000).map(|number| (format!("key-{number:06}"), json!("y".repeat(60)))).collect();
    match value {
        Value::Object(fields) => {
            let used: usize = 10_000 * 80;
            fields.insert("data".to_owned(), Value::Object(many));
            fields.insert("managedFields".to_owned(), json!("z".repeat(LARGEST - used)));
        }
        other => *other = json!("w".repeat(LARGEST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_reproduce_inputs() {
        for input in Input::all("", 9_973) {
            let again = Input::by_name(&input.name()).unwrap();
            assert_eq!(again.bytes(1), input.bytes(1));
        }
        assert!(Input::by_name("bytes:nothing.1").is_none());
    }
}
