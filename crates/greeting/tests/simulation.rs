//! Simulates Greetings under two processes that both believe that they may write. Caches are stale, answers
//! are lost, writes come late, processes crash between any two steps, the reader stalls, and a user edits.
//!
//! The plan's tests check single rules. This test checks the promise that no line is printed twice. proptest
//! shrinks a failure to a short list of [`Op`]s. Run more cases with
//! `PROPTEST_CASES=100000 cargo test -p quintet-greeting --test simulation`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests may panic")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use quintet_greeting::api::{Greeting, GreetingStatus};
use quintet_greeting::handlers::Cause;
use quintet_greeting::observe::{Memory, World};
use quintet_greeting::plan::{Effect, plan};
use quintet_greeting::printer::{NoRoom, Room};
use quintet_runtime::model::plan::Action;
use serde_json::{Value, json};

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The write succeeds with an answer.
    Well,
    /// The write succeeds, and the answer is lost; a read of the object succeeds.
    NoAnswer,
    /// The same, and the read fails too.
    Silence,
    /// The write is delayed, and may arrive later.
    Late,
    /// The write never arrives.
    Lost,
    /// The process dies before it sends the write.
    DiesBefore,
    /// The write succeeds, and the process dies before the answer.
    DiesAfter,
}

#[derive(Clone, Debug)]
enum Op {
    /// A process sees this number of further changes and reconciles. Its second write, if any, succeeds.
    Pass { who: usize, sees: usize, fate: Fate },
    /// A delayed write arrives.
    Arrive(usize),
    /// Another process replaces a process.
    Restart(usize),
    /// The reader of a process's output stalls or continues.
    Stall { who: usize, full: bool },
    /// The user sets the message.
    Message(Option<&'static str>),
    /// The user sets a label.
    Label,
    /// The user deletes the Greeting, or creates one if there is none.
    DeleteOrCreate,
    /// Time passes.
    Wait(i64),
}

fn op(two: bool) -> impl Strategy<Value = Op> {
    let who = || if two { (0..2_usize).boxed() } else { Just(0).boxed() };
    let fate = prop_oneof![
        8 => Just(Fate::Well), 2 => Just(Fate::NoAnswer), 2 => Just(Fate::Silence), 2 => Just(Fate::Late),
        1 => Just(Fate::Lost), 1 => Just(Fate::DiesBefore), 1 => Just(Fate::DiesAfter),
    ];
    let sees = prop_oneof![3 => Just(usize::MAX), 2 => 0..3_usize];
    prop_oneof![
        12 => (who(), sees, fate).prop_map(|(who, sees, fate)| Op::Pass { who, sees, fate }),
        2 => any::<usize>().prop_map(Op::Arrive),
        1 => who().prop_map(Op::Restart),
        1 => (who(), any::<bool>()).prop_map(|(who, full)| Op::Stall { who, full }),
        3 => prop_oneof![4 => Just(Some("a")), 4 => Just(Some("b")), 1 => Just(None)].prop_map(Op::Message),
        1 => Just(Op::Label),
        1 => Just(Op::DeleteOrCreate),
        2 => prop_oneof![9 => 1..25_i64, 1 => Just(3_600)].prop_map(Op::Wait),
    ]
}

/// A sent write.
#[derive(Clone, Debug)]
enum Write {
    Claim { status: GreetingStatus, version: String, uid: String, token: String },
    Status { status: GreetingStatus, version: String, uid: String },
    Patch { operations: Value },
}

/// Every state of the object; None while there was none.
#[derive(Default)]
struct Server {
    history: Vec<Option<Value>>,
    version: u64,
    objects: u64,
    /// Stored claims: token, message and cause.
    claims: Vec<(String, String, String)>,
}

impl Server {
    fn now(&self) -> Option<&Value> {
        self.history.last().and_then(Option::as_ref)
    }

    fn store(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let gone = !object["metadata"]["deletionTimestamp"].is_null()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        self.history.push((!gone).then_some(object));
    }

