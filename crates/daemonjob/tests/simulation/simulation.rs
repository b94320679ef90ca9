//! Two managers, one of which leads, the server and the other actors. A list of [`Op`]s drives them.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{Approval, DaemonJob, DaemonJobStatus};
use quintet_daemonjob::labels::{APPROVED_ANNOTATION, PAUSED_ANNOTATION};
use quintet_daemonjob::plan::plan;
use quintet_daemonjob::sweep::{self, OwnerState};
use quintet_daemonjob::waves::paused;
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::resource::{CONFIG_MAPS, NODES, PODS};
use serde_json::{Value, json};

use crate::due_times::{self, due_time};
use crate::manager::{Lag, Manager, Next, Pass, name_of};
use crate::marks::{Marked, TAINT};
use crate::ops::{Op, SpecOp};
use crate::rollout::{Memory, View, rollout_number};
use crate::server::{Answer, Clocks, JOB, Server};
use crate::statuses::status_is_true;
use crate::truth::{Judgement, Maker, Truth};

/// The most rounds until the DaemonJob rests, after the faults stop.
const MOST_ROUNDS: usize = 400;

/// The spec, the cluster, and the end of the simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub nodes: usize,
    pub spec: Value,
    /// Whether the user deletes the DaemonJob when the faults stop, before it rests.
    pub cut_short: bool,
    /// Whether the user ends every hold when the faults stop. Otherwise the spec does not change.
    pub is_lifted: bool,
    /// The user's remedy after too many failures: another type, a new retryToken, or a higher limit.
    pub remedy: u8,
    /// Whether the user deletes it with foreground propagation.
    pub foreground: bool,
    /// Whether the caches of pods and of nodes may lag when a process takes over.
    pub stale: (bool, bool),
    /// How many seconds the clocks of both managers, the API server and the nodes are ahead, in this order.
    pub clocks: [i16; 4],
}

/// A late write of a deposed leader.
enum Late {
    Write(Box<Action<DaemonJobStatus>>),
    Status(Arc<DaemonJob>, Box<DaemonJobStatus>),
}

pub struct Simulation {
    pub scenario: Scenario,
    pub server: Server,
    managers: [Manager; 2],
    leader: usize,
    late: Vec<Late>,
    pub truth: Truth,
    marked: Marked,
    memory: Memory,
    /// The leader's knowledge when its reconcile began.
    view: Option<View>,
    pub nodes: usize,
    /// The trace of the events.
    pub trace: Option<String>,
}

/// The template's variants.
pub fn template(variant: u8, restart: &str) -> Value {
    json!({
        "metadata": {"annotations": {"variant": variant.to_string()}},
        "spec": {
            "restartPolicy": restart, "nodeSelector": {"pool": "a"}, "containers": [{"name": "c", "image": "i"}],
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
        },
    })
}

impl Simulation {
    pub fn new(scenario: Scenario, traced: bool) -> Self {
        let clocks = scenario.clocks.map(|seconds| SignedDuration::from_secs(i64::from(seconds)));
        let of_server = Clocks { server: clocks[2], nodes: clocks[3] };
        let mut server = Server::new("2026-01-01T00:00:00.25Z".parse().unwrap(), of_server);
        server.registers_taint = scenario.spec["onSuccess"].is_object();
        server.create_job(&scenario.spec);
        for node in 0..scenario.nodes {
            server.create_node(&format!("n{node}"));
        }
        let managers = [0, 1].map(|manager| Manager::start(&server, clocks[manager]));
        let nodes = scenario.nodes;
        let trace = traced.then(String::new);
        Self {
            scenario,
            server,
            managers,
            leader: 0,
            late: Vec::new(),
            truth: Truth::default(),
            marked: Marked::default(),
            memory: Memory::default(),
            view: None,
            nodes,
            trace,
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{} r{:<3} {}", self.server.now, self.server.revision, what());
        }
    }

    fn job(&self) -> Option<&DaemonJob> {
        self.server.job().map(|stored| &*stored.seen)
    }

