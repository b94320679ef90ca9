//! Watches of pods and nodes in Kubernetes' protobuf, read into the JSON of just the fields that are read.
//!
//! The API server writes an object in protobuf several times faster than in JSON, does it once for all who watch the same
//! in it (kubelets, kube-scheduler and kube-controller-manager do), and a reader passes over what it does not want without
//! looking at it. What comes out is the JSON that the server would have sent, without the fields that the types of
//! [`crate::model::core_types`] do not have: they decide what a field means, in one place, whatever it came in.
//!
//! A table lists the fields of a message that are read, with the numbers of `generated.proto` of k8s.io/api, which never
//! change. A field that a type begins to read is added to its table too; an end-to-end test holds both against the API
//! server.

use std::io::Write as _;

use jiff::Timestamp;

/// What is asked for where a type can be read in protobuf: older and stranger servers may answer in JSON.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// How the content type of an answer in protobuf begins.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// How an object begins, before the envelope that names its kind.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are not the protobuf which Kubernetes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not the protobuf that was expected: {0}")]
pub struct Malformed(pub &'static str);

/// A type of object that can be read in protobuf: its kind, and the fields that are read.
#[derive(Debug)]
pub struct Type {
    kind: &'static str,
    fields: Table,
}

/// The fields of a message that are read.
type Table = &'static [Field];

/// A field that is read: its number, its name in JSON, and what it holds.
#[derive(Debug)]
struct Field {
    number: u32,
    name: &'static str,
    holds: Holds,
}

#[derive(Clone, Copy, Debug)]
enum Holds {
    Text,
    Texts,
    Number,
    /// Numbers that are not packed: Kubernetes writes each with its own tag.
    Numbers,
    Flag,
    /// A metav1.Time.
    Time,
    /// A map of text to text.
    Map,
    Message(Table),
    Messages(Table),
}

const fn field(number: u32, name: &'static str, holds: Holds) -> Field {
    Field { number, name, holds }
}

use Holds::{Flag, Map, Message, Messages, Number, Numbers, Text, Texts, Time};

const META: Table = &[
    field(1, "name", Text),
    field(3, "namespace", Text),
    field(5, "uid", Text),
    field(6, "resourceVersion", Text),
    field(7, "generation", Number),
    field(8, "creationTimestamp", Time),
    field(9, "deletionTimestamp", Time),
    field(10, "deletionGracePeriodSeconds", Number),
    field(11, "labels", Map),
    field(12, "annotations", Map),
    field(13, "ownerReferences", Messages(OWNER)),
    field(14, "finalizers", Texts),
];

const OWNER: Table = &[
    field(5, "apiVersion", Text),
    field(1, "kind", Text),
    field(3, "name", Text),
    field(4, "uid", Text),
    field(6, "controller", Flag),
];

const CONDITION: Table = &[
    field(1, "type", Text),
    field(2, "status", Text),
    field(4, "lastTransitionTime", Time),
    field(5, "reason", Text),
    field(6, "message", Text),
];

/// A [`crate::model::core_types::Pod`].
pub static POD: Type = Type {
    kind: "Pod",
    fields: &[
        field(1, "metadata", Message(META)),
        field(2, "spec", Message(POD_SPEC)),
        field(3, "status", Message(POD_STATUS)),
    ],
};

const POD_SPEC: Table = &[
    field(10, "nodeName", Text),
    field(3, "restartPolicy", Text),
    field(20, "initContainers", Messages(CONTAINER_SPEC)),
    field(2, "containers", Messages(CONTAINER_SPEC)),
];

const CONTAINER_SPEC: Table = &[
    field(1, "name", Text),
    field(24, "restartPolicy", Text),
    field(25, "restartPolicyRules", Messages(RESTART_RULE)),
];

const RESTART_RULE: Table = &[field(1, "action", Text), field(2, "exitCodes", Message(EXIT_CODES))];

const EXIT_CODES: Table = &[field(1, "operator", Text), field(2, "values", Numbers)];

const POD_STATUS: Table = &[
    field(1, "phase", Text),
    field(4, "reason", Text),
    field(3, "message", Text),
    field(2, "conditions", Messages(CONDITION)),
    field(8, "containerStatuses", Messages(CONTAINER)),
    field(10, "initContainerStatuses", Messages(CONTAINER)),
];

const CONTAINER: Table = &[
    field(1, "name", Text),
    field(4, "ready", Flag),
    field(5, "restartCount", Number),
    field(2, "state", Message(CONTAINER_STATE)),
    field(3, "lastState", Message(CONTAINER_STATE)),
];

const CONTAINER_STATE: Table = &[
    field(1, "waiting", Message(&[field(1, "reason", Text)])),
    field(2, "running", Message(&[field(1, "startedAt", Time)])),
    field(3, "terminated", Message(TERMINATED)),
];

const TERMINATED: Table = &[
    field(1, "exitCode", Number),
    field(3, "reason", Text),
    field(4, "message", Text),
    field(5, "startedAt", Time),
    field(6, "finishedAt", Time),
];

/// A [`crate::model::core_types::Node`].
pub static NODE: Type = Type {
    kind: "Node",
    fields: &[
        field(1, "metadata", Message(META)),
        field(2, "spec", Message(&[field(4, "unschedulable", Flag), field(5, "taints", Messages(TAINT))])),
        field(3, "status", Message(NODE_STATUS)),
    ],
};

const NODE_STATUS: Table =
    &[field(4, "conditions", Messages(CONDITION)), field(7, "nodeInfo", Message(NODE_INFO))];

const TAINT: Table = &[field(1, "key", Text), field(2, "value", Text), field(3, "effect", Text)];

const NODE_INFO: Table = &[field(1, "machineID", Text), field(3, "bootID", Text)];

/// What the server answers instead of an object.
static STATUS: Type = Type {
    kind: "Status",
    fields: &[
        field(3, "message", Text),
        field(4, "reason", Text),
        field(6, "code", Number),
        field(2, "status", Text),
    ],
};

/// Writes what is read of an event of a watch as the line that it is in JSON: `{"type":...,"object":...}`.
pub fn event(frame: &[u8], of: &Type, line: &mut Vec<u8>) -> Result<(), Malformed> {
    let event = fields(frame)?;
    line.extend_from_slice(b"{\"type\":");
    text(bytes(&event, 1)?.unwrap_or_default(), line);
    line.extend_from_slice(b",\"object\":");
    // A RawExtension, which holds the object as it would stand alone.
    let holder = fields(bytes(&event, 2)?.ok_or(Malformed("an event without an object"))?)?;
    object(bytes(&holder, 1)?.unwrap_or_default(), of, line)?;
    line.push(b'}');
    Ok(())
}

/// Writes what is read of an object as JSON; of a Status, where that is what stands there.
pub fn object(encoded: &[u8], of: &Type, json: &mut Vec<u8>) -> Result<(), Malformed> {
    let envelope = encoded.strip_prefix(MAGIC).ok_or(Malformed("an object does not begin as such"))?;
    let envelope = fields(envelope)?;
    let named = fields(bytes(&envelope, 1)?.unwrap_or_default())?;
    let kind = bytes(&named, 2)?.unwrap_or_default();
    let of = [of, &STATUS].into_iter().find(|of| of.kind.as_bytes() == kind);
    let of = of.ok_or(Malformed("an object of another kind"))?;
    message(bytes(&envelope, 2)?.ok_or(Malformed("an object without content"))?, of.fields, json)
}

/// The JSON of a Status.
pub fn status(encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut json = Vec::new();
    object(encoded, &STATUS, &mut json)?;
    Ok(json)
}

/// A field's value as it stands on the wire.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Eight or four bytes: no field that is read has them.
    Fixed,
}

