//! Objects that are kept as this kind applies them: how one stands to what is wanted, and what that asks for.
//!
//! An object is applied when it differs in a field of ours, and only then. What others have put into it stays. One that
//! belongs to somebody else is left alone, and one that somebody keeps changing back is not fought over.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::is_recent;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Key, Meta, Object, Pairs};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::refusals::{Refusal, Refusals, Verb};
use quintet_runtime::model::resource::Resource;
use serde_json::{Map, Value, json};

use crate::api::PulsarConsumerStatus;

/// Annotation of what we apply: identifies what was applied last.
pub const APPLIED_ANNOTATION: &str = "quintet.dev/applied";
/// How soon something is looked at again that nobody reports: a stranger's object that went, an admission webhook that
/// no longer overrules us.
pub const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How soon an apply is looked at again of which the watch shows nothing, because it changed nothing.
pub const FOLLOW_UP: SignedDuration = SignedDuration::from_secs(5);

/// An apply that went through: where the object is afterwards what it was before, repeating it is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The type of what was applied.
    pub resource: Resource,
    /// Identifies what was applied and what it was applied to.
    pub over: String,
    /// When.
    pub at: Timestamp,
}

impl Tried {
    /// Whether it is not longer ago than a while.
    pub fn is_fresh(&self, within: SignedDuration, now: Timestamp) -> bool {
        is_recent(self.at, within, now)
    }
}

/// The last apply of each type.
pub type AllTried = BTreeMap<Resource, Tried>;

/// An object that can be kept.
pub trait Kept: Object {
    /// Its metadata, with our annotations.
    fn meta(&self) -> &Meta;
    /// Its spec, defaults and foreign fields included.
    fn spec(&self) -> &Value;
}

impl Kept for Deployment {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn spec(&self) -> &Value {
        &self.spec
    }
}

/// What an object should be like.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// Its type.
    pub resource: Resource,
    /// The object that it is for.
    pub owner: &'a Key,
    /// Its name.
    pub name: String,
    /// Every field that we own and no other; metadata.labels and spec are compared.
    pub body: Value,
}