    /// Runs the events, stops the faults, and checks that the DaemonJob rests.
    pub fn run(&mut self, ops: &[Op]) -> Judgement {
        for op in ops {
            self.note(|| format!("{op:?}"));
            self.apply(*op)?;
            self.truth.one_pod_a_node(&self.server)?;
        }
        self.stop_faults()?;
        if !self.scenario.cut_short {
            if self.scenario.is_lifted {
                self.end_holds();
            }
            self.settle()?;
            // One hold may hide another, and a retry goes through the waves again.
            for _ in 0..6 {
                if !self.has_ended() {
                    self.is_held_by_the_user()?;
                    self.end_holds();
                    self.settle()?;
                }
            }
            if !self.has_ended() {
                let status = self.job().and_then(|job| job.status.clone());
                return Err(format!("live: neither held nor Complete nor Failed: {status:?}"));
            }
        }
        self.note(|| "the DaemonJob is deleted".to_owned());
        self.server.delete_job(self.scenario.foreground);
        self.vanish()
    }

    pub fn start(&mut self, pod: &str) -> Judgement {
        let seen = self.server.pods.objects[pod].seen.clone();
        if let Some(stored) = self.server.job() {
            self.truth.starts(&self.server, &stored.seen, &seen)?;
        }
        self.server.start(pod);
        Ok(())
    }

    pub fn finish(&mut self, pod: &str, well: bool) {
        let seen = self.server.pods.objects[pod].seen.clone();
        self.server.finish(pod, well);
        if well {
            self.truth.succeeded(&self.server, &seen);
        }
    }

    // ---- the managers ----

