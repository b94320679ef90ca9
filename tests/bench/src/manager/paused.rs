//! Leaders that are stopped for longer than their Lease, and wake when another process holds it: what they write then. Many
//! pairs of candidates, each with a Lease and a namespace of its own, go through it at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use quintet_localcluster::audit::Request;
use quintet_localcluster::{interrupt, run};
use serde_json::json;

use super::contender::{Contender, Follower, Stand};
use super::figures::Results;
use super::measures::Pair;
use super::objects::{pod_set, pod_sets};
use super::sizes::Sizes;
use crate::client::Patch;
use crate::peer::{LIMIT, Running};
use crate::rig::LOOK;
use crate::scrape;
use crate::stats::float;

/// A PodSet whose pods are being made or deleted when its manager is stopped, and how many it has.
const BUSY: (&str, usize) = ("busy", 10);

/// The one that is changed while no manager runs: what a leader that wakes finds to do.
const MEANWHILE: (&str, usize) = ("meanwhile", 5);

/// Between two leaders that are stopped, and so between the moments after a change in which they are.
const APART: Duration = Duration::from_millis(5);

/// At so many different moments.
const MOMENTS: usize = 20;

/// How long what was sent before a process was stopped is on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// How long a manager does what there is to do.
const BUSINESS: Duration = Duration::from_secs(2);

/// Writes of leaders that were stopped in the middle of their work and have woken, in how many tries.
pub fn paused(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    stand.allow_every_lease()?;
    pair.each(stand.rig, "leaders that were stopped", |contender| {
        let rounds = sizes.pauses.div_ceil(sizes.lanes);
        // One that writes does so within a few tries.
        let rounds = if contender == Contender::Quintet { rounds } else { rounds.div_ceil(5) };
        let lanes = (0..sizes.lanes).map(|_| Lane::start(stand, contender));
        let mut lanes = lanes.collect::<Result<Vec<_>>>()?;
        let (mut writes, mut unclean) = (0, 0);
        for round in 0..rounds {
            let late = late_writes(stand, contender, &mut lanes, round)?;
            writes += late.len();
            unclean += late.iter().collect::<BTreeSet<_>>().len();
        }
        results.one(contender, pair.number, "tries", float(rounds * lanes.len()));
        results.one(contender, pair.number, "writes", float(writes));
        results.one(contender, pair.number, "unclean", float(unclean));
        lanes.into_iter().try_for_each(Lane::stop)
    })
}

/// Stops every leader while it works, wakes it when another one leads and something was changed, and says in which namespaces
/// something was written then: one for each write.
fn late_writes(
    stand: &Stand<'_>,
    contender: Contender,
    lanes: &mut [Lane],
    round: usize,
) -> Result<Vec<String>> {
    let rig = stand.rig;
    let replicas = |most| if round.is_multiple_of(2) { most } else { 0 };
    for lane in lanes.iter_mut() {
        lane.find_leader().with_context(|| lane.namespace.clone())?;
    }
    for (number, lane) in lanes.iter_mut().enumerate() {
        lane.scale(stand, BUSY.0, replicas(BUSY.1))?;
        interrupt::pause(APART * u32::try_from((number + round) % MOMENTS)?)?;
        lane.stop_leader()?;
    }
    run::poll("every Lease was taken", LIMIT, LOOK, || Ok(lanes.iter().all(Lane::is_taken).then_some(())))?;
    interrupt::pause(BUSINESS)?;
    // Whoever writes from now on until they go on is a leader that was stopped.
    for lane in lanes.iter() {
        lane.standby.pause();
    }
    interrupt::pause(ON_ITS_WAY)?;
    for lane in lanes.iter() {
        lane.scale(stand, MEANWHILE.0, replicas(MEANWHILE.1))?;
    }
    rig.forget_requests()?;
    let woke = Timestamp::now();
    for lane in lanes.iter() {
        lane.leader.wake();
    }
    for lane in lanes.iter_mut() {
        run::poll("a leader that was stopped knows that it was replaced", LIMIT, LOOK, || {
            Ok(lane.leader_knows()?.then_some(()))
        })?;
    }
    interrupt::pause(BUSINESS)?;
    let is_late = |request: &Request| {
        let theirs = request.author == contender.author() && request.resource != "leases";
        theirs && request.is_write() && request.received >= woke
    };
    let requests = rig.requests_so_far()?.into_iter();
    let late = requests.filter(is_late).map(|request| request.namespace).collect();
    for lane in lanes.iter() {
        lane.standby.wake();
    }
    for lane in lanes.iter_mut() {
        lane.start_again(stand)?;
    }
    interrupt::pause(BUSINESS)?;
    Ok(late)
}