/// The fields of a message, in the order in which they stand.
fn fields(mut message: &[u8]) -> Result<Vec<(u64, Value<'_>)>, Malformed> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut message)?),
            1 => {
                take(&mut message, 8)?;
                Value::Fixed
            }
            2 => {
                let length = varint(&mut message)?;
                Value::Bytes(take(&mut message, length)?)
            }
            5 => {
                take(&mut message, 4)?;
                Value::Fixed
            }
            _ => return Err(Malformed("a field of no known wire type")),
        };
        fields.push((tag >> 3, value));
    }
    Ok(fields)
}

fn varint(from: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(Malformed("it ends within a number"))?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("a number of more than 64 bits"))
}

fn take<'a>(from: &mut &'a [u8], length: u64) -> Result<&'a [u8], Malformed> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (taken, rest) = from.split_at_checked(length).ok_or(Malformed("it ends within a field"))?;
    *from = rest;
    Ok(taken)
}

/// What a field holds; the last counts where it stands there several times.
fn last<'a>(fields: &[(u64, Value<'a>)], number: u32) -> Option<Value<'a>> {
    fields.iter().rev().find(|(of, _)| *of == u64::from(number)).map(|(_, value)| *value)
}

fn bytes<'a>(fields: &[(u64, Value<'a>)], number: u32) -> Result<Option<&'a [u8]>, Malformed> {
    last(fields, number).map(of_bytes).transpose()
}

