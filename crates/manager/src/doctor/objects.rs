//! The objects that fail, by their status, and those that no manager observes.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::conditions::{READY, shorten};
use quintet_runtime::model::problem::{Problem, ProblemState};
use quintet_runtime::model::resource::Resource;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::finding::{Fact, Finding, LISTED};

/// An object in a list.
#[derive(Debug)]
pub struct Item {
    /// The parts that all kinds have.
    pub listed: Listed,
    /// The whole object.
    pub json: Box<RawValue>,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let listed = serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        Ok(Self { listed, json })
    }
}

/// The parts of an object that the check reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Listed {
    metadata: Metadata,
    #[serde(deserialize_with = "or_none")]
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    name: String,
    generation: i64,
    creation_timestamp: String,
    deletion_timestamp: Option<String>,
    managed_fields: Vec<Writer>,
}

/// A writer of some fields, in `metadata.managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Writer {
    time: String,
    subresource: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: i64,
    conditions: Vec<Condition>,
}

/// A condition, perhaps of another client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: String,
}

/// A status without a schema may have any form. One such object must not hide the others.
fn or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// The conditions that report a failure with this status. The first one explains the failure best.
const FAILURES: [(&str, &str); 12] = [
    ("PodsRefused", "True"),
    ("ReplicaFailure", "True"),
    ("Applied", "False"),
    ("LedgerRefused", "True"),
    ("LedgerLost", "True"),
    ("MarkRefused", "True"),
    ("ScheduleInvalid", "True"),
    ("SubscriptionDeleted", "False"),
    ("AutoscalingReady", "False"),
    ("BacklogObserved", "False"),
    ("Failed", "True"),
    ("Stalled", "True"),
];
/// The reason for missing pods. A rollout may cause it, too.
const PODS_MISSING: &str = "PodsMissing";
/// The reason of Ready for a Greeting whose line cannot be printed.
const OUTPUT_BLOCKED: &str = "OutputBlocked";
/// How long pods may be missing, as during a rollout.
const UNAVAILABLE: SignedDuration = SignedDuration::from_mins(10);
/// How long the manager may take to observe a change.
const UNOBSERVED: SignedDuration = SignedDuration::from_mins(1);
/// Bytes of a message in the report.
const LONGEST: usize = 300;

impl Condition {
    fn since(&self) -> Option<Timestamp> {
        self.last_transition_time.parse().ok()
    }

    /// Whether the condition reports that pods have been missing for long, or that lines cannot be printed.
    fn is_slow_failure(&self, now: Timestamp) -> bool {
        match (&*self.type_, &*self.status) {
            (READY, "False") => self.reason == OUTPUT_BLOCKED,
            ("Available", "False") => {
                self.since().is_some_and(|since| now.duration_since(since) >= UNAVAILABLE)
            }
            _ => false,
        }
    }
}

impl Listed {
    /// The condition that explains the failure of the object.
    fn failure(&self, now: Timestamp) -> Option<&Condition> {
        let conditions = &self.status.conditions;
        let find = |(type_, status): (&str, &str)| {
            conditions.iter().find(|one| one.type_ == type_ && one.status == status)
        };
        let failure = FAILURES.into_iter().find_map(find);
        failure.or_else(|| conditions.iter().find(|one| one.is_slow_failure(now)))
    }

    /// How long no manager has observed the last change of the spec. None if it did, or if the object is being deleted.
    fn unobserved(&self, now: Timestamp) -> Option<SignedDuration> {
        let Metadata { generation, deletion_timestamp, .. } = &self.metadata;
        if self.status.observed_generation >= *generation || deletion_timestamp.is_some() {
            return None;
        }
        let writes = self.metadata.managed_fields.iter().filter(|writer| writer.subresource.is_empty());
        let times = writes.map(|writer| &writer.time).chain([&self.metadata.creation_timestamp]);
        let changed: Timestamp = times.filter_map(|time| time.parse().ok()).max()?;
        Some(now.duration_since(changed)).filter(|age| *age >= UNOBSERVED)
    }

    /// The reason why the object is reported, and since when.
    /// `problems` are those that the metrics show.
    fn problem(&self, problems: &[Problem], now: Timestamp) -> Option<(Timestamp, String)> {
        if let Some(failure) = self.failure(now) {
            let Condition { type_, status, reason, message, .. } = failure;
            let (since, message) = (failure.since().unwrap_or(now), shorten(message.clone(), LONGEST));
            return Some((since, format!("{type_} is {status} since {since} ({reason}): {message}")));
        }
        let is_urgent = |one: &&Problem| {
            let is_over = one.reason != PODS_MISSING || now.duration_since(one.since) >= UNAVAILABLE;
            one.state == ProblemState::Failing && is_over
        };
        let failing: Vec<&Problem> = problems.iter().filter(is_urgent).collect();
        if let Some(since) = failing.iter().map(|one| one.since).min() {
            let reasons: Vec<&str> = failing.iter().map(|one| one.reason).collect();
            return Some((since, format!("{} since {since}.", reasons.join(", "))));
        }
        let age = self.unobserved(now)?;
        let why = format!("No manager has observed the last change for {} s.", age.as_secs());
        Some((now.checked_sub(age).unwrap_or(now), why))
    }
}