/// Two candidates for one Lease, and the namespace that they serve.
struct Lane {
    contender: Contender,
    namespace: String,
    follower: Follower,
    leader: Running,
    standby: Running,
    /// Who held the Lease when the leader was stopped, and when that was.
    stopped: (String, Timestamp),
    started: usize,
}

impl Lane {
    fn start(stand: &Stand<'_>, contender: Contender) -> Result<Self> {
        let namespace = stand.rig.namespace()?;
        for (name, _) in [BUSY, MEANWHILE] {
            stand.rig.create(&pod_sets(&namespace), &pod_set(name, 0))?;
        }
        let follower = stand.follow(contender, &namespace).context("it competes for no Lease")?;
        let leader = stand.start_in(contender, "1", &namespace)?.once_ready()?;
        let holder = follower.wait_for_holder()?;
        let standby = stand.start_in(contender, "2", &namespace)?.once_ready()?;
        let stopped = (holder, Timestamp::now());
        Ok(Self { contender, namespace, follower, leader, standby, stopped, started: 2 })
    }

    fn scale(&self, stand: &Stand<'_>, name: &str, replicas: usize) -> Result<()> {
        let path = format!("{}/{name}", pod_sets(&self.namespace));
        stand.rig.patch(&path, Patch::Merge, &json!({"spec": {"replicas": replicas}})).map(drop)
    }

    fn stop_leader(&mut self) -> Result<()> {
        self.stopped = (self.follower.wait_for_holder()?, Timestamp::now());
        self.leader.pause();
        Ok(())
    }

    /// Whether the standby has taken the Lease since the leader was stopped.
    fn is_taken(&self) -> bool {
        let (holder, at) = &self.stopped;
        self.follower.taken(*at, holder).is_some()
    }

    /// Whether the leader has ended, or says that it does not lead.
    fn leader_knows(&mut self) -> Result<bool> {
        Ok(self.leader.has_ended()? || leads(&self.leader) == Some(false))
    }

    /// Waits until one of them says that it leads: mostly the one that did so before.
    fn find_leader(&mut self) -> Result<()> {
        run::poll("one of two candidates leads", LIMIT, LOOK, || {
            if leads(&self.leader) == Some(true) {
                return Ok(Some(()));
            }
            std::mem::swap(&mut self.leader, &mut self.standby);
            Ok(None)
        })
    }

    /// Whoever has ended is started again.
    fn start_again(&mut self, stand: &Stand<'_>) -> Result<()> {
        for process in [&mut self.leader, &mut self.standby] {
            if process.has_ended()? {
                self.started += 1;
                *process = stand
                    .start_in(self.contender, &self.started.to_string(), &self.namespace)?
                    .once_ready()?;
            }
        }
        Ok(())
    }

    fn stop(self) -> Result<()> {
        self.standby.stop()?;
        self.leader.stop()
    }
}

/// What a process says of itself; nothing where it does not answer, as one that is about to end.
fn leads(process: &Running) -> Option<bool> {
    Some(scrape::sum(&process.metrics().ok()?, "leader_election_master_status", &[]) > 0.0)
}
