use super::*;
use crate::observe::Memory;
use crate::printer::NoRoom;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::Value;
use serde_json::json;

const FIRST: [&str; 3] = ["Greeting: Hi", "Create: Hi", "Timer: Hi"];

fn at(seconds: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// A Greeting, and the process that leads since a second.
struct Scene {
    greeting: Greeting,
    memory: Memory,
    token: String,
    since: i64,
    room: Result<Room, NoRoom>,
}

impl Scene {
    /// A new Greeting without the finalizer.
    fn new(message: Option<&str>) -> Self {
        let greeting = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "5", "generation": 1},
            "spec": {"message": message},
        });
        let greeting = serde_json::from_value(greeting).unwrap();
        let room = Ok(Room::default());
        Self { greeting, memory: Memory::default(), token: "me".into(), since: 0, room }
    }

    /// A new Greeting with the finalizer.
    fn held(message: &str) -> Self {
        let mut scene = Self::new(Some(message));
        scene.greeting.metadata.finalizers = Some(vec![FINALIZER.into()]);
        scene
    }

    /// A Greeting that was printed in second 0.
    fn greeted(message: &str) -> Self {
        let mut scene = Self::held(message);
        assert_eq!(scene.says(0).len(), 3);
        scene
    }

    /// A Greeting whose claim is stored, while the answer to the claim was lost.
    fn claimed() -> Self {
        let mut scene = Self::held("Hi");
        let first = scene.plan(0);
        let Action::Effect(Effect::Owe(owed)) = &first.steps[0][0] else { panic!("{:?}", first.steps) };
        assert!(owed.is_pending(&scene.greeting) && !owed.is_claimed(&scene.greeting));
        scene.memory.take(Effect::Owe(owed.clone()));
        scene.greeting.status = Some(claim(&first).0.clone());
        scene.greeting.metadata.resource_version = Some("6".into());
        assert!(!owed.is_pending(&scene.greeting) && owed.is_claimed(&scene.greeting));
        scene
    }

    /// Another process leads from then on.
    fn restart(&mut self, since: i64) {
        let (greeting, token) = (self.greeting.clone(), format!("other-{since}"));
        *self = Self { greeting, token, since, ..Self::new(None) };
    }

    fn status(&self) -> &GreetingStatus {
        self.greeting.status.as_ref().unwrap()
    }

    fn plan(&self, second: i64) -> Planned {
        self.plan_at(at(second))
    }

    fn plan_at(&self, now: Timestamp) -> Planned {
        let recalled = self.memory.clone().recall(&self.greeting);
        let (token, room) = (self.token.clone(), self.room.clone());
        let leading_since = at(self.since);
        let world = World { token, leading_since, recalled, room };
        plan(&self.greeting, &world, now)
    }

    /// Executes the plan and returns the printed lines.
    fn says(&mut self, second: i64) -> Vec<String> {
        let plan = self.plan(second);
        let mut said = Vec::new();
        for action in plan.steps.into_iter().flatten() {
            match action {
                Action::Claim { status, .. } => self.greeting.status = Some(status),
                Action::Effect(effect) => said.extend(self.memory.take(effect)),
                other => panic!("{other:?}"),
            }
        }
        if plan.status.is_some() {
            self.greeting.status = plan.status;
        }
        self.token.push('+');
        said.into_iter().flat_map(|say| say.lines).collect()
    }
}

/// The claim of a plan, and the lines that it prints after it.
fn claim(plan: &Planned) -> (&GreetingStatus, &str, &Say) {
    assert!(plan.steps.iter().all(|step| step.len() == 1), "{:?}", plan.steps);
    let is_first_try = |action: &&Action<_, _>| matches!(action, Action::Effect(Effect::Try(_)));
    let actions: Vec<_> = plan.steps.iter().flatten().skip_while(is_first_try).collect();
    let [owe, Action::Claim { status, token }, say, ..] = actions[..] else { panic!("{actions:?}") };
    let (Action::Effect(Effect::Owe(owed)), Action::Effect(Effect::Say(say))) = (owe, say) else { panic!() };
    assert_eq!((&owed.say, &owed.token), (say, token), "the owed lines are the printed ones");
    (status, token, say)
}

/// The operations of a plan that begins with a patch.
fn patch(plan: &Planned) -> &Value {
    let [Action::JsonPatch { operations, .. }] = &plan.steps[0][..] else { panic!("{:?}", plan.steps) };
    operations
}

