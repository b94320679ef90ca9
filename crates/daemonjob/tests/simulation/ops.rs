//! The events that drive a simulation.

use jiff::SignedDuration;
use quintet_daemonjob::labels::PAUSED_ANNOTATION;
use serde_json::json;

use crate::due_times::SCHEDULES;
use crate::manager::Lag;
use crate::server::JOB;
use crate::simulation::{Simulation, template};
use crate::truth::Judgement;

/// One event. Numbers select among the existing objects.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// The leader plans, unless it executes a plan, and does this number of its writes.
    Pass {
        writes: u8,
        any: u8,
        lags: [Lag; 4],
    },
    /// The leader's next write gets no answer. `done`: the server does it. `rest`: and the rest of its step.
    NoAnswer {
        done: bool,
        rest: bool,
    },
    /// The leader's process dies and restarts.
    Crash,
    /// The leader's process is stopped: it reconciles a last time, exits, and restarts.
    Stop,
    /// The other process takes over, with this lag. The writes in flight that the mask selects come late.
    TakeOver {
        pods: Lag,
        nodes: Lag,
        late: u8,
    },
    /// The server executes a late write of a deposed leader.
    Late(u8),
    RefusePods(u8),
    RefuseLedger(u8),
    RefuseMarks(u8),
    /// Each actor does its work.
    AllGoesWell,
    CollectPods,
    AddNode,
    /// A user approves this wave of the current rollout, or removes the approval.
    Approve(Option<u8>),
    PauseByAnnotation(bool),
    DeleteShard(u8),
    Pod(u8, PodOp),
    Node(u8, NodeOp),
    Spec(SpecOp),
    /// This number of tenths of a second passes.
    Wait(u16),
}

/// An event of a pod.
#[derive(Clone, Copy, Debug)]
pub enum PodOp {
    /// The scheduler handles the pod. True: no pod fits there.
    Schedule(bool),
    Start,
    Reject,
    /// A container ends. True: with success.
    Finish(bool),
    Kill,
    Evict,
    Drain,
    Delete,
}

/// An event of a node.
#[derive(Clone, Copy, Debug)]
pub enum NodeOp {
    Delete,
    BeginToDelete,
    /// True: by the same machine.
    Replace(bool),
    Cordon(bool),
    Taint(u8),
    Quarantine,
    /// An operator taints a node that is not Ready.
    Remediate(u8),
    /// An autoscaler marks the node for deletion.
    Leave(bool),
    /// An administrator takes a node that is not Ready out of service.
    OutOfService,
    /// A user changes the label that the template selects.
    Select(bool),
    Ready(bool),
    Die,
    ShutDown,
    Reboot,
    Reinstall,
}

/// A change of the spec.
#[derive(Clone, Copy, Debug)]
pub enum SpecOp {
    Template(u8),
    RetryToken(Option<u8>),
    /// failurePolicy.type.
    Policy(u8),
    MaxFailed(Option<u8>),
    BackoffLimit(u8),
    Suspend(bool),
    Pause(bool),
    Parallelism(Option<u8>),
    /// The number of a schedule, or no schedule.
    Schedule(Option<u8>),
}

fn choose<T: Clone>(among: &[T], by: u8) -> Option<T> {
    among.get(usize::from(by) % among.len().max(1)).cloned()
}

impl Simulation {
    pub fn apply(&mut self, op: Op) -> Judgement {
        match op {
            Op::Pass { writes, any, lags } => return self.pass(writes, any, lags),
            Op::NoAnswer { done, rest } => return self.no_answer(done, rest),
            Op::Late(by) => return self.do_late(by),
            Op::Pod(by, op) => return self.apply_to_pod(by, op),
            Op::Node(by, op) => self.apply_to_node(by, op),
            Op::Spec(op) => self.apply_to_spec(op),
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
            Op::RefusePods(count) => self.server.refuse_pods = count,
            Op::RefuseLedger(count) => self.server.refuse_ledger = count,
            Op::RefuseMarks(count) => self.server.refuse_marks = count,
            Op::AllGoesWell => {
                self.all_goes_well()?;
            }
            Op::Wait(tenths) => self.server.wait(SignedDuration::from_millis(i64::from(tenths) * 100)),
            Op::CollectPods => {
                for pod in self.server.orphaned() {
                    self.server.collect_pod(&pod);
                }
            }
            Op::AddNode => self.add_node(),
            Op::Approve(wave) => self.approve(wave),
            Op::PauseByAnnotation(is_paused) => {
                self.server.annotate_job(PAUSED_ANNOTATION, is_paused.then_some("incident"));
            }
            Op::DeleteShard(by) => {
                let shards: Vec<String> = self.server.shards.objects.keys().cloned().collect();
                if let Some(shard) = choose(&shards, by) {
                    let number = self.server.shards.objects[&shard].seen.number(JOB).unwrap();
                    self.truth.shard_deleted(number);
                    self.server.delete_shard(&shard);
                }
            }
        }
        Ok(())
    }

