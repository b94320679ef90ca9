use super::*;
use proptest::prelude::*;
use serde_json::Value;

const START: &str = "2026-01-01T00:00:00Z";
const FIRST: [&str; 3] = ["Greeting: Hi", "Create: Hi", "Timer: Hi"];

fn at(seconds: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

fn greeting(message: Option<&str>, more: &Value) -> Greeting {
    let mut value = json!({
        "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"message": message},
    });
    for (key, part) in more.as_object().unwrap() {
        for (name, member) in part.as_object().unwrap() {
            value[key][name] = member.clone();
        }
    }
    serde_json::from_value(value).unwrap()
}

fn held(message: &str) -> Greeting {
    greeting(Some(message), &json!({"metadata": {"finalizers": [FINALIZER]}}))
}

fn world(leading_since: Timestamp) -> World {
    World {
        token: "me-1".into(),
        leading_since,
        ticked: None,
        owed: None,
        attempt: None,
        let_go: None,
        room: Ok(Room::unbounded()),
    }
}

/// The world of another process that leads since then.
fn other(leading_since: Timestamp) -> World {
    World { token: "other-1".into(), ..world(leading_since) }
}

/// Returns the claim of a plan, and the lines that it prints after it.
fn claimed(plan: &Planned) -> (&GreetingStatus, &str, &Say) {
    match &plan.steps[..] {
        [owe, claim, say, ..] => match (&owe[..], &claim[..], &say[..]) {
            (
                [Action::Effect(Effect::Owe(owed))],
                [Action::Claim { status, token }],
                [Action::Effect(Effect::Say(say))],
            ) => {
                assert_eq!((&owed.say, &owed.token), (say, token), "the owed lines are the printed ones");
                (status, token, say)
            }
            _ => panic!("{:?}", plan.steps),
        },
        steps => panic!("{steps:?}"),
    }
}

/// Executes the plan. Returns the new Greeting and the printed lines.
fn carried(mut greeting: Greeting, world: &mut World, now: Timestamp) -> (Greeting, Vec<String>) {
    let plan = plan(&greeting, world, now);
    let mut said = Vec::new();
    for action in plan.steps.into_iter().flatten() {
        match action {
            Action::Claim { status, .. } => greeting.status = Some(status),
            Action::Effect(Effect::Owe(owed)) => world.owed = Some(owed),
            Action::Effect(Effect::LetGo(at)) => world.let_go = Some(at),
            Action::Effect(Effect::Retry(attempt)) => world.attempt = Some(attempt),
            Action::Effect(Effect::Say(say)) => {
                world.token.push('+');
                (world.owed, world.attempt) = (None, None);
                said.extend(say.lines);
                world.ticked = say.tick.or(world.ticked);
            }
            other => panic!("{other:?}"),
        }
    }
    if let Some(status) = plan.status {
        greeting.status = Some(status);
    }
    (greeting, said)
}

#[test]
fn the_finalizer_comes_before_the_first_line() {
    let plan = plan(&greeting(Some("Hi"), &json!({})), &world(at(0)), at(0));
    let [Action::Patch { operations, .. }] = &plan.steps[0][..] else { panic!() };
    assert_eq!(operations[2]["value"], json!([FINALIZER]));
    assert_eq!(operations[1]["value"], "5", "guarded by resourceVersion");
    assert!(plan.status.is_none() && plan.steps.len() == 1);
}

#[test]
fn adds_a_removed_finalizer_again() {
    let (mut told, _) = carried(held("Hi"), &mut world(at(0)), at(0));
    told.metadata.finalizers = Some(vec!["example.com/other".into()]);
    let plan = plan(&told, &world(at(0)), at(1));
    let [Action::Patch { operations, .. }] = &plan.steps[0][..] else { panic!() };
    assert_eq!(operations[2]["path"], "/metadata/finalizers/-");
    assert_eq!(plan.steps.len(), 1);
}

#[test]
fn claims_a_new_greeting_and_then_prints_it() {
    let plan = plan(&held("Hi"), &world(at(0)), at(0));
    let (status, token, say) = claimed(&plan);
    assert_eq!(token, "me-1");
    assert_eq!(status.claim.as_ref().unwrap().kind, "Create");
    assert_eq!(status.greeted_at, Some(Time(at(0))));
    assert_eq!((&say.lines[..], say.tick), (&FIRST.map(str::to_owned)[..], Some(at(0))));
    assert_eq!(plan.events[0].reason, "Greeted");
}

#[test]
fn a_restart_prints_and_writes_nothing() {
    let mut first = world(at(0));
    let (told, said) = carried(held("Hi"), &mut first, at(0));
    assert_eq!(said.len(), 3);
    // Another process finds the claim later.
    let again = plan(&told, &other(at(10)), at(10));
    assert!(again.steps.is_empty());
    assert_eq!(again.status, told.status, "an equal status is not written");
    assert_eq!(again.again, Some(at(60)));
}

#[test]
fn prints_a_claim_without_answer_when_the_cache_shows_it() {
    let mut mine = world(at(0));
    let first = plan(&held("Hi"), &mine, at(0));
    let (status, _, _) = claimed(&first);
    let Action::Effect(Effect::Owe(owed)) = &first.steps[0][0] else { panic!() };
    mine.owed = Some(owed.clone());
    let mut told = held("Hi");
    assert!(owed.is_pending(&told) && !owed.is_claimed(&told));
    told.status = Some(status.clone());
    told.metadata.resource_version = Some("6".into());
    assert!(!owed.is_pending(&told) && owed.is_claimed(&told));
    let (_, said) = carried(told.clone(), &mut mine.clone(), at(1));
    assert_eq!(said, FIRST);
    assert_eq!(plan(&told, &mine, at(1)).again, Some(at(1)), "and then reconciles again");
    // The claimed lines come first even if the message has changed or the Greeting is being deleted.
    told.spec.message = Some("Changed".into());
    let (told, said) = carried(told, &mut mine, at(1));
    assert_eq!(said, FIRST);
    assert_eq!(carried(told.clone(), &mut mine, at(1)).1, ["Update: Changed"]);
    // Another process does not know the claim.
    assert_eq!(carried(told, &mut other(at(2)), at(2)).1, ["Update: Changed"]);
}

#[test]
fn prints_claimed_lines_before_the_farewell() {
    let mut mine = world(at(0));
    let first = plan(&held("Hi"), &mine, at(0));
    let (status, _, _) = claimed(&first);
    let Action::Effect(Effect::Owe(owed)) = &first.steps[0][0] else { panic!() };
    mine.owed = Some(owed.clone());
    let mut told = held("Hi");
    told.status = Some(status.clone());
    told.metadata.deletion_timestamp = Some(Time(at(1)));
    let (told, said) = carried(told, &mut mine, at(1));
    assert_eq!(said, FIRST);
    assert_eq!(claimed(&plan(&told, &mine, at(1))).2.lines, ["Delete: Hi"]);
}

#[test]
fn counts_updates_by_the_final_message() {
    let mut world = world(at(0));
    let (mut told, _) = carried(held("A"), &mut world, at(0));
    told.spec.message = Some("B".into());
    told.spec.message = Some("A".into());
    assert_eq!(carried(told.clone(), &mut world, at(1)).1, Vec::<String>::new());
    told.spec.message = Some("C".into());
    let (told, said) = carried(told, &mut world, at(2));
    assert_eq!(said, ["Update: C"]);
    assert_eq!(told.status.unwrap().greeted_at, Some(Time(at(0))), "the timer keeps its phase");
}

#[test]
fn ticks_keep_their_phase_and_come_once() {
    let mut world = world(at(0));
    let (mut told, _) = carried(held("Hi"), &mut world, at(0));
    let mut said = Vec::new();
    for second in 0..=200 {
        let (next, lines) = carried(told, &mut world, at(second));
        told = next;
        said.extend(lines.into_iter().map(|line| (second, line)));
    }
    assert_eq!(said.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [60, 120, 180]);
    assert!(said.iter().all(|(_, line)| line == "Timer: Hi"));
}

#[test]
fn skips_ticks_without_a_leader() {
    let (told, _) = carried(held("Hi"), &mut world(at(0)), at(0));
    let mut later = other(at(130));
    assert!(carried(told.clone(), &mut later, at(131)).1.is_empty());
    assert_eq!(plan(&told, &later, at(131)).again, Some(at(180)));
    assert_eq!(carried(told, &mut later, at(180)).1, ["Timer: Hi"]);
}

#[test]
fn a_changed_interval_keeps_the_origin() {
    let mut world = world(at(0));
    let (mut told, _) = carried(held("Hi"), &mut world, at(0));
    told.spec.interval_seconds = Some(7);
    assert_eq!(plan(&told, &world, at(3)).again, Some(at(7)));
    assert_eq!(carried(told.clone(), &mut world, at(7)).1, ["Timer: Hi"]);
    told.spec.interval_seconds = Some(100);
    assert!(carried(told, &mut world, at(50)).1.is_empty());
}

/// Whether a plan removes the finalizer and does nothing else.
fn lets_go(plan: &Planned) -> bool {
    plan.steps.len() == 2
        && matches!(plan.steps[0][..], [Action::Patch { .. }])
        && matches!(plan.steps[1][..], [Action::Effect(Effect::LetGo(_))])
}

/// A greeted Greeting that is being deleted.
fn going(finalizers: Value) -> Greeting {
    let (mut going, said) = carried(held("Bye"), &mut world(at(0)), at(0));
    assert_eq!(said.len(), 3);
    going.metadata.deletion_timestamp = Some(Time(at(0)));
    going.metadata.finalizers = serde_json::from_value(finalizers).unwrap();
    going
}

#[test]
fn a_greeting_without_a_claim_gets_no_farewell() {
    let unseen =
        greeting(Some("Bye"), &json!({"metadata": {"finalizers": [FINALIZER], "deletionTimestamp": START}}));
    let plan = plan(&unseen, &world(at(0)), at(0));
    assert!(lets_go(&plan) && plan.events.is_empty());
}

#[test]
fn removes_the_finalizer_after_the_farewell() {
    let mut going = going(json!(["other", FINALIZER]));
    let first = plan(&going, &world(at(0)), at(0));
    let (status, _, say) = claimed(&first);
    assert_eq!(say.lines, ["Delete: Bye"]);
    assert_eq!((first.events[0].reason, first.steps.len(), first.again), ("Deleted", 3, Some(at(0))));
    // No test of the resourceVersion, because a repeated or late removal does no harm.
    let expected = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]);
    // Then every process only removes the finalizer.
    going.status = Some(status.clone());
    for mine in [world(at(0)), other(at(1))] {
        let again = plan(&going, &mine, at(1));
        assert!(lets_go(&again));
        assert!(again.events.is_empty() && again.status.is_none());
        let [Action::Patch { operations, .. }] = &again.steps[0][..] else { panic!() };
        assert_eq!(*operations, expected);
    }
    // After the removal the process waits for the cache, but not permanently.
    let mine = World { let_go: Some(at(1)), ..world(at(0)) };
    let waits = plan(&going, &mine, at(2));
    assert!(waits.steps.is_empty() && waits.again == Some(at(11)), "{waits:?}");
    assert!(lets_go(&plan(&going, &mine, at(11))));
    assert!(lets_go(&plan(&going, &mine, at(-86_400))), "the clock was set back");
    going.metadata.finalizers = None;
    assert!(plan(&going, &world(at(0)), at(0)).steps.is_empty());
}