    pub fn begin(&mut self, lags: [Lag; 4], stopping: bool) -> Judgement {
        self.view = None;
        let leader = &mut self.managers[self.leader];
        let Some(pass) = leader.begin(&self.server, lags, stopping, plan) else {
            return Ok(());
        };
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{}", described(pass));
        }
        let seen = leader.seen_until(&self.server);
        let Some(pass) = &leader.pass else { return Ok(()) };
        let view = self.view.insert(View::of(&self.server, &mut self.truth, &mut self.memory, pass, seen));
        // With stale caches a status may be wrong, so only the graver invariants are checked.
        let has_old_caches = self.scenario.stale != (false, false);
        if let Some(status) = pass.plan.status.as_ref().filter(|_| !has_old_caches) {
            status_is_true(view, pass, status)?;
            view.outcome_is_true(pass, status)?;
            view.marks_are_due(pass)?;
            view.is_marked(pass, status)?;
        }
        has_the_time_of_the_next_change(pass)
    }

    pub fn pass(&mut self, writes: u8, any: u8, lags: [Lag; 4]) -> Judgement {
        if self.managers[self.leader].pass.is_none() {
            self.begin(lags, false)?;
        }
        for _ in 0..writes {
            match self.managers[self.leader].next(self.server.now, usize::from(any)) {
                Next::Write(action) => self.write(&action)?,
                Next::Status(status) => self.write_status(&status)?,
                Next::Over => break,
            }
        }
        Ok(())
    }

    pub fn finish_pass(&mut self, any: u8) -> Judgement {
        if self.managers[self.leader].pass.is_some() { self.pass(u8::MAX, any, [0; 4]) } else { Ok(()) }
    }

    fn write(&mut self, action: &Action<DaemonJobStatus>) -> Judgement {
        let answer = self.commit(action, Maker::Leader)?;
        let leader = &mut self.managers[self.leader];
        match answer {
            Answer::Done(revision) => leader.wrote(action, revision, self.server.now),
            Answer::News => leader.met_news(action, None),
            Answer::Exists { revision, owner } if owner == self.server.job_uid() => {
                leader.met_news(action, Some(revision));
            }
            Answer::Exists { .. } => leader.was_refused(action, "NameTaken", self.server.now),
            Answer::Refused => leader.was_refused(action, "Forbidden", self.server.now),
        }
        Ok(())
    }

    fn write_status(&mut self, status: &DaemonJobStatus) -> Judgement {
        let Some(job) = self.managers[self.leader].pass.as_ref().map(|pass| pass.job.clone()) else {
            return Ok(());
        };
        let answer = self.server.write_status(&job, status);
        self.note(|| format!("    status -> {answer:?}"));
        let leader = &mut self.managers[self.leader];
        let Answer::Done(revision) = answer else {
            leader.fail(self.server.now);
            return Ok(());
        };
        leader.wrote_status(revision, self.server.now);
        if due_time(job.status.as_ref()) != due_time(Some(status)) {
            self.truth.rollout_changed();
        }
        rollout_is_consistent(&job, status)?;
        waves_are_approved(&job, status)?;
        if let Some(pass) = &leader.pass {
            due_times::are_in_order(pass, status)?;
        }
        let view = self.view.as_ref().filter(|_| leader.pass.is_some());
        view.map_or(Ok(()), |view| view.was_written(&self.server, &mut self.memory, &job, status))
    }

    /// The server executes a write, and the invariants about it are checked.
    fn commit(&mut self, action: &Action<DaemonJobStatus>, maker: Maker) -> Result<Answer, String> {
        let name = name_of(action).map(|(_, name)| name.to_owned()).unwrap_or_default();
        let before = self.server.pods.objects.get(&name).map(|pod| pod.seen.clone());
        let released = match (action, &before) {
            (Action::JsonPatch { .. }, Some(pod)) => self.truth.released(&self.server, pod),
            _ => Ok(()),
        };
        let node = self.server.nodes.objects.get(&name).map(|node| node.json.clone());
        let answer = self.server.commit(action);
        self.note(|| format!("    {:?} -> {answer:?}", name_of(action)));
        if matches!(answer, Answer::Done(_)) {
            released?;
        }
        match action {
            Action::JsonPatch { resource, .. } if *resource == NODES => {
                if let (Answer::Done(_), Some(before)) = (&answer, &node) {
                    let after = &self.server.nodes.objects[&name].json;
                    self.marked.accepted(&self.server, before, after)?;
                }
            }
            Action::Create { resource, .. } if *resource == PODS => {
                if let Answer::Done(revision) = answer {
                    let pod = self.server.pods.objects[&name].seen.clone();
                    self.truth.made(&pod, maker, revision);
                    if let (Maker::Leader, Some(view), Some(pass)) =
                        (maker, &mut self.view, &self.managers[self.leader].pass)
                    {
                        view.may_make(&self.server, pass, &pod)?;
                    }
                }
                self.truth.one_pod_a_node(&self.server)?;
            }
            Action::Create { resource, .. } | Action::MergePatch { resource, .. }
                if *resource == CONFIG_MAPS =>
            {
                self.truth.ledger_written(&self.server);
                if maker == Maker::Late
                    && let Some(number) =
                        self.server.shards.objects.get(&name).and_then(|shard| shard.seen.number(JOB))
                {
                    self.truth.shard_made_late(number);
                }
            }
            _ => {}
        }
        Ok(answer)
    }

    pub fn no_answer(&mut self, done: bool, rest: bool) -> Judgement {
        if self.managers[self.leader].pass.is_none() {
            self.begin([0; 4], false)?;
        }
        let now = self.server.now;
        match self.managers[self.leader].next(now, 0) {
            Next::Write(action) => {
                let others = self.managers[self.leader].in_flight();
                self.managers[self.leader].got_no_answer(Some(&action));
                if done {
                    self.commit(&action, Maker::Leader)?;
                }
                for other in others.iter().filter(|_| rest) {
                    self.write(other)?;
                }
                self.managers[self.leader].fail(now);
            }
            Next::Status(status) => {
                self.managers[self.leader].got_no_answer(None);
                if done {
                    self.write_status(&status)?;
                }
                self.managers[self.leader].fail(now);
            }
            Next::Over => {}
        }
        Ok(())
    }

    pub fn restart(&mut self) {
        self.truth.leader_gone(&self.server);
        let leader = &mut self.managers[self.leader];
        *leader = Manager::start(&self.server, leader.offset());
        (self.view, self.memory) = (None, std::mem::take(&mut self.memory).restarted());
    }

    pub fn take_over(&mut self, pods: Lag, nodes: Lag, late: u8) {
        self.truth.leader_gone(&self.server);
        let deposed = &mut self.managers[self.leader];
        if deposed.pass.is_some() {
            let job = deposed.pass.as_ref().map(|pass| pass.job.clone());
            let mut flying = Vec::new();
            match deposed.next(self.server.now, 0) {
                Next::Write(action) => {
                    flying.push(action);
                    flying.extend(deposed.in_flight());
                }
                Next::Status(status) => {
                    deposed.got_no_answer(None);
                    if let Some(job) = job.filter(|_| late & 1 == 1) {
                        self.late.push(Late::Status(job, Box::new(status)));
                    }
                }
                Next::Over => {}
            }
            for (at, action) in flying.into_iter().enumerate().take(3) {
                deposed.got_no_answer(Some(&action));
                if late >> at & 1 == 1 {
                    self.late.push(Late::Write(Box::new(action)));
                }
            }
            deposed.fail(self.server.now);
        }
        self.leader = 1 - self.leader;
        (self.view, self.memory) = (None, std::mem::take(&mut self.memory).restarted());
        self.managers[self.leader].take_over(&self.server, pods, nodes);
    }

    pub fn do_late(&mut self, by: u8) -> Judgement {
        if self.late.is_empty() {
            return Ok(());
        }
        match self.late.remove(usize::from(by) % self.late.len()) {
            Late::Write(action) => {
                self.commit(&action, Maker::Late)?;
            }
            Late::Status(job, status) => {
                self.server.write_status(&job, &status);
            }
        }
        Ok(())
    }

    // ---- afterwards ----

    pub fn all_goes_well(&mut self) -> Result<bool, String> {
        let before = self.server.revision;
        for pod in self.server.unbound() {
            self.server.schedule(&pod, false);
        }
        for pod in self.server.killable() {
            self.server.kill(&pod);
        }
        for pod in self.server.orphaned() {
            self.server.collect_pod(&pod);
        }
        for pod in self.server.running() {
            self.finish(&pod, true);
        }
        for pod in self.server.startable() {
            self.start(&pod)?;
        }
        Ok(self.server.revision != before)
    }

    /// The faults stop, and every node is Ready and neither tainted nor cordoned. Without its schedule, the DaemonJob
    /// rests when its nodes are done.
    fn stop_faults(&mut self) -> Judgement {
        self.note(|| "the faults stop".to_owned());
        if self.job().is_some_and(|job| job.spec.schedule.is_some()) {
            self.apply(Op::Spec(SpecOp::Schedule(None)))?;
        }
        while !self.late.is_empty() {
            self.do_late(0)?;
        }
        (self.server.refuse_pods, self.server.refuse_ledger, self.server.refuse_marks) = (0, 0, 0);
        self.server.heal_nodes();
        Ok(())
    }

    /// The user ends every hold.
    fn end_holds(&mut self) {
        self.note(|| "the user ends the holds".to_owned());
        let held = self.condition("Paused");
        let is_braked = held.as_deref() == Some("MaxFailedNodesExceeded");
        let has_failed = held.as_deref() == Some("WaveFailed");
        let remedy = self.scenario.remedy % 3;
        let number = self.rollout();
        self.server.annotate_job(PAUSED_ANNOTATION, None);
        self.approve(Some(9));
        self.server.edit_spec(|spec| {
            if has_failed {
                spec["retryToken"] = json!(format!("after rollout {number}"));
            }
            (spec["suspend"], spec["paused"]) = (json!(false), json!(false));
            if remedy == 0 && !spec["failurePolicy"].is_null() {
                spec["failurePolicy"]["type"] = json!("Continue");
            }
            if is_braked && remedy == 1 {
                spec["retryToken"] = json!("the cause is fixed");
            } else if is_braked {
                spec["failurePolicy"]["maxFailedNodes"] = json!(1_000);
            }
        });
        self.truth.rollout_changed();
    }

    /// The number of the rollout in the status.
    fn rollout(&self) -> u64 {
        rollout_number(self.job().and_then(|job| job.status.as_ref())).unwrap_or_default()
    }

    /// A user approves a wave of the current rollout, or removes the approval.
    pub fn approve(&mut self, wave: Option<u8>) {
        let approval = wave.map(|wave| format!("{}/{wave}", self.rollout()));
        self.server.annotate_job(APPROVED_ANNOTATION, approval.as_deref());
    }

    /// The reason of a condition that is True.
    fn condition(&self, type_: &str) -> Option<String> {
        let status = self.job()?.status.as_ref()?;
        let found = status.conditions.iter().find(|one| one.type_ == type_ && one.status == "True")?;
        Some(found.reason.clone())
    }

    fn has_ended(&self) -> bool {
        self.condition("Complete").is_some() || self.condition("Failed").is_some()
    }

    /// Live: every hold is one that the user set or can end.
    fn is_held_by_the_user(&self) -> Judgement {
        let Some(job) = self.job() else { return Ok(()) };
        let is_held = match self.condition("Paused").as_deref() {
            Some("Paused") => job.spec.paused == Some(true),
            Some("PausedByAnnotation") => paused(job).is_some(),
            Some("MaxFailedNodesExceeded" | "WaitsForApproval" | "WaveFailed") => true,
            _ => job.spec.suspend == Some(true) && self.condition("Suspended").is_some(),
        };
        let status = job.status.as_ref();
        is_held.then_some(()).ok_or_else(|| format!("live: at rest, but the user set no hold: {status:?}"))
    }

    /// Only the controller's events and times wake the leader, until it has nothing left to do.
    fn settle(&mut self) -> Judgement {
        for _ in 0..MOST_ROUNDS {
            self.finish_pass(0)?;
            let has_moved = self.all_goes_well()?;
            let leader = &mut self.managers[self.leader];
            leader.follow(&self.server, [0; 4]);
            if leader.woken || leader.again.is_some_and(|at| at <= self.server.now) {
                self.begin([0; 4], false)?;
                self.finish_pass(0)?;
                self.server.wait(SignedDuration::from_millis(100));
            } else if !has_moved {
                match leader.again {
                    Some(at) => {
                        self.note(|| format!("nothing until {at}"));
                        self.server.now = at;
                    }
                    None => return self.is_quiet(),
                }
            }
        }
        Err(format!("live: no rest after {MOST_ROUNDS} rounds"))
    }

    fn is_quiet(&mut self) -> Judgement {
        let status = self.job().and_then(|job| job.status.clone()).unwrap_or_default();
        if self.condition("Failed").as_deref() == Some("NodesFailed") && status.failed == Some(0) {
            return Err("live: Failed without a failed node".to_owned());
        }
        for later in [SignedDuration::ZERO, SignedDuration::from_hours(24)] {
            self.server.wait(later);
            self.begin([0; 4], false)?;
            let pass = self.managers[self.leader].pass.as_ref().unwrap();
            if pass.plan.has_actions() || pass.plan.status != pass.job.status {
                return Err(format!("quiet: after {later} the plan is not empty: {}", described(pass)));
            }
            self.finish_pass(0)?;
        }
        Ok(())
    }

    /// After the deletion of the DaemonJob, the garbage collector and the sweeper remove its pods.
    fn vanish(&mut self) -> Judgement {
        for _ in 0..MOST_ROUNDS {
            self.finish_pass(0)?;
            self.server.collect_garbage();
            self.all_goes_well()?;
            let leader = &mut self.managers[self.leader];
            leader.follow(&self.server, [0; 4]);
            if leader.woken {
                self.begin([0; 4], false)?;
                self.finish_pass(0)?;
            }
            self.sweep();
            if self.server.pods.objects.is_empty() && self.server.job().is_none() {
                return Ok(());
            }
        }
        Err("deletion: pods remain".to_owned())
    }

    /// The sweeper, for its pods.
    fn sweep(&mut self) {
        let owner_state = match self.job() {
            Some(job) if job.metadata.deletion_timestamp.is_none() => OwnerState::Served,
            _ => OwnerState::Unowned,
        };
        let pods: Vec<_> = self.managers[self.leader].pods.objects.values().cloned().collect();
        for pod in pods.iter().filter(|pod| pod.meta.deleted.is_some() && !pod.meta.finalizers.is_empty()) {
            let plan: Plan<()> = sweep::plan(pod, owner_state, self.server.now);
            for action in plan.steps.into_iter().flatten() {
                let Action::JsonPatch { resource, namespace, name, operations } = action else {
                    panic!("{action:?}")
                };
                self.server.commit(&Action::JsonPatch { resource, namespace, name, operations });
            }
        }
    }
}

