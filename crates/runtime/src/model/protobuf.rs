//! Watches of pods and nodes in Kubernetes' protobuf, converted to JSON with only the fields that plans read.
//!
//! The API server encodes protobuf several times faster than JSON, and once for all protobuf watches (kubelets,
//! kube-scheduler, kube-controller-manager). A reader skips fields without decoding them. The result is the API
//! server's JSON without unread fields, so that only [`crate::model::core_types`] defines what a field means.
//!
//! A table lists the read fields of a message, with the numbers of `generated.proto` of k8s.io/api, which never
//! change. Add a new field to its table too; an end-to-end test compares both formats of the API server.

use std::io::Write as _;

use jiff::Timestamp;

/// The Accept header for types that can be read in protobuf. Older and other servers may answer in JSON.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// The prefix of the content type of a protobuf answer.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The prefix of an object, before the envelope that names its kind.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are not Kubernetes' protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected protobuf in the answer: {0}")]
pub struct Malformed(pub &'static str);

/// A type that can be read in protobuf: its kind, and the fields that plans read.
#[derive(Debug)]
pub struct Type {
    kind: &'static str,
    fields: Table,
}

/// The fields of a message that plans read.
type Table = &'static [Field];

/// A field that plans read: its number, its name in JSON, and its type.
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
    /// Numbers that are not packed: Kubernetes writes each number with its own tag.
    Numbers,
    Flag,
    /// A metav1.Time.
    Time,
    /// A map of strings.
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

/// The API server's answer in place of an object.
static STATUS: Type = Type {
    kind: "Status",
    fields: &[
        field(3, "message", Text),
        field(4, "reason", Text),
        field(6, "code", Number),
        field(2, "status", Text),
    ],
};

/// Converts an event of a watch to its JSON line, `{"type":...,"object":...}`.
pub fn event(frame: &[u8], of: &Type, line: &mut Vec<u8>) -> Result<(), Malformed> {
    let event = fields(frame)?;
    line.extend_from_slice(b"{\"type\":");
    text(bytes(&event, 1)?.unwrap_or_default(), line);
    line.extend_from_slice(b",\"object\":");
    // A RawExtension, which contains the encoded object.
    let holder = fields(bytes(&event, 2)?.ok_or(Malformed("an event without an object"))?)?;
    object(bytes(&holder, 1)?.unwrap_or_default(), of, line)?;
    line.push(b'}');
    Ok(())
}

/// Converts an object to JSON, or a Status in its place.
pub fn object(encoded: &[u8], of: &Type, json: &mut Vec<u8>) -> Result<(), Malformed> {
    let envelope = encoded.strip_prefix(MAGIC).ok_or(Malformed("an object without the magic prefix"))?;
    let envelope = fields(envelope)?;
    let named = fields(bytes(&envelope, 1)?.unwrap_or_default())?;
    let kind = bytes(&named, 2)?.unwrap_or_default();
    let of = [of, &STATUS].into_iter().find(|of| of.kind.as_bytes() == kind);
    let of = of.ok_or(Malformed("an object of another kind"))?;
    message(bytes(&envelope, 2)?.ok_or(Malformed("an object without content"))?, of.fields, json)
}

/// Converts a Status to JSON.
pub fn status(encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut json = Vec::new();
    object(encoded, &STATUS, &mut json)?;
    Ok(json)
}

/// A field's value on the wire.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Eight or four bytes: no field that plans read has this type.
    Fixed,
}

/// The fields of a message, in wire order.
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
            _ => return Err(Malformed("a field of an unknown wire type")),
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

/// The value of a field; the last one if the field occurs several times.
fn last<'a>(fields: &[(u64, Value<'a>)], number: u32) -> Option<Value<'a>> {
    fields.iter().rev().find(|(of, _)| *of == u64::from(number)).map(|(_, value)| *value)
}

fn bytes<'a>(fields: &[(u64, Value<'a>)], number: u32) -> Result<Option<&'a [u8]>, Malformed> {
    last(fields, number).map(of_bytes).transpose()
}

fn of_bytes(value: Value<'_>) -> Result<&[u8], Malformed> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(Malformed("a number instead of text or a message")),
    }
}

fn of_varint(value: Value<'_>) -> Result<u64, Malformed> {
    match value {
        Value::Varint(number) => Ok(number),
        _ => Err(Malformed("no number where one is required")),
    }
}

/// Converts a message to a JSON object with the fields of the table.
///
/// As in the API server's JSON, empty strings and empty times are left out.
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
                        // Then only this object cannot be decoded, as in JSON.
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

/// The whole seconds of a metav1.Time; None if it is empty.
fn seconds(encoded: &[u8]) -> Result<Option<i64>, Malformed> {
    let found = fields(encoded)?;
    Ok(last(&found, 1).map(of_varint).transpose()?.map(u64::cast_signed))
}

/// Writes a comma, unless the next value is the first of its list or object.
fn separate(json: &mut Vec<u8>) {
    if !matches!(json.last(), Some(b'{' | b'[')) {
        json.push(b',');
    }
}

/// Writes a JSON string. Replaces invalid UTF-8, as the API server does.
fn text(value: &[u8], json: &mut Vec<u8>) {
    let value = String::from_utf8_lossy(value);
    // A write to memory does not fail.
    let _ = serde_json::to_writer(json, &value);
}

fn print(json: &mut Vec<u8>, value: impl std::fmt::Display) {
    let _ = write!(json, "{value}");
}

#[cfg(test)]
pub(crate) mod tests;