#[test]
fn without_a_message_prints_nothing_and_allows_deletion() {
    for message in [None, Some("")] {
        let silent = greeting(message, &json!({}));
        let plan = plan(&silent, &world(at(0)), at(0));
        assert!(plan.steps.is_empty());
        assert_eq!(plan.status.unwrap().conditions[0].reason, "NoMessage");
    }
    let going = greeting(None, &json!({"metadata": {"finalizers": [FINALIZER], "deletionTimestamp": START}}));
    assert!(lets_go(&plan(&going, &world(at(0)), at(0))), "removes the finalizer without a line");
}

#[test]
fn reports_a_missing_message_once_until_it_is_set() {
    let mut mine = world(at(0));
    let mut silent = greeting(None, &json!({}));
    let first = plan(&silent, &mine, at(0));
    assert_eq!((first.events[0].type_, first.events[0].reason), (EventType::Warning, "NoMessage"));
    silent = carried(silent, &mut mine, at(0)).0;
    let again = plan(&silent, &mine, at(1));
    assert_eq!((again.status.as_ref(), again.events.len()), (silent.status.as_ref(), 0), "writes nothing");
    // A first message is a creation.
    silent.spec.message = Some("Hi".into());
    silent.metadata.finalizers = Some(vec![FINALIZER.into()]);
    let (mut told, said) = carried(silent, &mut mine, at(5));
    assert_eq!(said, FIRST);
    // Without the message the timer pauses. With the same message again it continues in its phase and prints
    // only ticks.
    told.spec.message = None;
    let (mut told, said) = carried(told, &mut mine, at(65));
    assert!(said.is_empty());
    assert_eq!(told.status.as_ref().unwrap().conditions[0].reason, "NoMessage");
    told.spec.message = Some("Hi".into());
    let (told, said) = carried(told, &mut mine, at(70));
    assert_eq!(said, ["Timer: Hi"], "the tick of second 65 is due");
    assert_eq!(plan(&told, &mine, at(71)).again, Some(at(125)));
    assert_eq!(told.status.unwrap().conditions[0].reason, "Greeted");
}