fn of_bytes(value: Value<'_>) -> Result<&[u8], Malformed> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(Malformed("a number where text or a message should be")),
    }
}

fn of_varint(value: Value<'_>) -> Result<u64, Malformed> {
    match value {
        Value::Varint(number) => Ok(number),
        _ => Err(Malformed("no number where one should be")),
    }
}

/// Writes a message as a JSON object of what is read of it.
///
/// As in the server's JSON a text that is empty is left out, and so is a time that is none.
fn message(encoded: &[u8], table: Table, json: &mut Vec<u8>) -> Result<(), Malformed> {
    let found = fields(encoded)?;
    json.push(b'{');
    for Field { number, name, holds } in table {
        let named = |json: &mut Vec<u8>| {
            separate(json);
            text(name.as_bytes(), json);
            json.push(b':');
        };
        let all = || found.iter().filter(|(of, _)| *of == u64::from(*number)).map(|(_, value)| *value);
        let Some(value) = last(&found, *number) else { continue };
        match *holds {
            Text => {
                let value = of_bytes(value)?;
                if !value.is_empty() {
                    named(json);
                    text(value, json);
                }
            }
            Number => {
                named(json);
                print(json, of_varint(value)?.cast_signed());
            }
            Flag => {
                named(json);
                print(json, of_varint(value)? != 0);
            }
            Time => {
                if let Some(seconds) = seconds(of_bytes(value)?)? {
                    named(json);
                    json.push(b'"');
                    match Timestamp::from_second(seconds) {
                        Ok(time) => print(json, time),
                        // The object cannot be decoded then, as in JSON; it alone.
                        Err(_) => print(json, format_args!("{seconds} s after 1970")),
                    }
                    json.push(b'"');
                }
            }
            Message(table) => {
                named(json);
                message(of_bytes(value)?, table, json)?;
            }
            Messages(table) => {
                named(json);
                json.push(b'[');
                for value in all() {
                    separate(json);
                    message(of_bytes(value)?, table, json)?;
                }
                json.push(b']');
            }
            Texts => {
                named(json);
                json.push(b'[');
                for value in all() {
                    separate(json);
                    text(of_bytes(value)?, json);
                }
                json.push(b']');
            }
            Numbers => {
                named(json);
                json.push(b'[');
                for value in all() {
                    separate(json);
                    print(json, of_varint(value)?.cast_signed());
                }
                json.push(b']');
            }
            Map => {
                named(json);
                json.push(b'{');
                for value in all() {
                    let entry = fields(of_bytes(value)?)?;
                    separate(json);
                    text(bytes(&entry, 1)?.unwrap_or_default(), json);
                    json.push(b':');
                    text(bytes(&entry, 2)?.unwrap_or_default(), json);
                }
                json.push(b'}');
            }
        }
    }
    json.push(b'}');
    Ok(())
}