    fn create(&mut self) {
        self.objects += 1;
        let uid = format!("uid-{}", self.objects);
        self.store(json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": "g", "namespace": "n", "uid": uid, "generation": 1},
            "spec": {"message": "a"},
        }));
    }

    fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(before) = self.now().cloned() else { return };
        let mut object = before.clone();
        change(&mut object);
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_u64().unwrap() + 1);
        }
        if object != before {
            self.store(object);
        }
    }

    /// Executes a write if its preconditions hold.
    fn carry_out(&mut self, write: &Write) -> bool {
        // The API server answers all concurrent removals of a last finalizer with success, even those after
        // the object is gone.
        let gone = self.now().is_none();
        let last = self.history.iter().rev().flatten().next();
        let Some(mut object) = last.filter(|_| !gone || matches!(write, Write::Patch { .. })).cloned() else {
            return false;
        };
        match write {
            Write::Claim { status, version, uid, .. } | Write::Status { status, version, uid } => {
                if object["metadata"]["resourceVersion"] != **version || object["metadata"]["uid"] != **uid {
                    return false;
                }
                object["status"] = serde_json::to_value(status).unwrap();
                if let Write::Claim { token, .. } = write {
                    let message = object["spec"]["message"].as_str().unwrap().to_owned();
                    let kind = status.claim.as_ref().unwrap().known().unwrap().kind.clone();
                    self.claims.push((token.clone(), message, kind));
                }
            }
            Write::Patch { operations } => {
                for operation in operations.as_array().unwrap() {
                    let path = operation["path"].as_str().unwrap();
                    match operation["op"].as_str().unwrap() {
                        "test" if object.pointer(path) != Some(&operation["value"]) => return false,
                        "test" => {}
                        "add" if path == "/metadata/finalizers" => {
                            object["metadata"]["finalizers"] = operation["value"].clone();
                        }
                        "remove" => {
                            let at: usize = path.rsplit_once('/').unwrap().1.parse().unwrap();
                            object["metadata"]["finalizers"].as_array_mut().unwrap().remove(at);
                        }
                        other => panic!("{other} {path}"),
                    }
                }
            }
        }
        if !gone {
            self.store(object);
        }
        true
    }
}

/// A manager.
#[derive(Default)]
struct Process {
    identity: String,
    tokens: u64,
    since: Timestamp,
    memory: Memory,
    /// The UID of the Greeting in the memory.
    about: String,
    /// Its position in the history.
    seen: usize,
    /// The position with its own writes, which it must reach before it plans.
    must_see: usize,
    /// Whether the outcome of its last write is unknown.
    unclear: bool,
    full: bool,
    ticks: BTreeSet<(String, Timestamp)>,
}

impl Process {
    fn new(number: u64, since: Timestamp, seen: usize) -> Self {
        Self { identity: format!("p{number}"), since, seen, ..Self::default() }
    }
}

#[derive(Default)]
struct Simulation {
    server: Server,
    processes: [Process; 2],
    born: u64,
    stuck: Vec<Write>,
    now: Timestamp,
    /// Tokens of claims with printed lines.
    said: BTreeSet<String>,
    /// UIDs with a printed creation, and with a printed deletion.
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Tokens of claims whose process died after it sent them.
    dead: BTreeSet<String>,
    log: String,
}

impl Simulation {
    fn new() -> Self {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut server = Server::default();
        server.create();
        let processes = [Process::new(0, now, 0), Process::new(1, now, 0)];
        Self { server, processes, born: 2, now, ..Self::default() }
    }

    fn restart(&mut self, who: usize) {
        let process = &mut self.processes[who];
        let prefix = format!("{}-", process.identity);
        let stored = self.server.claims.iter().map(|(token, ..)| token);
        let stuck = self.stuck.iter().filter_map(|write| match write {
            Write::Claim { token, .. } => Some(token),
            _ => None,
        });
        self.dead.extend(stored.chain(stuck).filter(|token| token.starts_with(&prefix)).cloned());
        // The new process lists.
        *process = Process::new(self.born, self.now, self.server.history.len());
        self.born += 1;
    }

    fn run(&mut self, op: &Op) {
        writeln!(self.log, "{op:?}").unwrap();
        match op {
            Op::Pass { who, sees, fate } => self.pass(*who, *sees, *fate),
            Op::Arrive(which) => {
                if !self.stuck.is_empty() {
                    let write = self.stuck.remove(which % self.stuck.len());
                    self.server.carry_out(&write);
                }
            }
            Op::Restart(who) => self.restart(*who),
            Op::Stall { who, full } => self.processes[*who].full = *full,
            Op::Message(message) => self.server.edit(|object| {
                object["spec"] = message.map_or(json!({}), |message| json!({"message": message}));
            }),
            Op::Label => {
                let label = self.server.version;
                self.server.edit(|object| object["metadata"]["labels"] = json!({"l": label.to_string()}));
            }
            Op::DeleteOrCreate if self.server.now().is_none() => self.server.create(),
            Op::DeleteOrCreate => {
                let at = self.now.to_string();
                self.server.edit(|object| {
                    if object["metadata"]["deletionTimestamp"].is_null() {
                        object["metadata"]["deletionTimestamp"] = json!(at);
                    }
                });
            }
            Op::Wait(seconds) => self.now += SignedDuration::from_secs(*seconds),
        }
    }