/// Without room, the plan neither claims nor adds the finalizer. It retries until the time limit, which it
/// reports once. A new message starts over.
#[test]
fn claims_nothing_without_room() {
    for full in [Output::Full, Output::Failing] {
        let mut mine = World { room: Err(full), ..world(at(0)) };
        let bare = greeting(Some("Hi"), &json!({}));
        let (mut now, mut waits) = (at(0), 0);
        let given_up = loop {
            let plan = plan(&bare, &mine, now);
            let Some(again) = plan.again else { break plan };
            assert!(plan.status.is_none() && plan.events.is_empty());
            let [Action::Effect(Effect::Retry(attempt))] = &plan.steps[0][..] else { panic!() };
            (mine.attempt, now, waits) = (Some(attempt.clone()), again, waits + 1);
        };
        assert!((60..90).contains(&waits), "{waits} in an hour");
        assert!(given_up.steps.is_empty());
        assert_eq!(given_up.events[0].reason, TIMED_OUT);
        let mut told = bare;
        told.status = given_up.status;
        let condition = &told.status.as_ref().unwrap().conditions[0];
        assert_eq!((condition.reason.as_str(), condition.status.as_str()), (TIMED_OUT, "False"));
        assert!(
            condition.message.ends_with("Change spec.message to have it printed."),
            "{}",
            condition.message
        );
        // Another process with room does not retry either.
        assert_eq!(plan(&told, &other(now), now), Plan::default());
        told.spec.message = Some("Ho".into());
        told.metadata.generation = Some(2);
        told.metadata.finalizers = Some(vec![FINALIZER.into()]);
        assert_eq!(carried(told, &mut other(now), now).1, ["Greeting: Ho", "Create: Ho", "Timer: Ho"]);
    }
}