/// A metav1.Time, which has whole seconds; None where it is empty.
fn seconds(encoded: &[u8]) -> Result<Option<i64>, Malformed> {
    let found = fields(encoded)?;
    Ok(last(&found, 1).map(of_varint).transpose()?.map(u64::cast_signed))
}

/// A comma, unless what is written next is the first of its kind.
fn separate(json: &mut Vec<u8>) {
    if !matches!(json.last(), Some(b'{' | b'[')) {
        json.push(b',');
    }
}

/// Text as JSON. What is not UTF-8 is replaced, as the server does it.
fn text(value: &[u8], json: &mut Vec<u8>) {
    let value = String::from_utf8_lossy(value);
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(json, &value);
}

fn print(json: &mut Vec<u8>, value: impl std::fmt::Display) {
    let _ = write!(json, "{value}");
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use http::{Request, Response, header};
    use kube::Client;
    use kube::client::Body;
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::cache::informer::{Change, Informer};
    use crate::model::core_types::{Node, Pod};
    use crate::model::resource::PODS;
    use crate::server::connectivity::Link;

    /// A field on the wire: bytes of a message, or of a text.
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
        let owner =
            [put(1, "DaemonJob"), put(3, "d"), put(4, "1"), put(5, "dj.dysproz.io/v1"), put_number(6, 1)];
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
            put(17, "a manager of fields, which nobody reads"),
        ];
        let ended =
            [put_number(1, 137), put(3, "OOMKilled"), put(4, ""), put(6, put_number(1, 1_767_225_605))];
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
    fn an_object_becomes_the_json_of_what_is_read_of_it() {
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
    fn sidecars_and_running_containers_are_read() {
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
    fn a_rejection_is_read() {
        let ready = [put(1, "Ready"), put(2, "False"), put(4, put_number(1, 5))].concat();
        let status =
            [put(1, "Failed"), put(2, ready), put(3, "Pod was rejected"), put(4, "OutOfcpu")].concat();
        let pod: Pod = serde_json::from_value(json_of(&enveloped("Pod", &put(3, status)), &POD)).unwrap();
        assert_eq!(pod.rejection.as_deref(), Some("OutOfcpu: Pod was rejected"));
        assert_eq!(pod.finished, Timestamp::from_second(5).ok());
    }

    #[test]
    fn packed_numbers_are_refused() {
        let packed = put(2, [1, 2]);
        let refused = message(&packed, EXIT_CODES, &mut Vec::new());
        assert_eq!(refused, Err(Malformed("no number where one should be")));
    }

    #[test]
    fn an_event_becomes_a_line() {
        let frame = frame("MODIFIED", &enveloped("Pod", &pod()));
        let mut line = Vec::new();
        event(&frame[4..], &POD, &mut line).unwrap();
        let line: Json = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["type"], &line["object"]["metadata"]["name"]), (&json!("MODIFIED"), &json!("p")));
        assert_eq!(
            event(&put(1, "ADDED"), &POD, &mut Vec::new()),
            Err(Malformed("an event without an object"))
        );
    }

    #[test]
    fn what_the_server_says_instead_is_understood() {
        let said = expired();
        let expected = json!({"status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
        assert_eq!(json_of(&said, &POD), expected);
        assert_eq!(serde_json::from_slice::<Json>(&status(&said).unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_node_is_read() {
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
    fn a_negative_number_and_an_empty_time_are_what_they_are_in_json() {
        let ended = [put_number(1, (-1_i64).cast_unsigned()), put(5, [])].concat();
        let mut json = Vec::new();
        message(&ended, TERMINATED, &mut json).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), r#"{"exitCode":-1}"#);
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused() {
        let whole = enveloped("Pod", &pod());
        let mut refused = 0;
        for end in 0..whole.len() {
            refused += usize::from(object(&whole[..end], &POD, &mut Vec::new()).is_err());
        }
        // It may end between two fields of the envelope.
        assert!(refused >= whole.len() - 3, "{refused} of {}", whole.len());
        assert!(object(b"{\"kind\":\"Pod\"}", &POD, &mut Vec::new()).is_err());
    }

    #[test]
    fn an_object_without_content_or_of_another_kind_is_refused() {
        let refused = |encoded: &[u8]| object(encoded, &POD, &mut Vec::new()).unwrap_err().0;
        assert_eq!(refused(MAGIC), "an object of another kind");
        assert_eq!(refused(&enveloped("Node", &pod())), "an object of another kind");
        let bare = [MAGIC, &put(1, put(2, "Pod"))].concat();
        assert_eq!(refused(&bare), "an object without content");
    }

    #[test]
    fn a_time_beyond_all_years_concerns_its_object_alone() {
        let late = put(1, [put(1, "p"), put(8, put_number(1, u64::MAX / 2))].concat());
        let json = json_of(&enveloped("Pod", &late), &POD);
        assert!(serde_json::from_value::<Pod>(json).is_err());
    }

    /// A frame of a watch: four bytes that say its length, and an event.
    fn frame(type_: &str, object: &[u8]) -> Vec<u8> {
        let event = [put(1, type_), put(2, put(1, object))].concat();
        [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
    }

    fn named(name: &str, version: &str) -> Vec<u8> {
        let label = put(11, [put(1, "version"), put(2, version)].concat());
        let end = put(12, [put(1, "k8s.io/initial-events-end"), put(2, "true")].concat());
        enveloped("Pod", &put(1, [put(1, name), put(5, name), put(6, version), label, end].concat()))
    }

    fn expired() -> Vec<u8> {
        let said = [put(2, "Failure"), put(3, "too old"), put(4, "Expired"), put_number(6, 410)];
        enveloped("Status", &said.concat())
    }

    /// What an informer does with a script of answers.
    struct Followed {
        /// What it told its subscribers.
        told: Vec<String>,
        /// Where the requests were to begin, and whether they were for JSON.
        asked: Vec<(String, bool)>,
    }

    /// Follows a script of answers: the code, the content type, the body.
    async fn follow(answers: Vec<(u16, &'static str, Vec<u8>)>) -> Followed {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let from =
                query.split('&').find_map(|word| word.strip_prefix("resourceVersion=")).unwrap_or("list");
            log.lock().unwrap().push((from.to_owned(), request.headers().get(header::ACCEPT).is_none()));
            let answer = answers.lock().unwrap().pop_front();
            async move {
                let Some((code, of, body)) = answer else { return std::future::pending().await };
                Response::builder().status(code).header(header::CONTENT_TYPE, of).body(Body::from(body))
            }
        });
        let informer: Informer<Pod> = Informer::new(PODS, &[], None);
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        informer.subscribe(move |change| {
            let how = match change {
                Change::Applied { old: None, .. } => "new",
                Change::Applied { .. } => "changed",
                Change::Deleted { .. } => "deleted",
                Change::Undecodable { .. } | Change::Vanished { .. } => "undecodable",
            };
            let name = change.object().map(|pod| pod.meta.name.to_string()).unwrap_or_default();
            sink.lock().unwrap().push(format!("{how} {name}"));
        });
        let task = informer.run(Client::new(service, "default"), Link::default());
        let _ = tokio::time::timeout(Duration::from_mins(2), task).await;
        let (told, asked) = (told.lock().unwrap().clone(), asked.lock().unwrap().clone());
        Followed { told, asked }
    }

    fn asked(of: &[(&str, bool)]) -> Vec<(String, bool)> {
        of.iter().map(|(from, json)| ((*from).to_owned(), *json)).collect()
    }

    const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

    #[tokio::test(start_paused = true)]
    async fn an_informer_follows_a_watch_in_protobuf() {
        let list = |name: &str, version: &str| {
            [frame("ADDED", &named(name, version)), frame("BOOKMARK", &named("", version))].concat()
        };
        // The last event is cut off: the watch is continued before it.
        let cut = frame("ADDED", &named("c", "5"));
        let events = [
            &frame("ADDED", &named("b", "2"))[..],
            &frame("MODIFIED", &named("a", "3")),
            &frame("DELETED", &named("b", "4")),
            &cut[..cut.len() - 1],
        ];
        let followed = follow(vec![
            (200, WATCH, list("a", "1")),
            (200, WATCH, events.concat()),
            // Said in a watch, and instead of one.
            (200, WATCH, frame("ERROR", &expired())),
            (200, WATCH, list("a", "6")),
            (410, CONTENT_TYPE, expired()),
            (200, WATCH, list("c", "7")),
        ])
        .await;
        assert_eq!(
            followed.told,
            ["new a", "new b", "changed a", "deleted b", "changed a", "new c", "deleted a"]
        );
        let from = ["list", "1", "4", "list", "6", "list", "7"].map(|from| (from, false));
        assert_eq!(followed.asked, asked(&from));
    }

    #[tokio::test(start_paused = true)]
    async fn an_informer_asks_for_json_where_protobuf_cannot_be_read() {
        let line = |type_: &str, name: &str| {
            let meta = json!({"name": name, "uid": name, "resourceVersion": "1",
                "annotations": {"k8s.io/initial-events-end": "true"}});
            format!("{}\n", json!({"type": type_, "object": {"metadata": meta}})).into_bytes()
        };
        let in_json = [line("ADDED", "a"), line("BOOKMARK", "")].concat();
        // A server that answers in JSON whatever it is asked for.
        let followed = follow(vec![(200, "application/json", in_json.clone())]).await;
        assert_eq!(followed.told, ["new a"]);
        assert_eq!(followed.asked, asked(&[("list", false), ("1", false)]));
        let frame = frame("ADDED", &named("a", "1"));
        for (code, of, body) in [
            (200, WATCH, self::frame("ADDED", b"an object")),
            (200, WATCH, vec![0xff; 8]),
            // A proxy that thinks it knows what it carries, and one that carries JSON alone.
            (200, "application/json", [&frame[..], b"\n"].concat()),
            (406, "text/html", b"<html>".to_vec()),
        ] {
            let followed = follow(vec![(code, of, body), (200, "application/json", in_json.clone())]).await;
            assert_eq!(followed.told, ["new a"], "{code} {of}");
            assert_eq!(followed.asked, asked(&[("list", false), ("list", true), ("1", true)]), "{code} {of}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_understood_whoever_says_it() {
        let list = frame("BOOKMARK", &named("", "1"));
        for (of, body) in [
            (CONTENT_TYPE, expired()),
            ("text/html", b"<html>".to_vec()),
            ("application/json", b"{}".to_vec()),
        ] {
            let followed = follow(vec![(200, WATCH, list.clone()), (410, of, body)]).await;
            assert_eq!(followed.asked, asked(&[("list", false), ("1", false), ("list", false)]), "{of}");
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_refused_or_becomes_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for of in [&POD, &NODE, &STATUS] {
                let mut json = Vec::new();
                if message(&bytes, of.fields, &mut json).is_ok() {
                    serde_json::from_slice::<Json>(&json).unwrap();
                }
            }
        }

        #[test]
        fn whatever_becomes_of_an_event_is_refused_or_becomes_a_line(
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
}
