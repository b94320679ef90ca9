//! Two managers, of which one leads, against the server and everyone else: what happens is a list of [`Op`]s.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use quintet_daemonjob::api::{DaemonJob, DaemonJobStatus};
use quintet_daemonjob::plan::plan;
use quintet_daemonjob::survey::parallelism;
use quintet_daemonjob::sweep::{self, Standing};
use quintet_kit::conditions;
use quintet_kit::plan::{Action, Plan};
use quintet_kit::resource::{CONFIG_MAPS, PODS};
use serde_json::{Value, json};

use crate::manager::{Lag, Manager, Next, Pass, name_of};
use crate::server::{Answer, JOB, Server};
use crate::truth::{Judgement, Maker, Truth, status_is_true};

/// Passes that may be needed until everything is done once nothing goes wrong any more.
const MOST_ROUNDS: usize = 400;

/// One thing that happens. Numbers choose among what is there.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// The leader makes a plan, if it is not carrying one out, and does so many of its writes.
    Pass {
        writes: u8,
        any: u8,
        lags: [Lag; 4],
    },
    /// The leader's next write gets no answer; whether it was done, and the rest of its step with it.
    NoAnswer {
        done: bool,
        rest: bool,
    },
    /// The leader's process dies and starts again.
    Crash,
    /// The leader's process is asked to end: it makes a last pass, ends, and starts again.
    Stop,
    /// The other process takes over, its caches of pods and nodes as far behind as said. Of the writes that were in
    /// flight those in the mask come late.
    TakeOver {
        pods: Lag,
        nodes: Lag,
        late: u8,
    },
    /// A write of a deposed leader is done.
    Late(u8),
    RefusePods(u8),
    RefuseLedger(u8),
    /// Everyone does what is to be done at once.
    AllGoesWell,
    Schedule(u8, bool),
    Start(u8),
    Reject(u8),
    Finish(u8, bool),
    Kill(u8),
    Evict(u8),
    Drain(u8),
    DeletePod(u8),
    CollectPods,
    AddNode,
    DeleteNode(u8),
    ReplaceNode(u8, bool),
    Cordon(u8, bool),
    Taint(u8, u8),
    Ready(u8, bool),
    Reboot(u8),
    Template(u8),
    Suspend(bool),
    Pause(bool),
    Parallelism(Option<u8>),
    DeleteShard(u8),
    /// So many tenths of a second pass.
    Wait(u16),
}

/// What a person wants, and where.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub nodes: usize,
    pub spec: Value,
    /// Whether the DaemonJob is deleted as soon as the chaos stops, before it could settle.
    pub cut_short: bool,
    /// Whether it is deleted with foreground propagation.
    pub foreground: bool,
    /// Whether the caches of pods and of nodes may be behind when a process takes over.
    pub stale: (bool, bool),
}

/// A write of a deposed leader that is still under way.
enum Late {
    Write(Box<Action<DaemonJobStatus>>),
    Status(String, Box<DaemonJobStatus>),
}

pub struct Simulation {
    scenario: Scenario,
    server: Server,
    managers: [Manager; 2],
    leader: usize,
    reign: u32,
    late: Vec<Late>,
    truth: Truth,
    nodes: usize,
    /// What happened, for a person; None where nobody asked.
    pub trace: Option<String>,
}

/// The template's variants.
pub fn template(variant: u8, restart: &str) -> Value {
    json!({
        "metadata": {"annotations": {"variant": variant.to_string()}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "i"}]},
    })
}

fn choose<T: Clone>(among: &[T], by: u8) -> Option<T> {
    among.get(usize::from(by) % among.len().max(1)).cloned()
}