    /// One reconcile, as in the controller and the executor.
    fn pass(&mut self, who: usize, sees: usize, first: Fate) {
        let process = &mut self.processes[who];
        let last = self.server.history.len();
        process.seen = process.seen.saturating_add(sees).clamp(1, last);
        if process.unclear {
            if first == Fate::Silence {
                return;
            }
            process.unclear = false;
            process.must_see = last;
        }
        if process.seen < process.must_see {
            return;
        }
        let object = self.server.history[process.seen - 1].clone();
        let Some(greeting) = object.map(|object| serde_json::from_value::<Greeting>(object).unwrap()) else {
            process.memory = Memory::default();
            return;
        };
        let uid = greeting.metadata.uid.clone().unwrap();
        if process.about != uid {
            (process.memory, process.about) = (Memory::default(), uid.clone());
        }
        let recalled = process.memory.recall(&greeting);
        let owed = recalled.owed.as_ref();
        let token = owed
            .map_or_else(|| format!("{}-{}", process.identity, process.tokens), |owed| owed.token.clone());
        process.tokens += 1;
        let room = if process.full && owed.is_none() { Err(NoRoom::Full) } else { Ok(Room::default()) };
        let world = World { token, leading_since: process.since, recalled, room };
        let version = greeting.metadata.resource_version.clone().unwrap();
        let plan = plan(&greeting, &world, self.now);
        let mut fate = first;
        for action in plan.steps.into_iter().flatten() {
            let write = match action {
                Action::Effect(effect) => {
                    self.effect(who, &uid, effect);
                    continue;
                }
                Action::Claim { status, token } => {
                    Write::Claim { status, token, version: version.clone(), uid: uid.clone() }
                }
                Action::JsonPatch { operations, .. } => Write::Patch { operations },
                other => panic!("{other:?}"),
            };
            if !self.send(who, write, std::mem::replace(&mut fate, Fate::Well)) {
                return;
            }
        }
        if let Some(status) = plan.status.filter(|status| greeting.status.as_ref() != Some(status)) {
            self.send(who, Write::Status { status, version, uid }, fate);
        }
    }

    /// Sends a write. Returns whether the process knows that it succeeded.
    fn send(&mut self, who: usize, write: Write, fate: Fate) -> bool {
        match fate {
            Fate::DiesBefore => {
                self.restart(who);
                return false;
            }
            Fate::DiesAfter => {
                self.server.carry_out(&write);
                self.restart(who);
                return false;
            }
            Fate::Late => self.stuck.push(write),
            Fate::Lost => {}
            Fate::Well | Fate::NoAnswer | Fate::Silence => {
                let done = self.server.carry_out(&write);
                let process = &mut self.processes[who];
                if fate == Fate::Well {
                    process.must_see = if done { self.server.history.len() } else { process.must_see };
                    return done;
                }
                process.unclear = true;
                // A claim is visible in the object.
                if let (Write::Claim { token, .. }, Fate::NoAnswer) = (&write, fate) {
                    let now = self.server.now().map(|object| object["status"]["claim"]["token"].clone());
                    return now == Some(json!(token));
                }
                return false;
            }
        }
        // A read does not show a delayed write.
        self.processes[who].unclear = true;
        false
    }

    fn effect(&mut self, who: usize, uid: &str, effect: Effect) {
        let process = &mut self.processes[who];
        let token = process.memory.kept.owed.as_ref().map(|owed| owed.token.clone());
        let Some(say) = process.memory.take(effect) else { return };
        writeln!(self.log, "{} says {:?}", process.identity, say.lines).unwrap();
        let log = &self.log;
        if let Some(tick) = say.tick {
            assert!(process.ticks.insert((uid.to_owned(), tick)), "tick {tick} twice\n{log}");
        }
        let cause = say.cause;
        if cause == Cause::Timer {
            return;
        }
        let token = token.unwrap();
        let claim = self.server.claims.iter().find(|(claimed, ..)| *claimed == token);
        let (_, message, kind) = claim.unwrap_or_else(|| panic!("{token} was not claimed\n{log}"));
        assert_eq!(say.lines.last().unwrap().split_once(": ").unwrap().1, message, "{log}");
        assert_eq!(*kind, format!("{cause:?}"), "{log}");
        let once = match cause {
            Cause::Create => self.created.insert(uid.to_owned()),
            Cause::Delete => self.deleted.insert(uid.to_owned()),
            _ => true,
        };
        assert!(once, "{cause:?} twice\n{log}");
        assert!(self.said.insert(token), "said twice\n{log}");
    }

