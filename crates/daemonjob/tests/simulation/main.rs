//! A simulation of a DaemonJob: the pure plan, an API server in memory and the other actors of a cluster.
//! Their actions come in random order and with faults.
//!
//! Table tests show that each rule of the plan holds. This test shows that the rules hold together when
//! caches lag, processes die between writes, writes of a deposed leader come late, and nodes break. proptest
//! shrinks a failure to a short list of [`Op`]s and prints it with a trace.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

mod actors;
mod due_times;
mod machines;
mod manager;
mod marks;
mod ops;
mod rollout;
mod server;
mod simulation;
mod statuses;
mod truth;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};
use serde_json::{Value, json};

use due_times::SCHEDULES;
use ops::{NodeOp, Op, PodOp, SpecOp};
use simulation::{Scenario, Simulation, template};

fn lag() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0_u8), 2 => 0..6_u8, 1 => Just(u8::MAX)]
}

fn pass() -> impl Strategy<Value = Op> {
    let writes = prop_oneof![3 => Just(u8::MAX), 2 => 0..4_u8];
    (writes, any::<u8>(), [lag(), lag(), lag(), lag()]).prop_map(|(writes, any, lags)| Op::Pass {
        writes,
        any,
        lags,
    })
}

/// `take_overs` is the weight of a take-over, beside 40 for a reconcile.
fn op(take_overs: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => pass(),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(done, rest)| Op::NoAnswer { done, rest }),
        3 => Just(Op::Crash),
        1 => Just(Op::Stop),
        take_overs => (lag(), lag(), 0..8_u8).prop_map(|(pods, nodes, late)| Op::TakeOver { pods, nodes, late }),
        3 => any::<u8>().prop_map(Op::Late),
        1 => (1..4_u8).prop_map(Op::RefusePods),
        1 => (1..4_u8).prop_map(Op::RefuseLedger),
        1 => (1..4_u8).prop_map(Op::RefuseMarks),
        5 => Just(Op::AllGoesWell),
        6 => (any::<u8>(), prop::bool::weighted(0.2)).prop_map(|(by, full)| Op::Pod(by, PodOp::Schedule(full))),
        6 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Start)),
        1 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Reject)),
        10 => (any::<u8>(), any::<bool>()).prop_map(|(by, well)| Op::Pod(by, PodOp::Finish(well))),
        4 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Kill)),
        1 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Evict)),
        1 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Drain)),
        4 => any::<u8>().prop_map(|by| Op::Pod(by, PodOp::Delete)),
        2 => Just(Op::CollectPods),
        1 => Just(Op::AddNode),
        2 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::Delete)),
        1 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::BeginToDelete)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(by, same)| Op::Node(by, NodeOp::Replace(same))),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(by, cordoned)| Op::Node(by, NodeOp::Cordon(cordoned))),
        2 => (any::<u8>(), 0..3_u8).prop_map(|(by, effect)| Op::Node(by, NodeOp::Taint(effect))),
        2 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::Quarantine)),
        1 => (any::<u8>(), 0..3_u8).prop_map(|(by, effect)| Op::Node(by, NodeOp::Remediate(effect))),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(by, is_marked)| Op::Node(by, NodeOp::Leave(is_marked))),
        1 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::OutOfService)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(by, is_selected)| Op::Node(by, NodeOp::Select(is_selected))),
        4 => (any::<u8>(), prop::bool::weighted(0.6)).prop_map(|(by, ready)| Op::Node(by, NodeOp::Ready(ready))),
        2 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::Die)),
        2 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::ShutDown)),
        1 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::Reboot)),
        1 => any::<u8>().prop_map(|by| Op::Node(by, NodeOp::Reinstall)),
        3 => (0..3_u8).prop_map(|by| Op::Spec(SpecOp::Template(by))),
        1 => prop::option::of(0..2_u8).prop_map(|by| Op::Spec(SpecOp::RetryToken(by))),
        1 => (0..3_u8).prop_map(|by| Op::Spec(SpecOp::Policy(by))),
        1 => prop::option::of(0..3_u8).prop_map(|by| Op::Spec(SpecOp::MaxFailed(by))),
        1 => (0..3_u8).prop_map(|by| Op::Spec(SpecOp::BackoffLimit(by))),
        2 => any::<bool>().prop_map(|by| Op::Spec(SpecOp::Suspend(by))),
        1 => any::<bool>().prop_map(|by| Op::Spec(SpecOp::Pause(by))),
        1 => prop::option::of(1..3_u8).prop_map(|by| Op::Spec(SpecOp::Parallelism(by))),
        1 => prop::option::of(0..2_u8).prop_map(|by| Op::Spec(SpecOp::Schedule(by))),
        3 => prop::option::of(1..4_u8).prop_map(Op::Approve),
        1 => any::<bool>().prop_map(Op::PauseByAnnotation),
        1 => any::<u8>().prop_map(Op::DeleteShard),
        6 => prop_oneof![3 => 1..30_u16, 1 => 90..300_u16, 1 => 300..7_000_u16].prop_map(Op::Wait),
    ]
}

