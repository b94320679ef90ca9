use super::*;
use proptest::prelude::*;
use serde_json::Value;

const START: &str = "2026-01-01T00:00:00Z";

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
    World { token: "me-1".into(), leading_since, ticked: None }
}

/// The greeting as it is once the plan's claim or status was written, and the lines that were said.
fn carried(mut greeting: Greeting, world: &mut World, now: Timestamp) -> (Greeting, Vec<String>) {
    let plan = plan(&greeting, world, now);
    let mut said = Vec::new();
    for action in plan.steps.into_iter().flatten() {
        match action {
            Action::Claim { status, .. } => greeting.status = Some(status),
            Action::Effect(say) => {
                world.token.push('+');
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
fn a_new_greeting_is_claimed_and_then_said() {
    let plan = plan(&held("Hi"), &world(at(0)), at(0));
    let [Action::Claim { status, token }] = &plan.steps[0][..] else { panic!() };
    assert_eq!(token, "me-1");
    assert_eq!(status.claim.as_ref().unwrap().kind, "Create");
    assert_eq!(status.greeted_at, Some(Time(at(0))));
    let [Action::Effect(say)] = &plan.steps[1][..] else { panic!() };
    assert_eq!(say.lines, ["Greeting: Hi", "Create: Hi", "Timer: Hi"]);
}

#[test]
fn nothing_is_said_twice_and_nothing_written_after_a_restart() {
    let mut first = world(at(0));
    let (told, said) = carried(held("Hi"), &mut first, at(0));
    assert_eq!(said.len(), 3);
    // Another process, later: the claim is found.
    let again = plan(&told, &World { token: "other-1".into(), ..world(at(10)) }, at(10));
    assert!(again.steps.is_empty());
    assert_eq!(again.status, told.status, "and equal to what is stored, so nothing is written");
    assert_eq!(again.again, Some(at(60)));
}

#[test]
fn a_claim_whose_answer_was_lost_is_said_when_the_cache_shows_it() {
    let (told, _) = carried(held("Hi"), &mut world(at(0)), at(0));
    let again = plan(&told, &world(at(0)), at(1));
    let [Action::Effect(say)] = &again.steps[0][..] else { panic!("{:?}", again.steps) };
    assert_eq!(say.lines, ["Greeting: Hi", "Create: Hi", "Timer: Hi"], "the token is ours and was not said");
}

#[test]
fn a_changed_message_is_one_update_and_back_again_while_down_is_none() {
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
fn ticks_missed_while_nobody_led_are_not_made_up() {
    let (told, _) = carried(held("Hi"), &mut world(at(0)), at(0));
    let mut later = World { token: "other-1".into(), ..world(at(130)) };
    assert!(carried(told.clone(), &mut later, at(131)).1.is_empty());
    assert_eq!(plan(&told, &later, at(131)).again, Some(at(180)));
    assert_eq!(carried(told, &mut later, at(180)).1, ["Timer: Hi"]);
}

#[test]
fn another_interval_is_followed_from_the_same_origin() {
    let mut world = world(at(0));
    let (mut told, _) = carried(held("Hi"), &mut world, at(0));
    told.spec.interval_seconds = Some(7);
    assert_eq!(plan(&told, &world, at(3)).again, Some(at(7)));
    assert_eq!(carried(told.clone(), &mut world, at(7)).1, ["Timer: Hi"]);
    told.spec.interval_seconds = Some(100);
    assert!(carried(told, &mut world, at(50)).1.is_empty());
}

#[test]
fn deletion_is_claimed_by_the_finalizer_and_then_said() {
    let going = greeting(
        Some("Bye"),
        &json!({"metadata": {"finalizers": ["other", FINALIZER], "deletionTimestamp": START}}),
    );
    let plan = plan(&going, &world(at(0)), at(0));
    let [Action::Patch { operations, .. }] = &plan.steps[0][..] else { panic!() };
    assert_eq!(operations[2], json!({"op": "test", "path": "/metadata/finalizers/1", "value": FINALIZER}));
    let [Action::Effect(say)] = &plan.steps[1][..] else { panic!() };
    assert_eq!(say.lines, ["Delete: Bye"]);
    let without = greeting(Some("Bye"), &json!({"metadata": {"deletionTimestamp": START}}));
    assert!(super::plan(&without, &world(at(0)), at(0)).steps.is_empty());
}

#[test]
fn without_a_message_nothing_is_said_and_deletion_is_free() {
    for message in [None, Some("")] {
        let silent = greeting(message, &json!({}));
        let plan = plan(&silent, &world(at(0)), at(0));
        assert!(plan.steps.is_empty());
        assert_eq!(plan.status.unwrap().conditions[0].reason, "NoMessage");
    }
    let going = greeting(None, &json!({"metadata": {"finalizers": [FINALIZER], "deletionTimestamp": START}}));
    assert_eq!(plan(&going, &world(at(0)), at(0)).steps.len(), 1, "the finalizer goes, no line is said");
}

#[test]
fn a_claim_of_a_newer_version_is_left_alone() {
    let mut told = held("Hi");
    told.status = Some(GreetingStatus {
        claim: Some(Claim { message_hash: "v2-x".into(), ..Claim::default() }),
        ..GreetingStatus::default()
    });
    let plan = plan(&told, &world(at(0)), at(0));
    assert!(plan.steps.is_empty() && plan.status.is_none());
}

#[test]
fn the_status_keeps_256_bytes() {
    let (told, _) = carried(held(&"ä".repeat(5000)), &mut world(at(0)), at(0));
    assert!(told.status.unwrap().last_greeting.unwrap().len() <= 256);
}

/// The hash of the post's message. It must never change: an upgrade would say every greeting again.
#[test]
fn golden_hash_of_the_sample() {
    let (told, _) = carried(held("Hello, World!"), &mut world(at(0)), at(0));
    assert_eq!(told.status.unwrap().claim.unwrap().message_hash, "v1-376wain3fpk3bl3h");
}

proptest! {
    /// Whatever is edited and whenever the process restarts: a line that is not a tick is said once for each change
    /// that was seen, a tick at most once in each interval, and nothing is said that nobody wrote.
    #[test]
    fn nothing_is_said_twice(steps in prop::collection::vec((0..4_u8, 0..3_usize, 1..90_i64), 1..40)) {
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
                    process = World { token: format!("p{processes}"), leading_since: at(now), ticked: None };
                }
                _ => {}
            }
            let current = greeting.spec.message.clone();
            let fresh = last.is_none();
            if last != current && !fresh {
                expected.push(format!("Update: {}", current.as_deref().unwrap_or_default()));
            }
            last = current;
            // Twice: the second pass finds nothing left to say.
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