/// Whether a plan removes the finalizer and does nothing else.
fn lets_go(plan: &Planned) -> bool {
    plan.steps.len() == 2
        && matches!(plan.steps[0][..], [Action::JsonPatch { .. }])
        && matches!(plan.steps[1][..], [Action::Effect(Effect::LetGo(_))])
}

#[test]
fn the_finalizer_comes_before_the_first_line() {
    let plan = Scene::new(Some("Hi")).plan(0);
    assert_eq!(patch(&plan)[2]["value"], json!([FINALIZER]));
    assert_eq!(patch(&plan)[1]["value"], "5", "guarded by resourceVersion");
    assert!(plan.status.is_none() && plan.steps.len() == 1);
}

#[test]
fn adds_a_removed_finalizer_again() {
    let mut scene = Scene::greeted("Hi");
    scene.greeting.metadata.finalizers = Some(vec!["example.com/other".into()]);
    let plan = scene.plan(1);
    assert_eq!(patch(&plan)[2]["path"], "/metadata/finalizers/-");
    assert_eq!(plan.steps.len(), 1);
}

#[test]
fn claims_a_new_greeting_and_then_prints_it() {
    let plan = Scene::held("Hi").plan(0);
    let (status, token, say) = claim(&plan);
    assert_eq!(token, "me");
    assert_eq!(status.claim.as_ref().unwrap().known().unwrap().kind, "Create");
    assert_eq!(status.greeted_at, Some(Time(at(0))));
    assert_eq!((&say.lines[..], say.tick), (&FIRST.map(str::to_owned)[..], Some(at(0))));
    assert_eq!(plan.events[0].reason, "Greeted");
}

#[test]
fn a_restart_prints_and_writes_nothing() {
    let mut scene = Scene::greeted("Hi");
    // Another process finds the claim later.
    scene.restart(10);
    let again = scene.plan(10);
    assert!(again.steps.is_empty());
    assert_eq!(again.status, scene.greeting.status, "an equal status is not written");
    assert_eq!(again.again, Some(at(60)));
}

#[test]
fn prints_a_claim_without_answer_when_the_cache_shows_it() {
    let mut scene = Scene::claimed();
    assert_eq!(scene.plan(1).again, Some(at(1)), "and then reconciles again");
    assert_eq!(scene.says(1), FIRST);
}

/// The claimed lines come first even if the message has changed.
#[test]
fn prints_claimed_lines_before_an_update() {
    let mut scene = Scene::claimed();
    scene.greeting.spec.message = Some("Changed".into());
    let told = scene.greeting.clone();
    assert_eq!(scene.says(1), FIRST);
    assert_eq!(scene.says(1), ["Update: Changed"]);
    // Another process does not know the claim.
    scene.greeting = told;
    scene.restart(2);
    assert_eq!(scene.says(2), ["Update: Changed"]);
}

#[test]
fn prints_claimed_lines_before_the_farewell() {
    let mut scene = Scene::claimed();
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(1)));
    assert_eq!(scene.says(1), FIRST);
    assert_eq!(claim(&scene.plan(1)).2.lines, ["Delete: Hi"]);
}

#[test]
fn counts_updates_by_the_final_message() {
    let mut scene = Scene::greeted("A");
    for message in ["B", "A"] {
        scene.greeting.spec.message = Some(message.into());
    }
    assert!(scene.says(1).is_empty());
    scene.greeting.spec.message = Some("C".into());
    assert_eq!(scene.says(2), ["Update: C"]);
    assert_eq!(scene.status().greeted_at, Some(Time(at(0))), "the timer keeps its phase");
}

#[test]
fn updates_are_counted_with_the_claim() {
    let mut scene = Scene::greeted("A");
    assert_eq!(scene.status().updates, None);
    for (message, updates) in [("B", 1), ("A", 2)] {
        scene.greeting.spec.message = Some(message.into());
        scene.says(1);
        assert_eq!(scene.status().updates, Some(updates));
    }
}

#[test]
fn ticks_keep_their_phase_and_come_once() {
    let mut scene = Scene::greeted("Hi");
    for second in 0..=200 {
        let tick: &[&str] = if [60, 120, 180].contains(&second) { &["Timer: Hi"] } else { &[] };
        assert_eq!(scene.says(second), tick, "{second}");
    }
}