impl Simulation {
    pub fn new(scenario: Scenario, traced: bool) -> Self {
        let mut server = Server::new("2026-01-01T00:00:00.25Z".parse().unwrap());
        server.create_job(&scenario.spec);
        for node in 0..scenario.nodes {
            server.create_node(&format!("n{node}"));
        }
        let managers = [Manager::start(&server), Manager::start(&server)];
        let nodes = scenario.nodes;
        let trace = traced.then(String::new);
        Self {
            scenario,
            server,
            managers,
            leader: 0,
            reign: 0,
            late: Vec::new(),
            truth: Truth::default(),
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

    /// Everything that was to happen happens; then nothing goes wrong any more, and all must come to its end.
    pub fn run(&mut self, ops: &[Op]) -> Judgement {
        for op in ops {
            self.note(|| format!("{op:?}"));
            self.apply(*op)?;
            self.truth.one_pod_a_node(&self.server)?;
        }
        self.heal()?;
        if !self.scenario.cut_short {
            self.settle()?;
        }
        self.note(|| "the DaemonJob is deleted".to_owned());
        self.server.delete_job(self.scenario.foreground);
        self.vanish()
    }

    fn apply(&mut self, op: Op) -> Judgement {
        let nodes: Vec<String> = self.server.nodes.objects.keys().cloned().collect();
        match op {
            Op::Pass { writes, any, lags } => return self.pass(writes, any, lags),
            Op::NoAnswer { done, rest } => return self.no_answer(done, rest),
            Op::Crash => self.restart(),
            Op::Stop => {
                self.finish_pass(0)?;
                self.begin([0; 4], true)?;
                self.finish_pass(0)?;
                self.restart();
            }
            Op::TakeOver { pods, nodes, late } => {
                let (pods_too, nodes_too) = self.scenario.stale;
                self.take_over(if pods_too { pods } else { 0 }, if nodes_too { nodes } else { 0 }, late);
            }
            Op::Late(by) => return self.do_late(by),
            Op::RefusePods(count) => self.server.refuse_pods = count,
            Op::RefuseLedger(count) => self.server.refuse_ledger = count,
            Op::AllGoesWell => {
                self.all_goes_well()?;
            }
            Op::Schedule(by, full) => {
                if let Some(pod) = choose(&self.server.unbound(), by) {
                    self.server.schedule(&pod, full);
                }
            }
            Op::Start(by) => {
                if let Some(pod) = choose(&self.server.startable(), by) {
                    self.start(&pod)?;
                }
            }
            Op::Reject(by) => {
                if let Some(pod) = choose(&self.server.startable(), by) {
                    self.server.reject(&pod);
                }
            }
            Op::Finish(by, well) => {
                if let Some(pod) = choose(&self.server.running(), by) {
                    self.finish(&pod, well);
                }
            }
            Op::Kill(by) => {
                if let Some(pod) = choose(&self.server.killable(), by) {
                    self.server.kill(&pod);
                }
            }
            Op::Evict(by) => {
                let bound = self.server.pods_that(|pod| self.server.is_kept(pod) && pod.is_running());
                if let Some(pod) = choose(&bound, by) {
                    self.server.evict(&pod);
                }
            }
            Op::Drain(by) => {
                if let Some(pod) =
                    choose(&self.server.pods_that(|pod| pod.node.is_some() && pod.is_counted()), by)
                {
                    self.server.drain(&pod);
                }
            }
            Op::DeletePod(by) => {
                if let Some(pod) = choose(&self.server.pods_that(|pod| pod.meta.deleted.is_none()), by) {
                    self.server.delete_pod(&pod, None);
                }
            }
            Op::CollectPods => {
                for pod in self.server.orphaned() {
                    self.server.collect_pod(&pod);
                }
            }
            Op::AddNode => {
                if nodes.len() < 5 {
                    let name = format!("n{}", self.nodes);
                    self.nodes += 1;
                    self.server.create_node(&name);
                }
            }
            Op::DeleteNode(by) => {
                if let Some(node) = choose(&nodes, by) {
                    self.server.delete_node(&node);
                }
            }
            Op::ReplaceNode(by, same) => {
                if let Some(node) = choose(&nodes, by) {
                    self.server.replace_node(&node, same);
                }
            }
            Op::Cordon(by, cordoned) => {
                if let Some(node) = choose(&nodes, by) {
                    self.server.cordon(&node, cordoned);
                }
            }
            Op::Taint(by, effect) => {
                if let Some(node) = choose(&nodes, by) {
                    let effect = [None, Some("NoSchedule"), Some("NoExecute")][usize::from(effect) % 3];
                    self.server.taint(&node, effect);
                }
            }
            Op::Ready(by, ready) => {
                if let Some(node) = choose(&nodes, by) {
                    self.server.set_ready(&node, ready);
                }
            }
            Op::Reboot(by) => {
                if let Some(node) = choose(&nodes, by) {
                    self.server.reboot(&node);
                }
            }
            Op::Template(variant) => {
                self.truth.template_changed();
                self.server.edit_spec(|spec| {
                    let restart = spec["template"]["spec"]["restartPolicy"].as_str().unwrap().to_owned();
                    spec["template"] = template(variant, &restart);
                });
            }
            Op::Suspend(suspend) => self.server.edit_spec(|spec| spec["suspend"] = json!(suspend)),
            Op::Pause(paused) => self.server.edit_spec(|spec| spec["paused"] = json!(paused)),
            Op::Parallelism(limit) => self.server.edit_spec(|spec| spec["parallelism"] = json!(limit)),
            Op::DeleteShard(by) => {
                let shards: Vec<String> = self.server.shards.objects.keys().cloned().collect();
                if let Some(shard) = choose(&shards, by) {
                    let number = self.server.shards.objects[&shard].seen.number(JOB).unwrap();
                    self.truth.shard_deleted(number);
                    self.server.delete_shard(&shard);
                }
            }
            Op::Wait(tenths) => self.server.wait(SignedDuration::from_millis(i64::from(tenths) * 100)),
        }
        Ok(())
    }

    fn start(&mut self, pod: &str) -> Judgement {
        let seen = self.server.pods.objects[pod].seen.clone();
        if let Some(job) = self.job() {
            self.truth.starts(&self.server, job, &seen)?;
        }
        self.server.start(pod);
        Ok(())
    }

    fn finish(&mut self, pod: &str, well: bool) {
        let seen = self.server.pods.objects[pod].seen.clone();
        self.server.finish(pod, well);
        if well {
            self.truth.succeeded(&self.server, &seen);
        }
    }

    // ---- the managers ----

    fn begin(&mut self, lags: [Lag; 4], stopping: bool) -> Judgement {
        let Some(pass) = self.managers[self.leader].begin(&self.server, lags, stopping, plan) else {
            return Ok(());
        };
        let (judgement, told) = (judge(pass), self.trace.is_some().then(|| tell(pass)));
        if let Some(told) = told {
            self.note(|| told);
        }
        judgement
    }

    fn pass(&mut self, writes: u8, any: u8, lags: [Lag; 4]) -> Judgement {
        if self.managers[self.leader].pass.is_none() {
            self.begin(lags, false)?;
        }
        for _ in 0..writes {
            match self.managers[self.leader].next(self.server.now, usize::from(any)) {
                Next::Write(action) => self.write(&action)?,
                Next::Status(status) => self.write_status(&status),
                Next::Over => break,
            }
        }
        Ok(())
    }

    fn finish_pass(&mut self, any: u8) -> Judgement {
        if self.managers[self.leader].pass.is_some() { self.pass(u8::MAX, any, [0; 4]) } else { Ok(()) }
    }

    fn write(&mut self, action: &Action<DaemonJobStatus>) -> Judgement {
        let answer = self.commit(action, Maker::Leader(self.reign))?;
        let leader = &mut self.managers[self.leader];
        match answer {
            Answer::Done(revision) => leader.wrote(action, revision),
            Answer::News => leader.met_news(action, None),
            Answer::Exists { revision, owner } if owner == self.server.job_uid() => {
                leader.met_news(action, Some(revision));
            }
            Answer::Exists { .. } => leader.was_refused(action, "NameTaken", self.server.now),
            Answer::Refused => leader.was_refused(action, "Forbidden", self.server.now),
        }
        Ok(())
    }

    fn write_status(&mut self, status: &DaemonJobStatus) {
        let uid = self.managers[self.leader].pass.as_ref().and_then(|pass| pass.job.metadata.uid.clone());
        match self.server.write_status(&uid.unwrap_or_default(), status) {
            Answer::Done(revision) => self.managers[self.leader].wrote_status(revision, self.server.now),
            _ => self.managers[self.leader].fail(self.server.now),
        }
        self.note(|| "    status".to_owned());
    }

    /// The server does a write, and what must hold is judged.
    fn commit(&mut self, action: &Action<DaemonJobStatus>, maker: Maker) -> Result<Answer, String> {
        let name = name_of(action).map(|(_, name)| name.to_owned()).unwrap_or_default();
        let before = self.server.pods.objects.get(&name).map(|pod| pod.seen.clone());
        if let (Action::Patch { .. }, Some(pod)) = (action, &before) {
            self.truth.released(&self.server, pod)?;
        }
        let answer = self.server.commit(action);
        self.note(|| format!("    {:?} -> {answer:?}", name_of(action)));
        match action {
            Action::Create { resource, .. } if *resource == PODS => {
                if let Answer::Done(revision) = answer {
                    self.truth.made(&self.server.pods.objects[&name].seen.clone(), maker, revision);
                    self.is_within_parallelism(maker)?;
                }
                self.truth.one_pod_a_node(&self.server)?;
            }
            Action::Create { resource, .. } | Action::Merge { resource, .. } if *resource == CONFIG_MAPS => {
                self.truth.ledger_written(&self.server);
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Invariant 4: of the pods that the leader has made no more run than parallelism allows, as it knew it.
    fn is_within_parallelism(&self, maker: Maker) -> Judgement {
        let Maker::Leader(reign) = maker else { return Ok(()) };
        let Some(pass) = &self.managers[self.leader].pass else { return Ok(()) };
        let told = pass.plan.status.as_ref().or(pass.job.status.as_ref()).and_then(|status| status.desired);
        let desired = usize::try_from(told.unwrap_or_default()).unwrap();
        let running = self.truth.running_of(&self.server, reign);
        match parallelism(&pass.job, desired) {
            Some(limit) if running > limit => {
                Err(format!("4: {running} pods run and parallelism is {limit}"))
            }
            _ => Ok(()),
        }
    }

    fn no_answer(&mut self, done: bool, rest: bool) -> Judgement {
        if self.managers[self.leader].pass.is_none() {
            self.begin([0; 4], false)?;
        }
        let now = self.server.now;
        match self.managers[self.leader].next(now, 0) {
            Next::Write(action) => {
                let others = self.managers[self.leader].in_flight();
                self.managers[self.leader].got_no_answer(Some(&action));
                if done {
                    self.commit(&action, Maker::Leader(self.reign))?;
                }
                for other in others.iter().filter(|_| rest) {
                    self.write(other)?;
                }
                self.managers[self.leader].fail(now);
            }
            Next::Status(status) => {
                self.managers[self.leader].got_no_answer(None);
                if done {
                    self.write_status(&status);
                }
                self.managers[self.leader].fail(now);
            }
            Next::Over => {}
        }
        Ok(())
    }

    fn restart(&mut self) {
        self.truth.leader_gone(&self.server);
        self.managers[self.leader] = Manager::start(&self.server);
        self.reign += 1;
    }

    fn take_over(&mut self, pods: Lag, nodes: Lag, late: u8) {
        self.truth.leader_gone(&self.server);
        let deposed = &mut self.managers[self.leader];
        if deposed.pass.is_some() {
            let uid =
                deposed.pass.as_ref().and_then(|pass| pass.job.metadata.uid.clone()).unwrap_or_default();
            let mut flying = Vec::new();
            match deposed.next(self.server.now, 0) {
                Next::Write(action) => {
                    flying.push(action);
                    flying.extend(deposed.in_flight());
                }
                Next::Status(status) => {
                    deposed.got_no_answer(None);
                    if late & 1 == 1 {
                        self.late.push(Late::Status(uid, Box::new(status)));
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
        self.reign += 1;
        self.managers[self.leader].take_over(&self.server, pods, nodes);
    }

    fn do_late(&mut self, by: u8) -> Judgement {
        if self.late.is_empty() {
            return Ok(());
        }
        match self.late.remove(usize::from(by) % self.late.len()) {
            Late::Write(action) => {
                self.commit(&action, Maker::Late)?;
            }
            Late::Status(uid, status) => {
                self.server.write_status(&uid, &status);
            }
        }
        Ok(())
    }

    // ---- afterwards ----

    fn all_goes_well(&mut self) -> Result<bool, String> {
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

    /// Nothing goes wrong any more, and nobody stands in the way.
    fn heal(&mut self) -> Judgement {
        self.note(|| "all is well from now on".to_owned());
        while !self.late.is_empty() {
            self.do_late(0)?;
        }
        (self.server.refuse_pods, self.server.refuse_ledger) = (0, 0);
        for node in self.server.nodes.objects.keys().cloned().collect::<Vec<_>>() {
            self.server.set_ready(&node, true);
            self.server.cordon(&node, false);
        }
        self.server.edit_spec(|spec| {
            (spec["suspend"], spec["paused"]) = (json!(false), json!(false));
            if spec["parallelism"] == json!(0) {
                spec["parallelism"] = json!(1);
            }
            if spec["failurePolicy"]["type"] == json!("Pause") {
                spec["failurePolicy"]["type"] = json!("Continue");
            }
        });
        Ok(())
    }

    /// The leader is woken as the controller wakes it, and by nothing else, until nothing happens any more.
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
        Err(format!("progress: no rest after {MOST_ROUNDS} rounds"))
    }

    fn is_quiet(&mut self) -> Judgement {
        let status = self.job().and_then(|job| job.status.clone()).unwrap_or_default();
        let is = |type_| conditions::is_true(&status.conditions, type_);
        if !is("Complete") && !is("Failed") {
            return Err(format!("progress: at rest and neither Complete nor Failed: {status:?}"));
        }
        let reason = status.conditions.iter().find(|one| one.type_ == "Failed").map(|one| one.reason.clone());
        if is("Failed") && reason.as_deref() == Some("NodesFailed") && status.failed == Some(0) {
            return Err("progress: Failed without a failed node".to_owned());
        }
        for later in [SignedDuration::ZERO, SignedDuration::from_hours(24)] {
            self.server.wait(later);
            self.begin([0; 4], false)?;
            let pass = self.managers[self.leader].pass.as_ref().unwrap();
            if !pass.plan.steps.is_empty() || pass.plan.status != pass.job.status {
                return Err(format!("quiet: after {later} there is something to do: {}", tell(pass)));
            }
            self.finish_pass(0)?;
        }
        Ok(())
    }

    /// The DaemonJob is deleted: its pods go, by the garbage collector and the sweeper.
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
        Err("deletion: pods are left".to_owned())
    }

    /// The sweeper, for the pods that concern it.
    fn sweep(&mut self) {
        let standing = match self.job() {
            Some(job) if job.metadata.deletion_timestamp.is_none() => Standing::Served,
            _ => Standing::Unowned,
        };
        let pods: Vec<_> = self.managers[self.leader].pods.objects.values().cloned().collect();
        for pod in pods.iter().filter(|pod| pod.meta.deleted.is_some() && !pod.meta.finalizers.is_empty()) {
            let plan: Plan<()> = sweep::plan(pod, standing, self.server.now);
            for action in plan.steps.into_iter().flatten() {
                let Action::Patch { resource, namespace, name, operations } = action else {
                    panic!("{action:?}")
                };
                self.server.commit(&Action::Patch { resource, namespace, name, operations });
            }
        }
    }
}

/// Invariant 5, and that a plan that has nothing to do says when it will.
fn judge(pass: &Pass) -> Judgement {
    let Pass { job, world, now, plan: made, .. } = pass;
    if let Some(status) = &made.status {
        status_is_true(job, world, status)?;
    }
    if made.steps.is_empty() && made.status == job.status && !world.stopping {
        let until = made.again.unwrap_or(Timestamp::MAX);
        let later = now.checked_add(SignedDuration::from_hours(24)).unwrap().min(until);
        let between = now.checked_add(later.duration_since(*now) / 2).unwrap();
        let then = plan(job, world, between);
        if !then.steps.is_empty() || then.status != made.status {
            let then = then.status.map(|status| serde_json::to_string(&status).unwrap());
            return Err(format!(
                "again: nothing is said to change before {until}, but at {between}: {then:?}"
            ));
        }
    }
    Ok(())
}

fn tell(pass: &Pass) -> String {
    let mut told = String::from("  plan: pods");
    for pod in &pass.world.pods {
        let going = if pod.meta.deleted.is_some() { " going" } else { "" };
        let _ = write!(
            told,
            " [{} on {:?} {:?}{going}]",
            pod.meta.name,
            pod.node.as_deref().unwrap_or("-"),
            pod.phase
        );
    }
    for shard in pass.world.shards() {
        for (uid, line) in &shard.entries {
            let _ = write!(told, "\n    ledger {} {uid}: {}", shard.meta.name, line.as_ref().unwrap());
        }
    }
    for (at, step) in pass.plan.steps.iter().enumerate() {
        for action in step {
            let _ = write!(told, "\n    step {at}: {:?}", name_of(action));
        }
    }
    if let Some(status) = pass.plan.status.as_ref().filter(|status| pass.job.status.as_ref() != Some(status))
    {
        let _ = write!(told, "\n    status {}", serde_json::to_string(status).unwrap());
    }
    let _ = write!(told, "\n    again {:?}", pass.plan.again);
    told
}