/// The problems of any number of objects of a type, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The number of objects.
    count: usize,
    /// The number of those that fail.
    failing: usize,
    /// Since when, namespace, name and reason of those that fail longest.
    longest: BTreeSet<(Timestamp, String, String, String)>,
}

impl Tally {
    /// Adds an object. `problems` are those that the metrics show.
    pub fn add(&mut self, object: &Listed, problems: &[Problem], now: Timestamp) {
        self.count += 1;
        if let Some((since, why)) = object.problem(problems, now) {
            let Metadata { namespace, name, .. } = &object.metadata;
            self.failing += 1;
            self.longest.insert((since, namespace.clone(), name.clone(), why));
            if self.longest.len() > LISTED {
                self.longest.pop_last();
            }
        }
    }
}

/// The objects of these types that fail, those that fail longest first.
pub fn objects(kinds: &[(Resource, Fact<Tally>)]) -> Vec<Finding> {
    let (mut findings, mut count) = (Vec::new(), 0);
    for (resource, tally) in kinds {
        match tally {
            Ok(tally) => {
                count += tally.count;
                findings.extend(of_type(resource, tally));
            }
            Err(why) => findings.push(Finding::unknown(why)),
        }
    }
    if findings.is_empty() {
        findings.push(Finding::well(format!("None of the {count} objects fails.")));
    }
    findings
}

