//! Random sequences of specs, generated from a kind's schema, valid and invalid. The end must equal the end
//! of a run with only the last spec. The name of a sequence reproduces it: `podset.17`.

use std::time::Duration;

use http::Method;
use quintet_fake_apiserver::Server;
use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::end;
use crate::plan::{Fault, Plan};
use crate::process::Kind;
use crate::run::{Outcome, types};
use crate::scenarios::{
    BOOKS, CONSUMERS, DAEMONJOBS, GREETINGS, PODSETS, Story, WHO, When, orphan, orphans, two_nodes,
};
use crate::sweep::guarded;
use crate::watcher::Keeps;

/// The number of sequences for each kind.
pub const EACH: usize = 1_000;

/// The generator's input for one kind.
struct Subject {
    /// The first part of the sequences' names.
    name: &'static str,
    serves: &'static [Kind],
    plural: &'static str,
    collection: &'static str,
    /// The values of a field by its path. Other fields follow from the schema.
    values: fn(&str) -> Option<&'static [&'static str]>,
    /// Fields that the last spec omits, because with them the end depends on earlier specs by design.
    history: &'static [&'static str],
    /// Fields that the last spec has, as a rule demands that the fake server does not know.
    always: &'static [&'static str],
    /// Whether there are pods without an owner, and some deletions keep the pods.
    adopts: bool,
}

/// The reasons to omit a field from the last spec: `partition`, `OnDelete` and `paused` keep older pods, and
/// `podsToDelete` selects among them. `suspend`, `paused`, a `parallelism` of 0 and a `failurePolicy` stop a
/// DaemonJob where it is. Deadlines count from its beginning. `lateNodes` and `rerunOn` depend on earlier
/// successes, and `podFailurePolicy` and `backoffLimit` on earlier failures.
const SUBJECTS: [Subject; 5] = [
    Subject {
        name: "podset",
        serves: &[Kind::PodSet],
        plural: "podsets",
        collection: PODSETS,
        values: podset,
        history: &[
            "updateStrategy/partition",
            "updateStrategy/type",
            "updateStrategy/paused",
            "podsToDelete",
        ],
        always: &[],
        adopts: true,
    },
    Subject {
        name: "daemonjob",
        serves: &[Kind::DaemonJob],
        plural: "daemonjobs",
        collection: DAEMONJOBS,
        values: daemonjob,
        history: &[
            "schedule",
            "suspend",
            "paused",
            "parallelism",
            "failurePolicy",
            "activeDeadlineSeconds",
            "pendingDeadlineSeconds",
            "lateNodes",
            "rerunOn",
            "podFailurePolicy",
            "backoffLimit",
            "rollout",
        ],
        always: &[],
        adopts: false,
    },
    Subject {
        name: "consumer",
        serves: &[Kind::PulsarConsumer],
        plural: "pulsarconsumers",
        collection: CONSUMERS,
        values: consumer,
        // One of the three fields for topics.
        history: &["topics", "topicsPattern"],
        always: &["topic"],
        adopts: false,
    },
    Subject {
        name: "greeting",
        serves: &[Kind::Greeting],
        plural: "greetings",
        collection: GREETINGS,
        values: greeting,
        history: &[],
        always: &[],
        adopts: false,
    },
    Subject {
        name: "book",
        serves: &[Kind::Book],
        plural: "books",
        collection: BOOKS,
        values: book,
        history: &[],
        always: &[],
        adopts: false,
    },
];

/// The number of valid templates. They come first in the lists of templates.
const GOOD: usize = 2;

fn podset(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "replicas" => Some(&["0", "1", "2", "3", "5"]),
        "template" => Some(&[
            r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"one"}]}}"#,
            r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"two"}]}}"#,
            r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"never-ready"}]}}"#,
            r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"stuck"}]}}"#,
            r#"{"spec":{"containers":[]}}"#,
            r#"{"spec":{"nodeSelector":{"no":"where"},"containers":[{"name":"main","image":"one"}]}}"#,
        ]),
        // The labels of orphans and of created pods, and a selector that is not valid.
        "adopt/selector" => Some(&[
            r#"{"matchLabels":{"app":"x"}}"#,
            r#"{"matchLabels":{"app":"x","version":"v0.1"}}"#,
            r#"{"matchExpressions":[{"key":"app","operator":"Like"}]}"#,
        ]),
        _ => None,
    }
}