#[test]
fn skips_ticks_without_a_leader() {
    let mut scene = Scene::greeted("Hi");
    scene.restart(130);
    assert!(scene.says(131).is_empty());
    assert_eq!(scene.plan(131).again, Some(at(180)));
    assert_eq!(scene.says(180), ["Timer: Hi"]);
}

#[test]
fn a_changed_interval_keeps_the_origin() {
    let mut scene = Scene::greeted("Hi");
    scene.greeting.spec.interval_seconds = Some(7);
    assert_eq!(scene.plan(3).again, Some(at(7)));
    assert_eq!(scene.says(7), ["Timer: Hi"]);
    scene.greeting.spec.interval_seconds = Some(100);
    assert!(scene.says(50).is_empty());
}

#[rstest]
#[case(0, 1)]
#[case(-5, 1)]
#[case(i64::MAX, LONGEST_INTERVAL)]
fn tolerates_odd_intervals(#[case] interval: i64, #[case] next: i64) {
    let mut scene = Scene::greeted("Hi");
    scene.greeting.spec.interval_seconds = Some(interval);
    assert_eq!(scene.plan(0).again, Some(at(next)));
}

#[test]
fn tolerates_odd_clocks() {
    let mut scene = Scene::greeted("Hi");
    // After the clock went back, nothing is printed twice or too early.
    assert_eq!(scene.says(60), ["Timer: Hi"]);
    for second in [30, 59, 60, -100] {
        assert!(scene.says(second).is_empty(), "{second}");
    }
    // After the clock went ahead by a day, one tick is printed, not all missed ones.
    assert_eq!(scene.says(86_401), ["Timer: Hi"]);
}

#[test]
fn a_greeting_without_a_claim_gets_no_farewell() {
    let mut scene = Scene::held("Bye");
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(0)));
    let plan = scene.plan(0);
    assert!(lets_go(&plan) && plan.events.is_empty());
}

#[test]
fn removes_the_finalizer_after_the_farewell() {
    let mut scene = Scene::greeted("Bye");
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(0)));
    scene.greeting.metadata.finalizers.as_mut().unwrap().insert(0, "other".into());
    let first = scene.plan(0);
    let (status, _, say) = claim(&first);
    assert_eq!(say.lines, ["Delete: Bye"]);
    assert_eq!((first.events[0].reason, first.again), ("Deleted", Some(at(0))));
    // No test of the resourceVersion, because a repeated or late removal does no harm.
    let expected = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]);
    // Then every process only removes the finalizer.
    scene.greeting.status = Some(status.clone());
    for since in [0, 1] {
        scene.restart(since);
        let again = scene.plan(1);
        assert!(lets_go(&again));
        assert!(again.events.is_empty() && again.status.is_none());
        assert_eq!(*patch(&again), expected);
    }
    // After the removal the process waits for the cache, but not permanently.
    scene.memory.take(Effect::LetGo(at(1)));
    let waits = scene.plan(2);
    assert!(waits.steps.is_empty() && waits.again == Some(at(11)), "{waits:?}");
    assert!(lets_go(&scene.plan(11)));
    assert!(lets_go(&scene.plan(-86_400)), "the clock was set back");
    scene.restart(0);
    scene.greeting.metadata.finalizers = None;
    assert!(scene.plan(0).steps.is_empty());
}

#[rstest]
#[case(None)]
#[case(Some(""))]
fn without_a_message_prints_nothing_and_allows_deletion(#[case] message: Option<&str>) {
    let mut scene = Scene::new(message);
    let plan = scene.plan(0);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.status.unwrap().conditions[0].reason, "NoMessage");
    scene.greeting.metadata.finalizers = Some(vec![FINALIZER.into()]);
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(lets_go(&scene.plan(0)), "removes the finalizer without a line");
}