#[test]
fn prints_as_soon_as_there_is_room() {
    let mut mine = World { room: Err(Output::Full), ..world(at(0)) };
    let (hi, said) = carried(held("Hi"), &mut mine, at(0));
    assert!(said.is_empty() && mine.attempt.is_some());
    mine.room = Ok(Room::unbounded());
    let (mut told, said) = carried(hi, &mut mine, at(9));
    assert_eq!(said, FIRST);
    assert!(mine.attempt.is_none());
    // A tick waits too, until the next one replaces it.
    mine.room = Err(Output::Full);
    for second in [69, 70, 129] {
        let (next, said) = carried(told, &mut mine, at(second));
        assert!(said.is_empty());
        assert!(plan(&next, &mine, at(second)).again <= Some(at(second + 60)));
        told = next;
    }
    mine.room = Ok(Room::unbounded());
    assert_eq!(carried(told, &mut mine, at(130)).1, ["Timer: Hi"], "once, not twice");
}

#[test]
fn a_farewell_without_room_waits_at_most_a_minute() {
    let going = going(json!([FINALIZER]));
    let mut mine = World { room: Err(Output::Full), ..world(at(0)) };
    let (_, said) = carried(going.clone(), &mut mine, at(0));
    assert!(said.is_empty());
    assert!(plan(&going, &mine, at(59)).again.is_some());
    let last = plan(&going, &mine, at(60));
    assert!(lets_go(&last), "{:?}", last.steps);
    assert_eq!((last.events[0].type_, last.events[0].reason), (EventType::Warning, TIMED_OUT));
    assert_eq!(
        last.events[0].note,
        "Not printed within 1m: the reader of the manager's standard output was too slow."
    );
}

#[test]
fn updates_are_counted_with_the_claim() {
    let mut mine = world(at(0));
    let (mut told, _) = carried(held("A"), &mut mine, at(0));
    assert_eq!(told.status.as_ref().unwrap().updates, None);
    for (message, updates) in [("B", 1), ("A", 2)] {
        told.spec.message = Some(message.into());
        told = carried(told, &mut mine, at(1)).0;
        assert_eq!(told.status.as_ref().unwrap().updates, Some(updates));
    }
}

