//! The recovery of a contender after a fault on the way to the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use quintet_localcluster::audit::Request;
use quintet_localcluster::proxy::Proxy;
use quintet_localcluster::{interrupt, run};

use super::contender::{Contender, Stand};
use super::figures::Results;
use super::measures::{Pair, clear, first_creation, settled};
use super::objects::{pod_set, pod_sets};
use super::sizes::Sizes;
use crate::peer::Running;
use crate::stats::float;

/// The time limit of a recovery. kube-runtime closes a watch after 295 s without an event.
const UNNOTICED: Duration = Duration::from_mins(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The proxy closes its connections and accepts none for a while.
    Outage,
    /// The proxy forwards nothing more on open connections, without an error.
    Silence,
}

/// Measures from the return of the API server, or from the silence, until all PodSets that were created
/// during the fault have their pods. A contender that exits is started again without a kubelet's backoff. The
/// pairs break at different moments between two renewals of the Lease, which may detect the fault.
pub fn broken(
    stand: &Stand<'_>,
    sizes: &Sizes,
    pair: Pair<'_>,
    way: Break,
    results: &mut Results,
) -> Result<()> {
    let rig = stand.rig;
    let what = match way {
        Break::Outage => "an unavailable API server",
        Break::Silence => "connections that went silent",
    };
    pair.each(stand.rig, what, |contender| {
        let namespace = rig.namespace()?;
        let proxy = Proxy::to(rig.api_port()?)?;
        stand.lead_through(contender, Some(proxy.port()))?;
        let mut supervised =
            Supervised { stand, contender, running: settled(stand, contender, sizes)?, restarts: 0 };
        rig.create(&pod_sets(&namespace), &pod_set("before", 1))?;
        first_creation(stand, contender, &namespace)?;
        // After 3 s the status is written and no request is in flight.
        interrupt::pause(Duration::from_secs(3) + pair.phase()?)?;
        match way {
            Break::Outage => proxy.cut(),
            Break::Silence => proxy.silence(),
        }
        let (mut began, broke) = (Timestamp::now(), Instant::now());
        for number in 0..sizes.meanwhile {
            rig.create(&pod_sets(&namespace), &pod_set(&format!("meanwhile-{number}"), 1))?;
        }
        if way == Break::Outage {
            while broke.elapsed() < sizes.outage {
                rig.tick();
                supervised.start_again_if_ended()?;
                interrupt::pause(Duration::from_secs(1))?;
            }
            began = Timestamp::now();
            proxy.restore();
        }
        let mut made = Vec::new();
        run::poll("every PodSet has its pod", UNNOTICED, Duration::from_secs(1), || {
            rig.tick();
            supervised.start_again_if_ended()?;
            let writes = rig.writes_so_far(&namespace)?.into_iter();
            made.extend(writes.filter(Request::is_creation_of_pod).map(|write| write.received));
            Ok((made.len() >= sizes.meanwhile).then_some(()))
        })?;
        let last = made.into_iter().max().context("no pod was created")?;
        results.one(contender, pair.number, "back", last.duration_since(began).as_secs_f64());
        results.one(contender, pair.number, "restarts", float(supervised.restarts));
        clear(stand, &namespace)?;
        stand.lead_through(contender, None)?;
        // On SIGTERM, some contenders would wait for an answer on a silent connection.
        supervised.running.kill();
        Ok(())
    })
}

/// A contender that is started again when it exits.
struct Supervised<'a> {
    stand: &'a Stand<'a>,
    contender: Contender,
    running: Running,
    restarts: u32,
}

impl Supervised<'_> {
    fn start_again_if_ended(&mut self) -> Result<()> {
        if self.running.has_ended()? {
            self.restarts += 1;
            self.running = self.stand.start(self.contender, "a")?;
        }
        Ok(())
    }
}