    /// From now on everything succeeds.
    fn recover(&mut self, who: &[usize], arrive: bool) {
        self.log += "heals\n";
        for write in std::mem::take(&mut self.stuck) {
            if arrive {
                self.server.carry_out(&write);
            }
        }
        for _ in 0..12 {
            for &who in who {
                self.processes[who].full = false;
                self.pass(who, usize::MAX, Fate::Well);
            }
        }
        let version = self.server.version;
        for &who in who {
            self.pass(who, usize::MAX, Fate::Well);
        }
        let log = &self.log;
        assert_eq!(self.server.version, version, "no more writes\n{log}");
        let Some(object) = self.server.now() else { return };
        assert!(object["metadata"]["deletionTimestamp"].is_null(), "the finalizer is removed\n{log}");
        let status = &object["status"];
        let Some(message) = object["spec"]["message"].as_str() else {
            assert_eq!(status["conditions"][0]["reason"], "NoMessage", "{log}");
            return;
        };
        assert_eq!(status["conditions"][0]["status"], "True", "{log}");
        assert_eq!(status["lastGreeting"], message, "{log}");
        let token = status["claim"]["token"].as_str().unwrap();
        let is_done = self.said.contains(token) || self.dead.contains(token);
        assert!(is_done, "{token} is claimed by a live process, and not printed\n{log}");
    }
}

/// Plays the operations, and then lets these processes recover.
fn played(ops: &[Op], who: &[usize], arrive: bool) -> Simulation {
    let mut simulation = Simulation::new();
    for op in ops {
        simulation.run(op);
    }
    simulation.recover(who, arrive);
    simulation
}

proptest! {
    #![proptest_config({
        let default = ProptestConfig::default();
        ProptestConfig { cases: default.cases.max(1_000), ..default }
    })]

    /// No line is printed twice. In the end everything is claimed, and printed if its process lives.
    #[test]
    fn two_leaders_print_nothing_twice(ops in prop::collection::vec(op(true), 1..60), arrive in any::<bool>()) {
        played(&ops, &[0, 1], arrive);
    }

    /// The same with one leader at a time. It prints every stored claim unless it died.
    #[test]
    fn one_leader_prints_all_its_claims(ops in prop::collection::vec(op(false), 1..60), arrive in any::<bool>()) {
        let simulation = played(&ops, &[0], arrive);
        for (token, message, kind) in &simulation.server.claims {
            prop_assert!(
                simulation.said.contains(token) || simulation.dead.contains(token),
                "{} of {} by {} was not printed\n{}", kind, message, token, simulation.log
            );
        }
    }
}

/// Standard output is blocked for an hour, in which the message changes. Afterwards the change is printed, and of the
/// 60 ticks only the last.
#[test]
fn an_hour_of_blocked_output_loses_only_ticks() {
    let mut simulation = Simulation::new();
    let pass = Op::Pass { who: 0, sees: usize::MAX, fate: Fate::Well };
    for _ in 0..3 {
        simulation.run(&pass);
    }
    assert_eq!((simulation.said.len(), simulation.processes[0].ticks.len()), (1, 1));
    simulation.run(&Op::Stall { who: 0, full: true });
    for second in 1..=3_600 {
        simulation.run(&Op::Wait(1));
        if second == 1_800 {
            simulation.run(&Op::Message(Some("b")));
        }
        simulation.run(&pass);
    }
    assert_eq!((simulation.said.len(), simulation.processes[0].ticks.len()), (1, 1));
    let condition = &simulation.server.now().unwrap()["status"]["conditions"][0];
    assert_eq!(condition["reason"], "OutputBlocked");
    simulation.recover(&[0], false);
    let kinds: Vec<&str> = simulation.server.claims.iter().map(|(_, _, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["Create", "Update"]);
    let ticks: Vec<Timestamp> = simulation.processes[0].ticks.iter().map(|(_, tick)| *tick).collect();
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    assert_eq!((simulation.said.len(), ticks), (2, vec![begin, begin + SignedDuration::from_hours(1)]));
}