/// The number of the rollout rises when the template, the due time or retryToken changes, and only then.
fn rollout_is_consistent(job: &DaemonJob, status: &DaemonJobStatus) -> Judgement {
    let before = job.status.as_ref();
    let (Some(old), Some(new)) = (before.and_then(|before| before.rollout.as_ref()), status.rollout.as_ref())
    else {
        return Ok(());
    };
    let is_other = before.is_some_and(|before| before.template_hash != status.template_hash)
        || new.due_time.is_some() && new.due_time != old.due_time
        || old.retry_token != new.retry_token;
    let is_rising =
        if is_other { new.number > old.number } else { new.number == old.number && new.base >= old.base };
    let is_next_run = status.run >= before.and_then(|before| before.run);
    (is_rising && is_next_run).then_some(()).ok_or_else(|| format!("status: {new:?} follows {old:?}"))
}

/// A wave that needs approval is over only with an approval of the same rollout.
fn waves_are_approved(job: &DaemonJob, status: &DaemonJobStatus) -> Judgement {
    let approval = job.spec.rollout.as_ref().and_then(|rollout| rollout.approval).unwrap_or_default();
    let before = job.status.as_ref().and_then(|before| before.rollout.as_ref());
    let (Some(old), Some(new)) = (before, status.rollout.as_ref()) else { return Ok(()) };
    let (Some(from), Some(to)) = (old.wave, new.wave) else { return Ok(()) };
    let needs_approval = |wave: &i32| match approval {
        Approval::None => false,
        Approval::FirstWave => *wave == 1,
        Approval::EveryWave => true,
    };
    let Some(last) = (from..to).filter(needs_approval).max().filter(|_| old.number == new.number) else {
        return Ok(());
    };
    let annotations = job.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(APPROVED_ANNOTATION)).map_or("", String::as_str);
    let wave = text.split_once('/').filter(|(number, _)| *number == new.number.to_string());
    let approved: i32 = wave.and_then(|(_, wave)| wave.parse().ok()).unwrap_or_default();
    if approved >= last { Ok(()) } else { Err(format!("waves: wave {last} is over, approved is {text:?}")) }
}