fn failure_policy() -> impl Strategy<Value = Value> {
    let type_ = prop_oneof![2 => Just("Continue"), 2 => Just("FailFast"), 3 => Just("Pause")];
    let max =
        prop_oneof![4 => Just(Value::Null), 3 => (0..3_u8).prop_map(Value::from), 1 => Just(json!("50%"))];
    let lost = prop_oneof![2 => Just(Value::Null), 3 => Just(json!(20)), 1 => Just(json!(0))];
    let policy = (type_, max, lost).prop_map(|(type_, max, lost)| {
        let mut policy = json!({"type": type_});
        for (field, value) in [("maxFailedNodes", max), ("nodeLostAfterSeconds", lost)] {
            if !value.is_null() {
                policy[field] = value;
            }
        }
        policy
    });
    prop_oneof![1 => Just(Value::Null), 4 => policy]
}

fn unhealthy_nodes() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => Just(Value::Null),
        1 => Just(json!({"policy": "Wait"})),
        1 => Just(json!({"skipAfterSeconds": 0})),
        2 => Just(json!({"policy": "SkipAfter", "skipAfterSeconds": 15})),
    ]
}

/// Waves, approval and settling.
fn rollout() -> impl Strategy<Value = Value> {
    let sizes = prop_oneof![
        2 => Just(json!([1])),
        2 => Just(json!([1, "50%"])),
        1 => Just(json!(["50%", 3])),
        1 => Just(Value::Null),
    ];
    let approval = prop_oneof![3 => Just("None"), 1 => Just("FirstWave"), 1 => Just("EveryWave")];
    let settle = prop_oneof![1 => Just(0), 2 => Just(15)];
    let rollout = (sizes, approval, settle).prop_map(|(sizes, approval, settle)| {
        if sizes.is_null() {
            json!({ "settleSeconds": settle })
        } else {
            json!({ "waveSizes": sizes, "approval": approval, "settleSeconds": settle })
        }
    });
    prop_oneof![3 => Just(Value::Null), 2 => rollout]
}

/// A schedule and its starting deadline.
fn schedule() -> impl Strategy<Value = (Value, Value)> {
    let schedule = (0..SCHEDULES.len()).prop_map(|at| json!(SCHEDULES[at].0));
    let deadline = prop_oneof![2 => Just(Value::Null), 1 => (1..90_u8).prop_map(Value::from)];
    prop_oneof![3 => Just((Value::Null, Value::Null)), 1 => (schedule, deadline)]
}

/// The clocks of the two managers, the API server and the nodes, in seconds ahead.
fn clocks() -> impl Strategy<Value = [i16; 4]> {
    let clock = || prop_oneof![8 => Just(0_i16), 1 => -5..=5_i16, 1 => -600..=600_i16];
    prop_oneof![2 => Just([0; 4]), 1 => [clock(), clock(), clock(), clock()]]
}