fn of_type(resource: &Resource, tally: &Tally) -> Vec<Finding> {
    let (kind, crd) = (resource.kind, resource.crd_name());
    let more = tally.failing.saturating_sub(tally.longest.len());
    let mut findings: Vec<Finding> = tally
        .longest
        .iter()
        .map(|(_, namespace, name, why)| {
            let describe = format!("kubectl describe {crd} --namespace {namespace} {name}");
            Finding::problem(format!("{kind} {namespace}/{name}: {why}"), describe)
        })
        .collect();
    if more > 0 {
        let list = format!("kubectl get {crd} --all-namespaces");
        findings.push(Finding::problem(format!("{more} more {kind}s fail."), list));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::finding::Verdict;
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

    fn listed(name: &str, conditions: &Value) -> Listed {
        serde_json::from_value(json!({
            "metadata": { "namespace": "a", "name": name, "generation": 2, "creationTimestamp": "2025-12-31T00:00:00Z" },
            "status": { "observedGeneration": 2, "conditions": conditions, "other": [1] } }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str, since: &str) -> Value {
        json!({ "type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": since })
    }

    fn tally(objects: &[Listed], problems: &[Problem]) -> Tally {
        let mut tally = Tally::default();
        for object in objects {
            tally.add(object, problems, NOW);
        }
        tally
    }

    fn check_with(objects_of_kind: &[Listed], problems: &[Problem]) -> Vec<Finding> {
        let tally = tally(objects_of_kind, problems);
        objects(&[(Resource::custom("g.io", "v1", "Thing", "things"), Ok(tally))])
    }

    fn check(objects_of_kind: &[Listed]) -> Vec<Finding> {
        check_with(objects_of_kind, &[])
    }

    const LONG_AGO: &str = "2025-12-31T23:00:00Z";
    const JUST_NOW: &str = "2025-12-31T23:59:30Z";

    #[test]
    fn reports_a_failed_condition_with_its_reason() {
        let one = |type_, status, reason, since| {
            check(&[listed("x", &json!([condition(type_, status, reason, since)]))]).remove(0)
        };
        for (type_, status) in FAILURES {
            let finding = one(type_, status, "Because", JUST_NOW);
            let expected = format!("Thing a/x: {type_} is {status} since {JUST_NOW} (Because): why");
            assert_eq!((finding.verdict, finding.sentence), (Verdict::Problem, expected));
            let other = if status == "True" { "False" } else { "True" };
            assert_eq!(one(type_, other, "Because", JUST_NOW).verdict, Verdict::Well, "{type_} {other}");
        }
        let finding = one("Stalled", "True", "Because", JUST_NOW);
        assert_eq!(finding.remedy.as_deref(), Some("kubectl describe things.g.io --namespace a x"));
    }

    #[test]
    fn missing_pods_are_a_problem_after_ten_minutes() {
        let verdict = |type_, reason, since| {
            check(&[listed("x", &json!([condition(type_, "False", reason, since)]))])[0].verdict
        };
        assert_eq!(verdict("Available", "PodsUnavailable", JUST_NOW), Verdict::Well);
        assert_eq!(verdict("Available", "PodsUnavailable", LONG_AGO), Verdict::Problem);
        assert_eq!(verdict("Ready", "NodesPending", LONG_AGO), Verdict::Well, "a DaemonJob may take hours");
        assert_eq!(verdict("Ready", OUTPUT_BLOCKED, JUST_NOW), Verdict::Problem);
        assert_eq!(verdict("Suspended", "Suspended", LONG_AGO), Verdict::Well);
    }

    #[test]
    fn the_most_precise_condition_explains_a_failure() {
        let conditions = json!([
            condition("Ready", "False", "FailedCreate", LONG_AGO),
            condition("Stalled", "True", "FailedCreate", LONG_AGO),
            condition("PodsRefused", "True", "FailedCreate", LONG_AGO),
        ]);
        let findings = check(&[listed("x", &conditions)]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].sentence.contains("PodsRefused is True"), "{findings:?}");
    }

    #[test]
    fn a_problem_in_the_metrics_is_a_problem() {
        let (early, late) = (LONG_AGO.parse().unwrap(), JUST_NOW.parse().unwrap());
        let object = [listed("x", &json!([condition("Paused", "True", "FleetUnhealthy", LONG_AGO)]))];
        let check = |problems: &[Problem]| check_with(&object, problems).remove(0);
        for reason in ["FleetUnhealthy", "MaxFailedNodesExceeded", "WaveFailed", "NodesFailed", "DueTimeLate"]
        {
            let finding = check(&[Problem::failing(reason, late)]);
            let expected = format!("Thing a/x: {reason} since {JUST_NOW}.");
            assert_eq!((finding.verdict, finding.sentence), (Verdict::Problem, expected));
        }
        let both = [Problem::failing("NodesFailed", early), Problem::failing("WaveFailed", late)];
        let expected = format!("Thing a/x: NodesFailed, WaveFailed since {LONG_AGO}.");
        assert_eq!(check(&both).sentence, expected);
        for harmless in [
            Problem::failing("PodsMissing", late),
            Problem::waiting("NodesPending", early),
            Problem::held("Suspended", early),
        ] {
            assert_eq!(check(&[harmless]).verdict, Verdict::Well, "{harmless:?}");
        }
        assert_eq!(check(&[Problem::failing("PodsMissing", early)]).verdict, Verdict::Problem);
    }

    #[test]
    fn reports_an_object_that_no_manager_observes() {
        let verdict = |change: &dyn Fn(&mut Listed)| {
            let mut object = listed("x", &json!([]));
            object.status.observed_generation = 1;
            change(&mut object);
            check(&[object])[0].verdict
        };
        assert_eq!(verdict(&|_| {}), Verdict::Problem);
        assert_eq!(
            verdict(&|object| object.metadata.creation_timestamp = JUST_NOW.to_owned()),
            Verdict::Well
        );
        assert_eq!(verdict(&|object| object.status.observed_generation = 2), Verdict::Well);
        let write = |time: &str, subresource: &str| Writer {
            time: time.to_owned(),
            subresource: subresource.to_owned(),
        };
        let changed = |subresource| {
            verdict(&|object| {
                object.metadata.managed_fields = vec![write(LONG_AGO, ""), write(JUST_NOW, subresource)];
            })
        };
        assert_eq!(changed(""), Verdict::Well, "just changed");
        assert_eq!(changed("status"), Verdict::Problem, "a status does not change the spec");
        let deleted = Some(JUST_NOW.to_owned());
        assert_eq!(verdict(&|object| object.metadata.deletion_timestamp = deleted.clone()), Verdict::Well);
    }

    #[test]
    fn lists_those_that_fail_longest_first() {
        let failing =
            |name: &str, since: &str| listed(name, &json!([condition("Failed", "True", "R", since)]));
        let mut objects: Vec<Listed> = (0..25).map(|at| failing(&format!("late-{at}"), JUST_NOW)).collect();
        objects.push(failing("early", LONG_AGO));
        let findings = check(&objects);
        assert!(findings[0].sentence.starts_with("Thing a/early: "), "{findings:?}");
        assert_eq!(findings.len(), LISTED + 1);
        assert_eq!(findings[LISTED].sentence, "6 more Things fail.");
    }

    #[test]
    fn a_kind_that_cannot_be_listed_hides_no_other() {
        let [one, other] = ["One", "Other"].map(|kind| Resource::custom("g.io", "v1", kind, "things"));
        let failing = listed("x", &json!([condition("Failed", "True", "R", JUST_NOW)]));
        let findings = objects(&[(one, Err("denied".to_owned())), (other, Ok(tally(&[failing], &[])))]);
        let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Unknown, Verdict::Problem]);
        let odd = listed("x", &json!("not a list"));
        assert_eq!((&odd.status, &*odd.metadata.name), (&Status::default(), "x"));
        assert_eq!(check(&[listed("x", &json!([]))])[0].sentence, "None of the 1 objects fails.");
    }
}