#[test]
fn reports_a_missing_message_once_until_it_is_set() {
    let mut scene = Scene::new(None);
    let first = scene.plan(0);
    assert_eq!((first.events[0].type_, first.events[0].reason), (EventType::Warning, "NoMessage"));
    scene.says(0);
    let again = scene.plan(1);
    assert_eq!((again.status.as_ref(), again.events.len()), (Some(scene.status()), 0), "writes nothing");
    // A first message is a creation.
    scene.greeting.spec.message = Some("Hi".into());
    scene.greeting.metadata.finalizers = Some(vec![FINALIZER.into()]);
    assert_eq!(scene.says(5), FIRST);
    // Without the message the timer pauses. With the same message again it continues in its phase and prints
    // only ticks.
    scene.greeting.spec.message = None;
    assert!(scene.says(65).is_empty());
    assert_eq!(scene.status().conditions[0].reason, "NoMessage");
    scene.greeting.spec.message = Some("Hi".into());
    assert_eq!(scene.says(70), ["Timer: Hi"], "the tick of second 65 is due");
    assert_eq!(scene.plan(71).again, Some(at(125)));
    assert_eq!(scene.status().conditions[0].reason, "Greeted");
}

/// Without room, the plan neither claims nor adds the finalizer. It reports this after a minute, and tries again until
/// there is room, also after an hour.
#[test]
fn claims_nothing_without_room() {
    let mut scene = Scene::held("Hi");
    let (mut now, mut tries, mut events) = (at(0), 0, 0);
    while now < at(3_600) {
        // A disk that is almost full accepts some writes.
        scene.room = Err(if tries % 2 == 0 { NoRoom::Full } else { NoRoom::Failing });
        let plan = scene.plan_at(now);
        let waited = now.duration_since(at(0)).as_secs();
        assert_eq!(plan.status.is_some(), waited >= 60, "{waited}");
        let tried = plan.steps.iter().flatten().map(|action| match action {
            Action::Effect(effect @ Effect::Try(_)) => effect.clone(),
            other => panic!("{other:?}"),
        });
        tried.for_each(|effect| drop(scene.memory.take(effect)));
        scene.greeting.status = plan.status.or(scene.greeting.status);
        events += plan.events.len();
        (now, tries) = (plan.again.unwrap(), tries + 1);
    }
    assert!((60..75).contains(&tries) && events == 1, "{tries} tries and {events} Events in an hour");
    let condition = &scene.status().conditions[0];
    assert_eq!((condition.reason.as_str(), condition.status.as_str()), ("OutputBlocked", "False"));
    scene.room = Ok(Room::default());
    assert_eq!(scene.says(3_600), FIRST);
    assert_eq!(scene.status().conditions[0].reason, "Greeted");
}

/// An admission policy rejects the status of a deleted Greeting. Without a rejection, the claim is repeated.
#[rstest]
#[case(true)]
#[case(false)]
fn only_a_rejected_claim_of_the_farewell_ends_after_a_minute(#[case] is_rejected: bool) {
    let mut scene = Scene::greeted("Bye");
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(0)));
    for second in [0, 30, 59] {
        let plan = scene.plan(second);
        assert_eq!(claim(&plan).2.lines, ["Delete: Bye"]);
        if let Action::Effect(effect @ Effect::Try(_)) = &plan.steps[0][0] {
            scene.memory.take(effect.clone());
        }
        if is_rejected {
            scene.memory.reject();
        }
    }
    let last = scene.plan(90);
    assert_eq!(lets_go(&last), is_rejected, "{:?}", last.steps);
    if is_rejected {
        assert_eq!(last.events[0].reason, "TimedOut");
        assert!(
            last.events[0].note.ends_with("rejects the claim in status.claim."),
            "{}",
            last.events[0].note
        );
    } else {
        assert_eq!(claim(&last).2.lines, ["Delete: Bye"]);
    }
}

#[test]
fn prints_as_soon_as_there_is_room() {
    let mut scene = Scene::held("Hi");
    scene.room = Err(NoRoom::Full);
    assert!(scene.says(0).is_empty() && scene.memory.clone().recall(&scene.greeting).attempt.is_some());
    scene.room = Ok(Room::default());
    assert_eq!(scene.says(9), FIRST);
    assert!(scene.memory.clone().recall(&scene.greeting).attempt.is_none());
    // A tick waits too, until the next one replaces it.
    scene.room = Err(NoRoom::Full);
    for second in [69, 70, 129] {
        assert!(scene.says(second).is_empty());
        assert!(scene.plan(second).again <= Some(at(second + 60)));
    }
    scene.room = Ok(Room::default());
    assert_eq!(scene.says(130), ["Timer: Hi"], "once, not twice");
}