#[test]
fn tolerates_odd_intervals_and_clocks() {
    let mut mine = world(at(0));
    let (mut told, _) = carried(held("Hi"), &mut mine, at(0));
    for (interval, next) in [(0, Some(at(1))), (-5, Some(at(1))), (i64::MAX, Some(at(LONGEST_INTERVAL)))] {
        told.spec.interval_seconds = Some(interval);
        assert_eq!(plan(&told, &mine, at(0)).again, next, "{interval}");
    }
    told.spec.interval_seconds = None;
    // After the clock went back, nothing is printed twice or too early.
    assert_eq!(carried(told.clone(), &mut mine, at(60)).1, ["Timer: Hi"]);
    for second in [30, 59, 60, -100] {
        assert!(carried(told.clone(), &mut mine, at(second)).1.is_empty(), "{second}");
    }
    // After the clock went ahead by a day, one tick is printed, not all missed ones.
    assert_eq!(carried(told, &mut mine, at(86_401)).1, ["Timer: Hi"]);
}

/// Without the claim in the status it is a creation again, and the timer starts over.
#[test]
fn a_removed_claim_is_a_creation_again() {
    let mut mine = world(at(0));
    let (mut told, _) = carried(held("Hi"), &mut mine, at(0));
    told.status.as_mut().unwrap().claim = None;
    let (told, said) = carried(told, &mut mine, at(90));
    assert_eq!(said, FIRST);
    assert_eq!(told.status.unwrap().greeted_at, Some(Time(at(90))));
}

#[test]
fn keeps_a_claim_of_a_newer_version() {
    let mut told = held("Hi");
    told.status = Some(GreetingStatus {
        claim: Some(Claim { message_hash: "v2-x".into(), ..Claim::default() }),
        ..GreetingStatus::default()
    });
    let quiet = plan(&told, &world(at(0)), at(0));
    assert!(quiet.steps.is_empty() && quiet.status.is_none());
    told.metadata.deletion_timestamp = Some(Time(at(1)));
    let plan = plan(&told, &world(at(0)), at(1));
    assert!(lets_go(&plan), "it may go");
}

#[test]
fn the_status_keeps_256_bytes() {
    let (told, _) = carried(held(&"ä".repeat(5000)), &mut world(at(0)), at(0));
    assert!(told.status.unwrap().last_greeting.unwrap().len() <= 256);
}

/// The hash of the tutorial's message. With another hash, an upgrade would print every Greeting again.
#[test]
fn golden_hash_of_the_sample() {
    let (told, _) = carried(held("Hello, World!"), &mut world(at(0)), at(0));
    assert_eq!(told.status.unwrap().claim.unwrap().message_hash, "v1-376wain3fpk3bl3h");
}

proptest! {
    /// With any edits and restarts, a line other than a tick is printed once for each observed change, and a
    /// tick at most once in each interval. Every printed message was in the spec.
    #[test]
    fn prints_nothing_twice(steps in prop::collection::vec((0..4_u8, 0..3_usize, 1..90_i64), 1..40)) {
        let messages = ["a", "b", "c"];
        let mut greeting = held("a");
        let mut now = 0;
        let mut process = world(at(0));
        let mut processes = 0;
        let (mut updates, mut expected, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        for (kind, message, seconds) in steps {
            now += seconds;
            match kind {
                0 => greeting.spec.message = Some(messages[message].into()),
                1 => {
                    processes += 1;
                    process = World { token: format!("p{processes}"), ..world(at(now)) };
                }
                _ => {}
            }
            let current = greeting.spec.message.clone();
            let fresh = last.is_none();
            if last != current && !fresh {
                expected.push(format!("Update: {}", current.as_deref().unwrap_or_default()));
            }
            last = current;
            // The second reconcile has nothing left to print.
            for _ in 0..2 {
                let (next, said) = carried(greeting, &mut process, at(now));
                greeting = next;
                for line in said {
                    if line.starts_with("Timer") { ticks.push(now) } else if line.starts_with("Update") { updates.push(line) } else {
                        prop_assert!(fresh, "{line} is for a new object");
                    }
                }
            }
        }
        prop_assert_eq!(updates, expected);
        let origin = greeting.status.unwrap().greeted_at.unwrap().0.as_second() - at(0).as_second();
        let mut intervals: Vec<i64> = ticks.iter().map(|tick| (tick - origin) / 60).collect();
        let all = intervals.len();
        intervals.dedup();
        prop_assert_eq!(intervals.len(), all, "ticks at {:?}", ticks);
    }
}