/// How things stand with an object.
#[derive(Debug)]
pub enum Standing<'a, T> {
    /// It is as it should be.
    Settled(&'a T),
    /// It is to be applied, now.
    Due(Box<Due>),
    /// It is being applied.
    Applying,
    /// The API server has refused it lately.
    Refused(&'a Refusal, Option<&'a T>),
    /// It was applied, and this field is not as it was applied; when it is applied again.
    Overruled(String, &'a T, Timestamp),
    /// It is ours and on its way out.
    Terminating(&'a T),
    /// Its name is taken.
    NotOwned(&'a T),
}

/// An apply that is due.
#[derive(Debug)]
pub struct Due {
    resource: Resource,
    namespace: std::sync::Arc<str>,
    name: String,
    body: Value,
    /// What it goes over; none where there is nothing yet.
    over: Option<String>,
}

impl Due {
    /// The steps of it.
    pub fn steps(self, now: Timestamp) -> Vec<Vec<Action<PulsarConsumerStatus, Tried>>> {
        let Self { resource, namespace, name, body, over } = self;
        // What is not there yet may be a stranger's by the time it is applied.
        let force = over.is_some();
        let mut steps = vec![vec![Action::Apply { resource, namespace, name, body, force }]];
        if let Some(over) = over {
            steps.push(vec![Action::Effect(Tried { resource, over, at: now })]);
        }
        steps
    }
}

impl<'a, T: Kept> Standing<'a, T> {
    /// How `found`, the object of the target's name, stands to the target.
    pub fn of(
        target: Target<'_>,
        found: Option<&'a T>,
        refusals: &'a Refusals,
        tried: &AllTried,
        now: Timestamp,
    ) -> Self {
        let own = match found {
            Some(found) if !is_of(found, target.owner) => return Self::NotOwned(found),
            Some(own) if own.terminating() => return Self::Terminating(own),
            own => own,
        };
        let Target { resource, owner, name, mut body } = target;
        let applied = format!("v1-{}", digest::of_json(&body, 16));
        body["metadata"]["annotations"] = json!({ APPLIED_ANNOTATION: applied });
        let difference = own.map(|own| difference(&body, &applied, own));
        if let (Some(own), Some(None)) = (own, &difference) {
            return Self::Settled(own);
        }
        let refused = |verb| refusals.of(verb, &resource, &name).filter(|refusal| refusal.until > now);
        // What prepares an apply is part of it.
        if let Some(refusal) = [Verb::Apply, Verb::JsonPatch, Verb::MergePatch].into_iter().find_map(refused)
        {
            return Self::Refused(refusal, own);
        }
        let over = own.map(|own| fingerprint(&applied, own));
        if let (Some(own), Some(Some(difference)), Some(tried)) = (own, difference, tried.get(&resource))
            && over.as_ref() == Some(&tried.over)
            && tried.is_fresh(LOOK_AGAIN, now)
        {
            return Self::Overruled(difference, own, in_future(tried.at, LOOK_AGAIN));
        }
        if let Some(own) = own {
            // If another object has taken the name meanwhile, the server refuses.
            body["metadata"]["uid"] = json!(own.meta().uid);
        }
        Self::Due(Box::new(Due { resource, namespace: owner.namespace.clone(), name, body, over }))
    }

    /// Takes what is due.
    pub fn take_due(&mut self) -> Option<Due> {
        match std::mem::replace(self, Self::Applying) {
            Self::Due(due) => Some(*due),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The object, if it is ours.
    pub fn own(&self) -> Option<&'a T> {
        match self {
            Self::Settled(own) | Self::Overruled(_, own, _) | Self::Terminating(own) => Some(own),
            Self::Refused(_, own) => *own,
            Self::Due(_) | Self::Applying | Self::NotOwned(_) => None,
        }
    }

    /// When to look again, because nobody tells.
    pub fn look_again(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Settled(_) | Self::Applying => None,
            Self::Due(_) => Some(in_future(now, FOLLOW_UP)),
            Self::Refused(refusal, _) => Some(refusal.until),
            Self::Overruled(.., at) => Some(*at),
            Self::Terminating(_) | Self::NotOwned(_) => Some(in_future(now, LOOK_AGAIN)),
        }
    }

    /// The reason of a condition that is False because of it, and what to say; None where it is as it should be, or will
    /// be in a moment.
    pub fn trouble(&self, resource: &Resource, name: &str) -> Option<(&'static str, String)> {
        let what = format!("{} {name}", resource.kind);
        match self {
            Self::Settled(_) | Self::Due(_) | Self::Applying => None,
            Self::Refused(refusal, _) => {
                Some(("Refused", format!("{what} was refused: {}", refusal.message)))
            }
            Self::Overruled(path, ..) => Some((
                OVERRULED,
                format!(
                    "{what} was applied, but its {path} is not what was asked for: look for an admission webhook or an \
                     autoscaler that changes it."
                ),
            )),
            Self::Terminating(_) => Some((TERMINATING, format!("{what} is being deleted, then made again."))),
            Self::NotOwned(found) => {
                let owner = match &found.meta().owner {
                    Some(owner) if *owner.kind == *"PulsarConsumer" => {
                        format!("{} {} (UID {})", owner.kind, owner.name, owner.uid)
                    }
                    Some(owner) => format!("{} {}", owner.kind, owner.name),
                    None => "nobody".to_owned(),
                };
                Some((
                    NOT_OWNED,
                    format!(
                        "{what} exists already and belongs to {owner}. It is left alone: delete it, or give this \
                         PulsarConsumer another name."
                    ),
                ))
            }
        }
    }
}

/// The reason where an object is somebody else's.
pub const NOT_OWNED: &str = "NotOwned";
/// The reason where somebody changes an object back.
pub const OVERRULED: &str = "Overruled";
/// The reason where an object of ours is on its way out.
pub const TERMINATING: &str = "Terminating";

/// Whether an object's controller is `owner`.
pub fn is_of(found: &impl Kept, owner: &Key) -> bool {
    found.meta().is_controlled_by(owner)
}

/// `now` and a while.
pub fn in_future(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The first field of the body that is not so in the object.
fn difference(body: &Value, applied: &str, own: &impl Kept) -> Option<String> {
    let meta = own.meta();
    for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
        if meta.labels.get(key) != value.as_str() {
            return Some(format!("metadata.labels[{key}]"));
        }
    }
    if meta.annotations.get(APPLIED_ANNOTATION) != Some(applied) {
        return Some(format!("metadata.annotations[{APPLIED_ANNOTATION}]"));
    }
    missing(&body["spec"], Some(own.spec()), "spec")
}

/// The path of the first value of `wanted` that `found` does not have. What `found` has besides is others' and the
/// server's; lists of named things are lists of those things in any order, as for the server.
fn missing(wanted: &Value, found: Option<&Value>, path: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Some(Value::Object(found))) => {
            wanted.iter().find_map(|(key, value)| missing(value, found.get(key), &format!("{path}.{key}")))
        }
        (Value::Array(wanted), Some(Value::Array(found)))
            if !wanted.is_empty() && wanted.iter().all(|item| item["name"].is_string()) =>
        {
            wanted.iter().find_map(|item| {
                let name = &item["name"];
                let same = found.iter().find(|other| other["name"] == *name);
                missing(item, same, &format!("{path}[{}]", name.as_str().unwrap_or_default()))
            })
        }
        (Value::Array(wanted), Some(Value::Array(found)))
            if !wanted.is_empty() && wanted.iter().all(|item| item["topologyKey"].is_string()) =>
        {
            // These are keyed too, by two members.
            let key = |item: &Value| (item["topologyKey"].clone(), item["whenUnsatisfiable"].clone());
            wanted.iter().enumerate().find_map(|(at, item)| {
                let same = found.iter().find(|other| key(other) == key(item));
                missing(item, same, &format!("{path}[{at}]"))
            })
        }
        // Other lists are compared item by item: the server puts its defaults into their items too.
        (Value::Array(wanted), Some(Value::Array(found))) if wanted.len() == found.len() => {
            let pairs = wanted.iter().zip(found).enumerate();
            let mut differences = pairs
                .filter_map(|(at, (wanted, found))| missing(wanted, Some(found), &format!("{path}[{at}]")));
            differences.next()
        }
        // The server leaves out what is empty.
        (Value::String(wanted), None) if wanted.is_empty() => None,
        (Value::Object(fields), None) if fields.is_empty() => None,
        (Value::Array(items), None) if items.is_empty() => None,
        (Value::Null, None) => None,
        (wanted, found) if found.is_some_and(|found| is_same_quantity(wanted, found, path)) => None,
        (wanted, found) => (Some(wanted) != found).then(|| path.to_owned()),
    }
}

/// Whether two values are one quantity, written in two ways: the server writes quantities anew in a way of its own.
fn is_same_quantity(wanted: &Value, found: &Value, path: &str) -> bool {
    if !path.contains(".resources.") && !path.ends_with(".divisor") {
        return false;
    }
    let of = |value: &Value| match value {
        Value::String(text) => quantity(text),
        Value::Number(number) => quantity(&number.to_string()),
        _ => None,
    };
    of(wanted).is_some_and(|wanted| Some(wanted) == of(found))
}

/// A quantity in thousandths, rounded up as the server does, as `100m`, `1.5`, `2Gi` or `1e3` have it; None where it is none or
/// does not fit.
fn quantity(text: &str) -> Option<i128> {
    let digits =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (numerator, denominator): (i128, i128) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let exponent = exponent.strip_prefix(['e', 'E'])?.parse::<u32>().ok()?;
            (10_i128.checked_pow(exponent)?, 1)
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let value = format!("{whole}{fraction}").parse::<i128>().ok()?;
    let thousandths = value.checked_mul(numerator)?.checked_mul(1_000)?;
    let divisor = scale.checked_mul(denominator)?;
    Some(thousandths / divisor + i128::from(thousandths % divisor > 0))
}

/// Identifies an apply: what, and onto what.
fn fingerprint(applied: &str, own: &impl Kept) -> String {
    let pairs = |pairs: &Pairs| -> Map<String, Value> {
        pairs.iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
    };
    let meta = own.meta();
    let onto = json!([meta.uid, pairs(&meta.labels), pairs(&meta.annotations), own.spec()]);
    format!("{applied}-{}", digest::of_json(&onto, 24))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.5", "500m", true)]
    #[case("1", "1000m", true)]
    #[case("1024Mi", "1Gi", true)]
    #[case("1000Mi", "1Gi", false)]
    #[case("1e3", "1k", true)]
    #[case("0.0001", "1m", true)]
    #[case("1024Pi", "1Ei", true)]
    #[case("x", "x", false)]
    fn quantities_are_compared_by_value(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        let path = "spec.template.spec.containers[c].resources.limits.cpu";
        assert_eq!(is_same_quantity(&json!(one), &json!(other), path), same);
        assert!(!is_same_quantity(&json!(one), &json!(other), "spec.x"));
    }

    #[rstest]
    #[case(json!({ "a": 1 }), json!({ "a": 1, "b": 2 }), None)]
    #[case(json!({ "a": [{ "name": "x", "v": 1 }] }), json!({ "a": [{ "name": "y" }, { "name": "x", "v": 1, "d": 2 }] }), None)]
    #[case(json!({ "a": [{ "key": "k" }] }), json!({ "a": [{ "key": "k", "effect": "default" }] }), None)]
    #[case(json!({ "a": [{ "key": "k" }] }), json!({ "a": [] }), Some("spec.a"))]
    #[case(json!({ "a": { "b": 1 } }), json!({ "a": { "b": 2 } }), Some("spec.a.b"))]
    #[case(json!({ "a": "" }), json!({}), None)]
    #[case(json!({ "divisor": "1000m" }), json!({ "divisor": "1" }), None)]
    #[case(json!({ "a": [{ "topologyKey": "k", "whenUnsatisfiable": "w", "maxSkew": 1 }] }),
        json!({ "a": [{ "topologyKey": "theirs" }, { "topologyKey": "k", "whenUnsatisfiable": "w", "maxSkew": 1 }] }), None)]
    fn what_is_missing_is_named(#[case] wanted: Value, #[case] found: Value, #[case] path: Option<&str>) {
        assert_eq!(missing(&wanted, Some(&found), "spec").as_deref(), path);
    }
}