#[test]
fn a_farewell_without_room_waits_at_most_a_minute() {
    let mut scene = Scene::greeted("Bye");
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(0)));
    scene.room = Err(NoRoom::Full);
    assert!(scene.says(0).is_empty());
    assert_eq!(scene.plan(32).again, Some(at(60)), "the last attempt comes in time");
    scene.room = Ok(Room::default());
    assert_eq!(claim(&scene.plan(60)).2.lines, ["Delete: Bye"]);
    scene.room = Err(NoRoom::Full);
    let last = scene.plan(60);
    assert!(lets_go(&last), "{:?}", last.steps);
    let Event { type_, reason, note, .. } = &last.events[0];
    assert_eq!((*type_, *reason), (EventType::Warning, "TimedOut"));
    let why = "The reader of the manager's standard output is too slow.";
    assert_eq!(*note, format!("The farewell was not printed within 1m. {why}"));
}

/// Without the claim in the status it is a creation again, and the timer starts over.
#[test]
fn a_removed_claim_is_a_creation_again() {
    let mut scene = Scene::greeted("Hi");
    scene.greeting.status.as_mut().unwrap().claim = None;
    assert_eq!(scene.says(90), FIRST);
    assert_eq!(scene.status().greeted_at, Some(Time(at(90))));
}

#[rstest]
#[case(json!({"messageHash": "v2-x", "lines": [{"at": 5}]}))]
#[case(json!("v3"))]
fn keeps_a_claim_of_another_version(#[case] claim: Value) {
    let mut scene = Scene::held("Hi");
    scene.greeting.status = Some(serde_json::from_value(json!({"claim": claim, "greetedAt": 5})).unwrap());
    let quiet = scene.plan(0);
    assert!(quiet.steps.is_empty() && quiet.again.is_none());
    let status = serde_json::to_value(quiet.status.unwrap()).unwrap();
    assert_eq!((&status["claim"], &status["greetedAt"]), (&claim, &json!(5)));
    assert_eq!(status["conditions"][0]["reason"], "ClaimedByOtherVersion");
    scene.greeting.metadata.deletion_timestamp = Some(Time(at(1)));
    assert!(lets_go(&scene.plan(1)), "it may go");
}

#[test]
fn the_status_keeps_256_bytes() {
    let scene = Scene::greeted(&"ä".repeat(5000));
    assert!(scene.status().last_greeting.as_ref().unwrap().len() <= 256);
}

/// The hash of the tutorial's message. With another hash, an upgrade would print every Greeting again.
#[test]
fn golden_hash_of_the_sample() {
    let scene = Scene::greeted("Hello, World!");
    assert_eq!(scene.status().claim.as_ref().unwrap().known().unwrap().message_hash, "v1-376wain3fpk3bl3h");
}

proptest! {
    /// With any edits and restarts, a line other than a tick is printed once for each observed change, and a
    /// tick at most once in each interval. Every printed message was in the spec.
    #[test]
    fn prints_nothing_twice(steps in prop::collection::vec((0..4_u8, 0..3_usize, 1..90_i64), 1..40)) {
        let mut scene = Scene::held("a");
        let mut now = 0;
        let (mut updates, mut expected, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        for (kind, message, seconds) in steps {
            now += seconds;
            match kind {
                0 => scene.greeting.spec.message = Some(["a", "b", "c"][message].into()),
                1 => scene.restart(now),
                _ => {}
            }
            let current = scene.greeting.spec.message.clone().unwrap();
            let fresh = last.is_none();
            if !fresh && last.as_ref() != Some(&current) {
                expected.push(format!("Update: {current}"));
            }
            last = Some(current);
            // The second reconcile has nothing left to print.
            for line in [scene.says(now), scene.says(now)].concat() {
                match line.split(':').next() {
                    Some("Timer") => ticks.push(now),
                    Some("Update") => updates.push(line),
                    _ => prop_assert!(fresh, "{line} is for a new object"),
                }
            }
        }
        prop_assert_eq!(updates, expected);
        let origin = scene.status().greeted_at.as_ref().unwrap().0;
        let mut intervals: Vec<i64> = ticks.iter().map(|tick| at(*tick).duration_since(origin).as_secs() / 60).collect();
        let all = intervals.len();
        intervals.dedup();
        prop_assert_eq!(intervals.len(), all, "ticks at {:?}", ticks);
    }
}