fn daemonjob(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "template" => Some(&[
            r#"{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"done"}]}}"#,
            r#"{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"done-too"}]}}"#,
            r#"{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"fail-on-n1"}]}}"#,
            r#"{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"slow"}]}}"#,
            r#"{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"stuck"}]}}"#,
            r#"{"spec":{"restartPolicy":"Never","containers":[]}}"#,
            r#"{"spec":{"nodeSelector":{"no":"where"},"containers":[{"name":"main","image":"done"}]}}"#,
        ]),
        "backoffLimit" => Some(&["0", "1", "6"]),
        // The managers may not change the second key.
        "onSuccess/labels" => Some(&[r#"{"example.com/ready":"yes"}"#, r#"{"example.org/ready":"yes"}"#]),
        "onSuccess/removeTaints[]/key" => Some(&[r#""example.com/raw""#]),
        _ => None,
    }
}

fn consumer(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "serverAddress" => Some(&[r#""pulsar://broker:6650""#, r#""pulsar+ssl://other:6651""#]),
        "topic" => Some(&[r#""t""#, r#""persistent://public/default/u""#]),
        "subscriptionName" => Some(&[r#""s""#, r#""r""#]),
        "replicas" => Some(&["0", "1", "3"]),
        "negativeAckRedeliveryDelay" => Some(&[r#""30s""#, r#""1m""#]),
        // These need a broker and a scaler, which do not exist here.
        "adminURL" | "autoscaling" => Some(&[]),
        _ => None,
    }
}

fn greeting(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "message" => Some(&[r#""one""#, r#""two""#, r#""three""#]),
        "intervalSeconds" => Some(&["7", "60", "3600"]),
        _ => None,
    }
}

fn book(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "author" | "title" => Some(&[r#""A""#, r#""B""#, r#"" ""#]),
        _ => None,
    }
}

/// A sequence of specs.
pub struct Transition {
    subject: &'static Subject,
    number: usize,
    /// When each spec is set. A spec that the server rejects changes nothing. Null deletes the object and keeps its pods.
    specs: Vec<(When, Value)>,
}

impl Transition {
    /// The name of the sequence.
    pub fn name(&self) -> String {
        format!("{}.{}", self.subject.name, self.number)
    }

    /// The specs, one line each.
    pub fn told(&self) -> Vec<String> {
        self.specs.iter().map(|(when, spec)| format!("{when:?}: {spec}")).collect()
    }

    /// The sequence of this name.
    pub fn by_name(name: &str, seed: u64) -> Option<Self> {
        let (subject, number) = name.split_once('.')?;
        let subject = SUBJECTS.iter().find(|one| one.name == subject)?;
        Self::of(subject, number.parse().ok()?, seed)
    }

    /// Every `every`-th sequence whose name contains `filter`.
    pub fn all(filter: &str, every: usize, seed: u64) -> Vec<Self> {
        let all = SUBJECTS.iter().flat_map(|subject| {
            (0..EACH).step_by(every).filter_map(move |number| Self::of(subject, number, seed))
        });
        all.filter(|one| one.name().contains(filter)).collect()
    }

    fn of(subject: &'static Subject, number: usize, seed: u64) -> Option<Self> {
        let mut dice = Dice::of(seed, &format!("{}.{number}", subject.name));
        let kind = types().iter().find(|kind| kind.plural == subject.plural)?;
        let schema = kind.schema.as_ref()?.pointer("/properties/spec")?;
        let mut specs: Vec<(When, Value)> = Vec::new();
        for at in 0..2 + dice.below(4) {
            let when = match (at, dice.below(4)) {
                (0, _) => When::After(Duration::from_millis(50)),
                (_, 0) => When::Settled,
                (_, 1) => When::After(Duration::from_secs(4)),
                (_, 2) => When::After(Duration::from_millis(700)),
                _ => When::After(Duration::from_millis(30)),
            };
            let when = subject.orphan(&mut specs, when, &mut dice);
            let mut spec = made(subject, schema, "", &mut dice).unwrap_or_default();
            if at > 0 && dice.is(25) {
                spoil(&mut spec, &mut dice);
            } else if at > 1 && dice.is(25) {
                // Back to an earlier spec.
                let earlier: Vec<&Value> =
                    specs.iter().map(|(_, spec)| spec).filter(|spec| !spec.is_null()).collect();
                spec = Value::clone(*dice.one(&earlier));
            }
            specs.push((when, spec));
        }
        let mut last = made(subject, schema, "", &mut dice).unwrap_or_default();
        for field in subject.history {
            let (inside, field) = field.rsplit_once('/').unwrap_or(("", field));
            let inside = if inside.is_empty() { String::new() } else { format!("/{inside}") };
            if let Some(fields) = last.pointer_mut(&inside).and_then(Value::as_object_mut) {
                fields.remove(field);
            }
        }
        for field in subject.always {
            last[*field] = made(subject, &Value::Null, field, &mut dice).unwrap_or_default();
        }
        if let Some(templates) = (subject.values)("template") {
            last["template"] = serde_json::from_str(templates[dice.below(GOOD)]).ok()?;
        }
        let when = if dice.is(50) { When::Settled } else { When::After(Duration::from_millis(900)) };
        let when = subject.orphan(&mut specs, when, &mut dice);
        specs.push((when, last));
        Some(Self { subject, number, specs })
    }

    fn play(&self, specs: &[(When, Value)], usual: Option<&Outcome>, seed: u64, keeps: Keeps) -> Outcome {
        let collection = self.subject.collection;
        let steps = specs.iter().enumerate().map(|(at, (when, spec))| {
            let step: Box<dyn Fn(&Server) + '_> = Box::new(move |server| {
                if at == 0 {
                    two_nodes(server);
                    if self.subject.adopts {
                        // The labels are those of created pods.
                        orphans(server, &json!({ "app": "x", "version": "v0.1" }), 3);
                    }
                }
                set(server, collection, spec);
            });
            (*when, step)
        });
        let story = Story { kinds: self.subject.serves, steps: steps.collect(), end: end::without_history };
        let plan = Plan { scenario: self.name(), fault: Fault::None };
        guarded(&story, &plan, seed, usual, keeps)
    }

    /// Runs the sequence, and its last spec alone, and compares the ends.
    pub fn run(&self, seed: u64, keeps: Keeps) -> Outcome {
        let last: Vec<(When, Value)> = self.specs.last().cloned().into_iter().collect();
        let alone = self.play(
            &[(When::After(Duration::from_millis(50)), last[0].1.clone())],
            None,
            seed,
            Keeps::Nothing,
        );
        let mut outcome = self.play(&self.specs, Some(&alone), seed, keeps);
        outcome
            .violations
            .extend(alone.violations.into_iter().map(|what| format!("with the last spec alone: {what}")));
        outcome
    }
}

impl Subject {
    /// Before some specs, deletes the object and keeps its pods. Returns when to set the spec.
    fn orphan(&self, specs: &mut Vec<(When, Value)>, when: When, dice: &mut Dice) -> When {
        if !self.adopts || specs.is_empty() || !dice.is(20) {
            return when;
        }
        // A pod that the object adopts at this moment would be deleted with it.
        specs.push((When::Settled, Value::Null));
        When::Settled
    }
}

/// Creates the object, replaces its spec, or deletes it and keeps its pods.
fn set(server: &Server, collection: &str, spec: &Value) {
    if spec.is_null() {
        orphan(server, collection, "x");
        return;
    }
    let path = format!("{collection}/x");
    match server.get(&path) {
        Some(mut object) => {
            object["spec"] = spec.clone();
            server.ask(WHO, &Method::PUT, &path, "application/json", Some(&object));
        }
        None => {
            server.create(WHO, collection, &json!({ "metadata": { "name": "x" }, "spec": spec }));
        }
    }
}

/// A value that the schema allows, or None to omit the field.
fn made(subject: &Subject, schema: &Value, path: &str, dice: &mut Dice) -> Option<Value> {
    if let Some(values) = (subject.values)(path) {
        return if values.is_empty() { None } else { serde_json::from_str(dice.one::<&str>(values)).ok() };
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return serde_json::from_str(dice.one::<&str>(&["0", "1", "2", "\"50%\"", "\"100%\""])).ok();
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.is_empty()) {
        return Some(dice.one(allowed).clone());
    }
    match schema["type"].as_str().unwrap_or_default() {
        "integer" | "number" => {
            let least = schema["minimum"].as_f64().unwrap_or(0.0);
            let most = schema["maximum"].as_f64().unwrap_or(f64::from(i32::MAX));
            let allowed: Vec<i64> = [0_i32, 1, 2, 5, 30]
                .into_iter()
                .filter(|number| (least..=most).contains(&f64::from(*number)))
                .map(i64::from)
                .collect();
            (!allowed.is_empty()).then(|| json!(dice.one(&allowed)))
        }
        "boolean" => Some(json!(dice.is(50))),
        "string" => Some(json!(dice.one(&["a", "b-1"]))),
        "array" => {
            let least = schema["minItems"].as_u64().and_then(|least| usize::try_from(least).ok());
            let count = dice.below(3).max(least.unwrap_or_default());
            // Every item and every name only once, because some lists are sets and others are maps.
            let mut items: Vec<Value> = Vec::new();
            let key = schema["x-kubernetes-list-map-keys"][0].as_str().unwrap_or("name");
            for _ in 0..count {
                let item = made(subject, &schema["items"], &format!("{path}[]"), dice)?;
                let is_there = |one: &Value| *one == item || one[key].is_string() && one[key] == item[key];
                if !items.iter().any(is_there) {
                    items.push(item);
                }
            }
            Some(json!(items))
        }
        _ => {
            let mut fields = Map::new();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if (required.iter().any(|one| one == name) || dice.is(40))
                    && let Some(value) = made(subject, field, &path, dice)
                {
                    fields.insert(name.clone(), value);
                }
            }
            Some(Value::Object(fields))
        }
    }
}

/// Gives one field a value that the schema does not allow, or omits it.
fn spoil(spec: &mut Value, dice: &mut Dice) {
    let Some(fields) = spec.as_object_mut() else { return };
    let names: Vec<String> = fields.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    let name = dice.one(&names);
    match dice.below(5) {
        0 => fields.remove(name),
        1 => fields.insert(name.clone(), json!(-1)),
        2 => fields.insert(name.clone(), json!("")),
        3 => fields.insert(name.clone(), json!([{ "no": null }])),
        _ => fields.insert(name.clone(), Value::Null),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_sequences_and_names_reproduce_them() {
        assert!(types().iter().all(|kind| SUBJECTS.iter().any(|subject| subject.plural == kind.plural)));
        for transition in Transition::all("", 97, 1) {
            let again = Transition::by_name(&transition.name(), 1).unwrap();
            assert_eq!(again.told(), transition.told());
        }
        assert!(Transition::by_name("nothing.1", 1).is_none());
    }
}
