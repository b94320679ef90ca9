//! Watches of pods and nodes in Kubernetes' protobuf, read into the JSON of just the fields that are read.
//!
//! The API server writes an object in protobuf several times faster than in JSON, does it once for all who watch the same
//! in it (kubelets, kube-scheduler and kube-controller-manager do), and a reader passes over what it does not want without
//! looking at it. What comes out is the JSON that the server would have sent, without the fields that the types of
//! [`crate::types`] do not have: they decide what a field means, in one place, whatever it came in.
//!
//! A table lists the fields of a message that are read, with the numbers of `generated.proto` of k8s.io/api, which never
//! change. A field that a type begins to read is added to its table too; an end-to-end test holds both against the API
//! server.

use std::io::Write as _;

use jiff::Timestamp;

use crate::resource::{NODES, PODS, Resource};

/// What a watch asks for where there is a table: older and stranger servers may answer in JSON.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// How the content type of an answer in protobuf begins.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// How an object begins, before the envelope that names its kind.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are not the protobuf which Kubernetes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not the protobuf that was expected: {0}")]
pub struct Malformed(pub &'static str);

/// The fields of a message that are read.
pub type Table = &'static [Field];

/// A field that is read: its number, its name in JSON, and what it holds.
#[derive(Debug)]
pub struct Field {
    number: u32,
    name: &'static str,
    holds: Holds,
}

#[derive(Clone, Copy, Debug)]
enum Holds {
    Text,
    Texts,
    Number,
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

use Holds::{Flag, Map, Message, Messages, Number, Text, Texts, Time};

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

const POD: Table = &[
    field(1, "metadata", Message(META)),
    field(2, "spec", Message(&[field(10, "nodeName", Text)])),
    field(3, "status", Message(POD_STATUS)),
];

const POD_STATUS: Table = &[
    field(1, "phase", Text),
    field(4, "reason", Text),
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

const NODE: Table = &[
    field(1, "metadata", Message(META)),
    field(2, "spec", Message(&[field(4, "unschedulable", Flag), field(5, "taints", Messages(TAINT))])),
    field(
        3,
        "status",
        Message(&[field(4, "conditions", Messages(CONDITION)), field(7, "nodeInfo", Message(NODE_INFO))]),
    ),
];

const TAINT: Table = &[field(1, "key", Text), field(2, "value", Text), field(3, "effect", Text)];

const NODE_INFO: Table = &[field(3, "bootID", Text)];

/// What the server answers instead of an object.
const STATUS: Table = &[
    field(3, "message", Text),
    field(4, "reason", Text),
    field(6, "code", Number),
    field(2, "status", Text),
];

/// The fields that are read of a type; None where it is read from JSON, as all custom resources are.
pub fn table(resource: &Resource) -> Option<Table> {
    match *resource {
        PODS => Some(POD),
        NODES => Some(NODE),
        _ => None,
    }
}

/// Writes what is read of an event of a watch as the line that it is in JSON: `{"type":...,"object":...}`.
pub fn event(frame: &[u8], table: Table, line: &mut Vec<u8>) -> Result<(), Malformed> {
    let event = fields(frame)?;
    line.extend_from_slice(b"{\"type\":");
    text(bytes(&event, 1)?.unwrap_or_default(), line);
    line.extend_from_slice(b",\"object\":");
    // A RawExtension, which holds the object as it would stand alone.
    let holder = fields(bytes(&event, 2)?.ok_or(Malformed("an event without an object"))?)?;
    object(bytes(&holder, 1)?.unwrap_or_default(), table, line)?;
    line.push(b'}');
    Ok(())
}

/// Writes what is read of an object as JSON; of a Status, where that is what stands there.
pub fn object(encoded: &[u8], table: Table, json: &mut Vec<u8>) -> Result<(), Malformed> {
    let envelope = encoded.strip_prefix(MAGIC).ok_or(Malformed("an object does not begin as such"))?;
    let envelope = fields(envelope)?;
    let of_type = fields(bytes(&envelope, 1)?.unwrap_or_default())?;
    let is_status = bytes(&of_type, 2)? == Some(b"Status");
    message(bytes(&envelope, 2)?.unwrap_or_default(), if is_status { STATUS } else { table }, json)
}

/// The JSON of a Status.
pub fn status(encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut json = Vec::new();
    object(encoded, STATUS, &mut json)?;
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
                if let Some(time) = time(of_bytes(value)?)? {
                    named(json);
                    json.push(b'"');
                    print(json, time);
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
fn time(encoded: &[u8]) -> Result<Option<Timestamp>, Malformed> {
    let found = fields(encoded)?;
    let Some(seconds) = last(&found, 1) else { return Ok(None) };
    let seconds = of_varint(seconds)?.cast_signed();
    Timestamp::from_second(seconds).map(Some).map_err(|_| Malformed("a time beyond all years"))
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
    use crate::informer::Informer;
    use crate::link::Link;
    use crate::metrics::Metrics;
    use crate::types::{Node, Pod};

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

    fn json_of(encoded: &[u8], table: Table) -> Json {
        let mut json = Vec::new();
        object(encoded, table, &mut json).unwrap();
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
        [put(1, meta.concat()), put(2, put(10, "node-1")), put(3, status.concat())].concat()
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
            "spec": {"nodeName": "node-1"},
            "status": {
                "phase": "Failed",
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"name": "main", "ready": false, "restartCount": 3, "lastState": {},
                    "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:05Z"}}}]},
        });
        assert_eq!(json_of(&enveloped("Pod", &pod()), POD), expected);
        let pod: Pod = serde_json::from_value(expected).unwrap();
        assert_eq!(pod.exits[0].code, 137);
    }

    #[test]
    fn an_event_becomes_a_line() {
        let frame = [put(1, "MODIFIED"), put(2, put(1, enveloped("Pod", &pod())))].concat();
        let mut line = Vec::new();
        event(&frame, POD, &mut line).unwrap();
        let line: Json = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["type"], &line["object"]["metadata"]["name"]), (&json!("MODIFIED"), &json!("p")));
        assert_eq!(
            event(&put(1, "ADDED"), POD, &mut Vec::new()),
            Err(Malformed("an event without an object"))
        );
    }

    #[test]
    fn what_the_server_says_instead_is_understood() {
        let said = [put(2, "Failure"), put(3, "too old"), put(4, "Expired"), put_number(6, 410)].concat();
        let said = enveloped("Status", &said);
        let expected = json!({"status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
        assert_eq!(json_of(&said, POD), expected);
        assert_eq!(serde_json::from_slice::<Json>(&status(&said).unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_node_is_read() {
        let taint = [put(1, "k"), put(2, ""), put(3, "NoSchedule")].concat();
        let ready = [put(1, "Ready"), put(2, "True"), put(3, put_number(1, 5))].concat();
        let node = [
            put(1, put(1, "n")),
            put(2, [put_number(4, 1), put(5, taint)].concat()),
            put(3, [put(4, ready), put(7, put(3, "boot"))].concat()),
        ];
        let node: Node = serde_json::from_value(json_of(&enveloped("Node", &node.concat()), NODE)).unwrap();
        assert!(node.unschedulable && node.ready);
        assert_eq!(
            (&*node.taints[0].key, &*node.taints[0].effect, &*node.boot_id),
            ("k", "NoSchedule", "boot")
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
            refused += usize::from(object(&whole[..end], POD, &mut Vec::new()).is_err());
        }
        // It may end between two fields of the envelope.
        assert!(refused >= whole.len() - 3, "{refused} of {}", whole.len());
        assert!(object(b"{\"kind\":\"Pod\"}", POD, &mut Vec::new()).is_err());
    }

    /// A frame of a watch.
    fn frame(type_: &str, object: &[u8]) -> Vec<u8> {
        let event = [put(1, type_), put(2, put(1, object))].concat();
        [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
    }

    fn named(name: &str, version: &str) -> Vec<u8> {
        let end = put(12, [put(1, "k8s.io/initial-events-end"), put(2, "true")].concat());
        enveloped("Pod", &put(1, [put(1, name), put(5, name), put(6, version), end].concat()))
    }

    /// Follows a script of answers, each with its code and, where it is protobuf, its content type; says which names an
    /// informer has then, and which requests were for JSON.
    async fn follow(answers: Vec<(u16, bool, Vec<u8>)>) -> (Vec<String>, Vec<bool>) {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock().unwrap().push(request.headers().get(header::ACCEPT).is_none());
            let answer = answers.lock().unwrap().pop_front();
            async move {
                let Some((code, is_protobuf, body)) = answer else { return std::future::pending().await };
                let of = if is_protobuf {
                    "application/vnd.kubernetes.protobuf;stream=watch"
                } else {
                    "application/json"
                };
                Response::builder().status(code).header(header::CONTENT_TYPE, of).body(Body::from(body))
            }
        });
        let informer: Informer<Pod> = Informer::new(PODS, &[], None);
        let task =
            informer.clone().run(Client::new(service, "default"), Metrics::new().unwrap(), Link::default());
        let _ = tokio::time::timeout(Duration::from_mins(5), task).await;
        let names = informer.all().iter().map(|pod| pod.meta.name.to_string()).collect();
        let asked = asked.lock().unwrap().clone();
        (names, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn an_informer_follows_a_watch_in_protobuf() {
        let list = [frame("ADDED", &named("a", "1")), frame("BOOKMARK", &named("", "1"))].concat();
        // The second event is cut off: the watch is continued, and it comes again.
        let cut = frame("ADDED", &named("c", "3"));
        let events = [&frame("ADDED", &named("b", "2"))[..], &cut[..cut.len() - 1]].concat();
        let expired = [put(2, "Failure"), put(3, "too old"), put(4, "Expired"), put_number(6, 410)].concat();
        let expired = enveloped("Status", &expired);
        let again = [frame("ADDED", &named("c", "3")), frame("BOOKMARK", &named("", "3"))].concat();
        let answers = vec![(200, true, list), (200, true, events), (410, true, expired), (200, true, again)];
        // What the second list does not show is gone: the code of the refusal was understood.
        assert_eq!(follow(answers).await, (vec!["c".to_owned()], vec![false; 5]));
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
        let (names, asked) = follow(vec![(200, false, in_json.clone())]).await;
        assert_eq!((names, &asked[..2]), (vec!["a".to_owned()], &[false, false][..]));
        // One whose protobuf is none, and one whose event has no end.
        for broken in [frame("ADDED", b"an object"), vec![0xff; 8]] {
            let (names, asked) = follow(vec![(200, true, broken), (200, false, in_json.clone())]).await;
            assert_eq!((names, asked), (vec!["a".to_owned()], vec![false, true, true]));
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_refused_or_becomes_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for table in [POD, NODE, STATUS] {
                let mut json = Vec::new();
                if message(&bytes, table, &mut json).is_ok() {
                    serde_json::from_slice::<Json>(&json).unwrap();
                }
            }
        }
    }
}