/// A plan without writes has the time of the next change.
fn has_the_time_of_the_next_change(pass: &Pass) -> Judgement {
    let Pass { job, world, now, plan: made, .. } = pass;
    if !made.has_actions() && made.status == job.status && !world.stopping {
        let until = made.again.unwrap_or(Timestamp::MAX);
        let later = now.checked_add(SignedDuration::from_hours(24)).unwrap().min(until);
        let between = now.checked_add(later.duration_since(*now) / 2).unwrap();
        let then = plan(job, world, between);
        if then.has_actions() || then.status != made.status {
            let then = then.status.map(|status| serde_json::to_string(&status).unwrap());
            return Err(format!("again: nothing should change before {until}, but at {between}: {then:?}"));
        }
    }
    Ok(())
}

fn described(pass: &Pass) -> String {
    let mut text = String::from("  plan: pods");
    for pod in &pass.world.pods {
        let going = if pod.meta.deleted.is_some() { " going" } else { "" };
        let _ = write!(
            text,
            " [{} on {:?} {:?}{going}]",
            pod.meta.name,
            pod.node.as_deref().unwrap_or("-"),
            pod.phase
        );
    }
    for shard in pass.world.shards() {
        for (uid, line) in &shard.entries {
            let _ = write!(text, "\n    ledger {} {uid}: {}", shard.meta.name, line.as_ref().unwrap());
        }
    }
    for (at, step) in pass.plan.steps.iter().chain([&pass.plan.background]).enumerate() {
        for action in step {
            let _ = write!(text, "\n    step {at}: {:?}", name_of(action));
        }
    }
    if let Some(status) = pass.plan.status.as_ref().filter(|status| pass.job.status.as_ref() != Some(status))
    {
        let _ = write!(text, "\n    status {}", serde_json::to_string(status).unwrap());
    }
    let _ = write!(text, "\n    again {:?}", pass.plan.again);
    text
}