/// The fields of the spec, without the template.
fn fields() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let rerun = prop_oneof![
        4 => Just(Value::Null),
        1 => Just(json!([])),
        2 => Just(json!(["TemplateChange", "NodeReboot"])),
        1 => Just(json!(["NodeReboot", "MachineChange"])),
    ];
    let parallelism =
        prop_oneof![2 => Just(Value::Null), 3 => (1..3_u8).prop_map(Value::from), 1 => Just(json!("50%"))];
    let late = prop_oneof![4 => Just(Value::Null), 1 => Just(json!("Ignore"))];
    let outdated = prop_oneof![2 => Just(Value::Null), 1 => Just(json!("Replace"))];
    let limits = (
        prop::option::weighted(0.8, 0..3_u8),
        prop::option::weighted(0.2, 0..3_u8),
        prop::option::weighted(0.2, 5..60_u8),
        prop::option::weighted(0.3, 1..30_u8),
        prop::option::weighted(0.3, 0..30_u8),
    );
    let on_success = prop_oneof![2 => Just(Value::Null), 1 => Just(marks::on_success())];
    let others = (schedule(), on_success);
    let rules = (failure_policy(), unhealthy_nodes(), rerun, parallelism, late, outdated, rollout(), others);
    (limits, rules).prop_map(|(limits, rules)| {
        let (backoff, disruptions, deadline, pending, ttl) = limits;
        let (policy, unhealthy, rerun, parallelism, late, outdated, mut rollout, others) = rules;
        let ((schedule, starting), on_success) = others;
        // The API server rejects these fields beside a schedule.
        let rerun = if schedule.is_null() { rerun } else { Value::Null };
        if !schedule.is_null() && !rollout["approval"].is_null() {
            rollout["approval"] = json!("None");
        }
        let fields = vec![
            ("backoffLimit", json!(backoff)),
            ("disruptionLimit", json!(disruptions)),
            ("activeDeadlineSeconds", json!(deadline)),
            ("pendingDeadlineSeconds", json!(pending)),
            ("ttlSecondsAfterFinished", json!(ttl)),
            ("failurePolicy", policy),
            ("unhealthyNodes", unhealthy),
            ("rerunOn", rerun),
            ("parallelism", parallelism),
            ("lateNodes", late),
            ("outdatedPods", outdated),
            ("rollout", rollout),
            ("onSuccess", on_success),
            ("schedule", schedule),
            ("startingDeadlineSeconds", starting),
        ];
        fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
    })
}

/// `stale`: whether the caches of pods and of nodes may lag at a take-over.
fn scenario(stale: (bool, bool)) -> impl Strategy<Value = Scenario> {
    let ends = (prop::bool::weighted(0.1), any::<bool>(), any::<bool>(), 0..3_u8);
    (1..5_usize, any::<bool>(), ends, clocks(), fields()).prop_map(
        move |(nodes, never, (cut_short, foreground, is_lifted, remedy), clocks, fields)| {
            let mut spec = json!({"template": template(0, if never { "Never" } else { "OnFailure" })});
            for (field, value) in fields {
                spec[field] = value;
            }
            Scenario { nodes, spec, cut_short, is_lifted, remedy, foreground, stale, clocks }
        },
    )
}

/// Runs one sequence. A failed sequence runs again with a trace.
fn holds(scenario: &Scenario, ops: &[Op]) -> Result<(), TestCaseError> {
    Simulation::new(scenario.clone(), false).run(ops).map_err(|wrong| {
        let mut traced = Simulation::new(scenario.clone(), true);
        let again = traced.run(ops);
        assert_eq!(again, Err(wrong.clone()), "the simulation is deterministic");
        TestCaseError::fail(format!("{wrong}\n{}", traced.trace.unwrap_or_default()))
    })
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// Runs fixed sequences. Returns the first one that breaks an invariant, shrunk in at most this number of
/// steps.
fn first_failure(cases: u32, max_shrink_iters: u32, stale: (bool, bool)) -> Option<String> {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        // The default algorithm takes more time than the simulation.
        rng_algorithm: RngAlgorithm::XorShift,
        rng_seed: RngSeed::Fixed(setting("SIMULATION_SEED", 1)),
        max_shrink_iters,
        ..ProptestConfig::default()
    };
    let strategy =
        (scenario(stale), prop::collection::vec(op(if stale == (false, false) { 3 } else { 20 }), 0..80));
    match TestRunner::new(config).run(&strategy, |(scenario, ops)| holds(&scenario, &ops)) {
        Ok(()) => None,
        Err(TestError::Fail(wrong, (scenario, ops))) => Some(format!("{wrong}\n{scenario:?}\n{ops:?}")),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

/// `SIMULATION_SEED` selects other sequences, `SIMULATION_CASES` their number.
#[test]
fn keeps_its_invariants() {
    let cases = u32::try_from(setting("SIMULATION_CASES", 1_000)).unwrap();
    if let Some(wrong) = first_failure(cases, 20_000, (false, false)) {
        panic!("{wrong}");
    }
}

/// Shows why a controller lists all its caches at a take-over, and that the simulation detects stale caches.
#[test]
fn a_leader_with_old_caches_breaks_invariants() {
    for stale in [(true, false), (false, true)] {
        let wrong = first_failure(20_000, 0, stale).unwrap();
        let invariants = ["one pod a node: ", "once: ", "released: ", "waves: "];
        assert!(invariants.iter().any(|invariant| wrong.starts_with(invariant)), "{stale:?}: {wrong}");
    }
}
