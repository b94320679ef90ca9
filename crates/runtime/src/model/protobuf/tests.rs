//! Tests of the conversion, and the encoders that the tests of watches use.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::model::core_types::{Node, Pod};

/// A field on the wire: the bytes of a message or of a string.
fn put(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [&encoded(number << 3 | 2)[..], &encoded(u64::try_from(value.len()).unwrap()), value].concat()
}

fn put_number(number: u64, value: u64) -> Vec<u8> {
    [encoded(number << 3), encoded(value)].concat()
}

fn encoded(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

fn enveloped(kind: &str, object: &[u8]) -> Vec<u8> {
    [MAGIC, &put(1, [put(1, "v1"), put(2, kind)].concat()), &put(2, object)].concat()
}

fn json_of(encoded: &[u8], of: &Type) -> Json {
    let mut json = Vec::new();
    object(encoded, of, &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn pod() -> Vec<u8> {
    let owner = [put(1, "DaemonJob"), put(3, "d"), put(4, "1"), put(5, "dj.dysproz.io/v1"), put_number(6, 1)];
    let meta = [
        put(1, "p"),
        put(2, ""),
        put(3, "n"),
        put(5, "u"),
        put(6, "7"),
        put_number(7, 0),
        put(8, put_number(1, 1_767_225_600)),
        put(11, [put(1, "a"), put(2, "1")].concat()),
        put(11, [put(1, "empty"), put(2, "")].concat()),
        put(12, [put(1, "dj.dysproz.io/boot-id"), put(2, "\"quoted\"\n")].concat()),
        put(13, owner.concat()),
        put(14, "one"),
        put(14, "two"),
        put(17, "managed fields, which the decoder skips"),
    ];
    let ended = [put_number(1, 137), put(3, "OOMKilled"), put(4, ""), put(6, put_number(1, 1_767_225_605))];
    let container =
        [put(1, "main"), put(2, put(3, ended.concat())), put(3, []), put_number(4, 0), put_number(5, 3)];
    let status = [
        put(1, "Failed"),
        put(2, [put(1, "Ready"), put(2, "False"), put(4, put_number(1, 1_767_225_600))].concat()),
        put(4, ""),
        put(8, container.concat()),
    ];
    let spec = [put(10, "node-1"), put(3, "Never"), put(2, main_container())];
    [put(1, meta.concat()), put(2, spec.concat()), put(3, status.concat())].concat()
}

/// A container that restarts after some exit codes only.
fn main_container() -> Vec<u8> {
    let negative = (-1_i64).cast_unsigned();
    let codes = [put(1, "NotIn"), put_number(2, 1), put_number(2, negative)].concat();
    let rule = [put(1, "Restart"), put(2, codes)].concat();
    [put(1, "main"), put(2, "image"), put(24, "Never"), put(25, rule)].concat()
}

#[test]
fn converts_an_object_to_json_with_only_the_read_fields() {
    let expected = json!({
        "metadata": {
            "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 0,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "1", "empty": ""},
            "annotations": {"dj.dysproz.io/boot-id": "\"quoted\"\n"},
            "ownerReferences": [{"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "d", "uid": "1",
                "controller": true}],
            "finalizers": ["one", "two"]},
        "spec": {"nodeName": "node-1", "restartPolicy": "Never", "containers": [{"name": "main", "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [1, -1]}}]}]},
        "status": {
            "phase": "Failed",
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{"name": "main", "ready": false, "restartCount": 3, "lastState": {},
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:05Z"}}}]},
    });
    assert_eq!(json_of(&enveloped("Pod", &pod()), &POD), expected);
    let pod: Pod = serde_json::from_value(expected).unwrap();
    assert_eq!(pod.exits[0].code, 137);
    assert!(pod.restartable && pod.restarts_containers && !pod.has_running_container);
}

#[test]
fn reads_sidecars_and_running_containers() {
    let container = |name: &str| {
        let running = put(2, put(1, put_number(1, 5)));
        [put(1, name), put(2, running), put_number(5, 2)].concat()
    };
    let sidecar = [put(1, "side"), put(24, "Always")].concat();
    let spec = [put(3, "Never"), put(20, sidecar), put(2, put(1, "main"))].concat();
    for (status, restarts, running) in [
        (put(10, container("side")), 0, false),
        ([put(10, container("side")), put(8, container("main"))].concat(), 2, true),
    ] {
        let pod = [put(2, &spec), put(3, status)].concat();
        let pod: Pod = serde_json::from_value(json_of(&enveloped("Pod", &pod), &POD)).unwrap();
        assert_eq!((pod.restarts, pod.has_running_container), (restarts, running));
        assert!(!pod.restartable && !pod.restarts_containers);
    }
}

#[test]
fn reads_a_rejection() {
    let ready = [put(1, "Ready"), put(2, "False"), put(4, put_number(1, 5))].concat();
    let status = [put(1, "Failed"), put(2, ready), put(3, "Pod was rejected"), put(4, "OutOfcpu")].concat();
    let pod: Pod = serde_json::from_value(json_of(&enveloped("Pod", &put(3, status)), &POD)).unwrap();
    assert_eq!(pod.rejection.as_deref(), Some("OutOfcpu: Pod was rejected"));
    assert_eq!(pod.finished, Timestamp::from_second(5).ok());
}

#[test]
fn rejects_packed_numbers() {
    let packed = put(2, [1, 2]);
    let refused = message(&packed, EXIT_CODES, &mut Vec::new());
    assert_eq!(refused, Err(Malformed("no number where one is required")));
}

#[test]
fn converts_an_event_to_a_line() {
    let frame = frame("MODIFIED", &enveloped("Pod", &pod()));
    let mut line = Vec::new();
    event(&frame[4..], &POD, &mut line).unwrap();
    let line: Json = serde_json::from_slice(&line).unwrap();
    assert_eq!((&line["type"], &line["object"]["metadata"]["name"]), (&json!("MODIFIED"), &json!("p")));
    assert_eq!(event(&put(1, "ADDED"), &POD, &mut Vec::new()), Err(Malformed("an event without an object")));
}

#[test]
fn reads_a_status_in_place_of_an_object() {
    let said = expired();
    let expected = json!({"status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
    assert_eq!(json_of(&said, &POD), expected);
    assert_eq!(serde_json::from_slice::<Json>(&status(&said).unwrap()).unwrap(), expected);
}

#[test]
fn reads_a_node() {
    let taint = [put(1, "k"), put(2, ""), put(3, "NoSchedule")].concat();
    let ready = [put(1, "Ready"), put(2, "True"), put(3, put_number(1, 5))].concat();
    let node = [
        put(1, put(1, "n")),
        put(2, [put_number(4, 1), put(5, taint)].concat()),
        put(3, [put(4, ready), put(7, [put(1, "machine"), put(3, "boot")].concat())].concat()),
    ];
    let node: Node = serde_json::from_value(json_of(&enveloped("Node", &node.concat()), &NODE)).unwrap();
    assert!(node.unschedulable && node.ready);
    assert_eq!(
        (&*node.taints[0].key, &*node.taints[0].effect, &*node.boot_id, &*node.machine_id),
        ("k", "NoSchedule", "boot", "machine")
    );
}

#[test]
fn negative_numbers_and_empty_times_are_as_in_json() {
    let ended = [put_number(1, (-1_i64).cast_unsigned()), put(5, [])].concat();
    let mut json = Vec::new();
    message(&ended, TERMINATED, &mut json).unwrap();
    assert_eq!(String::from_utf8(json).unwrap(), r#"{"exitCode":-1}"#);
}

#[test]
fn rejects_truncated_objects_and_other_formats() {
    let whole = enveloped("Pod", &pod());
    let mut refused = 0;
    for end in 0..whole.len() {
        refused += usize::from(object(&whole[..end], &POD, &mut Vec::new()).is_err());
    }
    // Some prefixes are valid, because they end between two fields of the envelope.
    assert!(refused >= whole.len() - 3, "{refused} of {}", whole.len());
    assert!(object(b"{\"kind\":\"Pod\"}", &POD, &mut Vec::new()).is_err());
}

#[test]
fn rejects_objects_of_another_kind_or_without_content() {
    let refused = |encoded: &[u8]| object(encoded, &POD, &mut Vec::new()).unwrap_err().0;
    assert_eq!(refused(MAGIC), "an object of another kind");
    assert_eq!(refused(&enveloped("Node", &pod())), "an object of another kind");
    let bare = [MAGIC, &put(1, put(2, "Pod"))].concat();
    assert_eq!(refused(&bare), "an object without content");
}

#[test]
fn an_invalid_time_affects_only_its_object() {
    let late = put(1, [put(1, "p"), put(8, put_number(1, u64::MAX / 2))].concat());
    let json = json_of(&enveloped("Pod", &late), &POD);
    assert!(serde_json::from_value::<Pod>(json).is_err());
}

/// A frame of a watch: its length in four bytes, and an event.
pub(crate) fn frame(type_: &str, object: &[u8]) -> Vec<u8> {
    let event = [put(1, type_), put(2, put(1, object))].concat();
    [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
}

pub(crate) fn named(name: &str, version: &str) -> Vec<u8> {
    let label = put(11, [put(1, "version"), put(2, version)].concat());
    let end = put(12, [put(1, "k8s.io/initial-events-end"), put(2, "true")].concat());
    enveloped("Pod", &put(1, [put(1, name), put(5, name), put(6, version), label, end].concat()))
}

pub(crate) fn expired() -> Vec<u8> {
    let said = [put(2, "Failure"), put(3, "too old"), put(4, "Expired"), put_number(6, 410)];
    enveloped("Status", &said.concat())
}

proptest! {
    #[test]
    fn any_message_is_rejected_or_becomes_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for of in [&POD, &NODE, &STATUS] {
            let mut json = Vec::new();
            if message(&bytes, of.fields, &mut json).is_ok() {
                serde_json::from_slice::<Json>(&json).unwrap();
            }
        }
    }

    #[test]
    fn any_changed_event_is_rejected_or_becomes_a_line(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = frame("ADDED", &enveloped("Pod", &pod())).split_off(4);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let mut line = Vec::new();
        if event(&frame, &POD, &mut line).is_ok() {
            serde_json::from_slice::<Json>(&line).unwrap();
        }
    }
}
