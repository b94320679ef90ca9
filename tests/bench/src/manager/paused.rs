//! Counts the writes of leaders that were paused for longer than their Lease and resume when another process
//! holds it. Many pairs of candidates, each with its own Lease and namespace, run at the same time.

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

/// The PodSet whose pods are being created or deleted when the leader is paused, and its number of pods.
const BUSY: (&str, usize) = ("busy", 10);

/// The PodSet that is scaled while both managers are paused: the work that a resumed leader finds.
const MEANWHILE: (&str, usize) = ("meanwhile", 5);

/// The step between the moments after a change at which leaders are paused.
const APART: Duration = Duration::from_millis(5);

/// The number of these moments.
const MOMENTS: usize = 20;

/// The time in which requests from before a pause arrive.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// The time in which a manager does its work.
const BUSINESS: Duration = Duration::from_secs(2);

/// Counts writes of leaders that resumed, the attempts, and the attempts with such a write.
pub fn paused(stand: &Stand<'_>, sizes: &Sizes, pair: Pair<'_>, results: &mut Results) -> Result<()> {
    stand.allow_every_lease()?;
    pair.each(stand.rig, "paused leaders", |contender| {
        let rounds = sizes.pauses.div_ceil(sizes.lanes);
        // The controller-runtime manager writes within a few attempts.
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

/// Pauses every leader while it works, and resumes it when another one leads and a PodSet was scaled. Returns
/// the namespace of each write after that.
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
    // Until the standbys resume, every write is one of a leader that was paused.
    for lane in lanes.iter() {
        lane.standby.pause();
    }
    interrupt::pause(ON_ITS_WAY)?;
    for lane in lanes.iter() {
        lane.scale(stand, MEANWHILE.0, replicas(MEANWHILE.1))?;
    }
    rig.forget_requests()?;
    let resumed = Timestamp::now();
    for lane in lanes.iter() {
        lane.leader.wake();
    }
    for lane in lanes.iter_mut() {
        run::poll("a resumed leader knows that it was replaced", LIMIT, LOOK, || {
            Ok(lane.leader_knows()?.then_some(()))
        })?;
    }
    interrupt::pause(BUSINESS)?;
    let is_late = |request: &Request| {
        let theirs = request.author == contender.author() && request.resource != "leases";
        theirs && request.is_write() && request.received >= resumed
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
    /// The Lease's holder when the leader was paused, and the time of the pause.
    stopped: (String, Timestamp),
    started: usize,
}

impl Lane {
    fn start(stand: &Stand<'_>, contender: Contender) -> Result<Self> {
        let namespace = stand.rig.namespace()?;
        for (name, _) in [BUSY, MEANWHILE] {
            stand.rig.create(&pod_sets(&namespace), &pod_set(name, 0))?;
        }
        let follower = stand.follow(contender, &namespace).context("the contender has no Lease")?;
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

    /// Whether the standby has taken the Lease since the pause.
    fn is_taken(&self) -> bool {
        let (holder, at) = &self.stopped;
        self.follower.taken(*at, holder).is_some()
    }

    /// Whether the leader has exited or reports that it does not lead.
    fn leader_knows(&mut self) -> Result<bool> {
        Ok(self.leader.has_ended()? || leads(&self.leader) == Some(false))
    }

    /// Waits until one candidate reports that it leads, mostly the previous leader.
    fn find_leader(&mut self) -> Result<()> {
        run::poll("one of two candidates leads", LIMIT, LOOK, || {
            if leads(&self.leader) == Some(true) {
                return Ok(Some(()));
            }
            std::mem::swap(&mut self.leader, &mut self.standby);
            Ok(None)
        })
    }

    /// Starts candidates that have exited.
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

/// Whether a process reports that it leads. `None` if it does not answer, for instance because it is exiting.
fn leads(process: &Running) -> Option<bool> {
    Some(scrape::sum(&process.metrics().ok()?, "leader_election_master_status", &[]) > 0.0)
}