    fn add_node(&mut self) {
        if self.server.nodes.objects.len() < 5 {
            let name = format!("n{}", self.nodes);
            self.nodes += 1;
            self.server.create_node(&name);
        }
    }

    fn apply_to_pod(&mut self, by: u8, op: PodOp) -> Judgement {
        let server = &self.server;
        let pods = match op {
            PodOp::Schedule(_) => server.unbound(),
            PodOp::Start | PodOp::Reject => server.startable(),
            PodOp::Finish(_) => server.running(),
            PodOp::Kill => server.killable(),
            PodOp::Evict => server.pods_that(|pod| server.is_kept(pod) && pod.is_running()),
            PodOp::Drain => server.pods_that(|pod| pod.node.is_some() && pod.is_counted()),
            PodOp::Delete => server.pods_that(|pod| pod.meta.deleted.is_none()),
        };
        let Some(pod) = choose(&pods, by) else { return Ok(()) };
        match op {
            PodOp::Schedule(full) => self.server.schedule(&pod, full),
            PodOp::Start => self.start(&pod)?,
            PodOp::Reject => self.server.reject(&pod),
            PodOp::Finish(well) => self.finish(&pod, well),
            PodOp::Kill => self.server.kill(&pod),
            PodOp::Evict => self.server.evict(&pod),
            PodOp::Drain => self.server.drain(&pod),
            PodOp::Delete => {
                self.server.delete_pod(&pod, None);
            }
        }
        Ok(())
    }

    fn apply_to_node(&mut self, by: u8, op: NodeOp) {
        let server = &mut self.server;
        let is_for_dead_nodes = matches!(op, NodeOp::Remediate(_) | NodeOp::OutOfService);
        let nodes = server.nodes.objects.iter().filter(|(_, node)| !is_for_dead_nodes || !node.seen.ready);
        let nodes: Vec<String> = nodes.map(|(name, _)| name.clone()).collect();
        let Some(node) = choose(&nodes, by) else { return };
        let effect = |effect: u8| [None, Some("NoSchedule"), Some("NoExecute")][usize::from(effect) % 3];
        match op {
            NodeOp::Delete => server.delete_node(&node),
            NodeOp::BeginToDelete => server.begin_to_delete_node(&node),
            NodeOp::Replace(same) => server.replace_node(&node, same),
            NodeOp::Cordon(cordoned) => server.cordon(&node, cordoned),
            NodeOp::Taint(by) | NodeOp::Remediate(by) => server.taint(&node, effect(by)),
            NodeOp::Quarantine => server.quarantine(&node),
            NodeOp::Leave(is_marked) => server.mark_for_deletion(&node, is_marked),
            NodeOp::OutOfService => server.take_out_of_service(&node),
            NodeOp::Select(is_selected) => server.select(&node, is_selected),
            NodeOp::Ready(ready) => server.set_ready(&node, ready),
            NodeOp::Die => server.die(&node),
            NodeOp::ShutDown => server.shut_down(&node),
            NodeOp::Reboot => server.reboot(&node),
            NodeOp::Reinstall => server.reinstall(&node),
        }
    }

    fn apply_to_spec(&mut self, op: SpecOp) {
        if matches!(op, SpecOp::Template(_) | SpecOp::RetryToken(_) | SpecOp::Schedule(_)) {
            self.truth.rollout_changed();
        }
        self.server.edit_spec(|spec| match op {
            SpecOp::Template(variant) => {
                let restart = spec["template"]["spec"]["restartPolicy"].as_str().unwrap().to_owned();
                spec["template"] = template(variant, &restart);
            }
            SpecOp::RetryToken(token) => spec["retryToken"] = json!(token.map(|token| token.to_string())),
            SpecOp::Policy(by) => {
                spec["failurePolicy"]["type"] = json!(["Continue", "FailFast", "Pause"][usize::from(by) % 3]);
            }
            SpecOp::MaxFailed(max) if !spec["failurePolicy"].is_null() => {
                spec["failurePolicy"]["maxFailedNodes"] = json!(max);
            }
            SpecOp::MaxFailed(_) => {}
            SpecOp::BackoffLimit(limit) => spec["backoffLimit"] = json!(limit),
            SpecOp::Suspend(suspend) => spec["suspend"] = json!(suspend),
            SpecOp::Pause(paused) => spec["paused"] = json!(paused),
            SpecOp::Parallelism(limit) => spec["parallelism"] = json!(limit),
            SpecOp::Schedule(None) => {
                (spec["schedule"], spec["startingDeadlineSeconds"]) = (json!(null), json!(null));
            }
            // The API server rejects these fields beside a schedule.
            SpecOp::Schedule(_) if !spec["rerunOn"].is_null() => {}
            SpecOp::Schedule(_) if !matches!(spec["rollout"]["approval"].as_str(), None | Some("None")) => {}
            SpecOp::Schedule(Some(by)) => {
                spec["schedule"] = json!(SCHEDULES[usize::from(by) % SCHEDULES.len()].0);
            }
        });
    }
}
