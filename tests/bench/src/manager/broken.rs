//! How long a contender needs after the way to the API server was broken.

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

/// How long a dead watch may go unnoticed: kube-runtime gives one up after 295 s without an event.
const UNNOTICED: Duration = Duration::from_mins(10);

/// What is done to the way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Nobody is there for a while.
    Outage,
    /// Nothing passes any more over the connections that are open, and nobody is told.
    Silence,
}

/// From the return of the API server, or from the silence, until everything has its pod that was made since nothing came
/// through. Who ends meanwhile is started again, without the pauses that a kubelet makes. The pairs break at different moments
/// between two renewals of the Lease, since the next one may be what tells.
pub fn broken(
    stand: &Stand<'_>,
    sizes: &Sizes,
    pair: Pair<'_>,
    way: Break,
    results: &mut Results,
) -> Result<()> {
    let rig = stand.rig;
    let what = match way {
        Break::Outage => "an API server that is gone",
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
        // Its status is written then, and nothing is under way.
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
        run::poll("everything has its pod", UNNOTICED, Duration::from_secs(1), || {
            rig.tick();
            supervised.start_again_if_ended()?;
            let writes = rig.writes_so_far(&namespace)?.into_iter();
            made.extend(writes.filter(Request::is_creation_of_pod).map(|write| write.received));
            Ok((made.len() >= sizes.meanwhile).then_some(()))
        })?;
        let last = made.into_iter().max().context("no pod was made")?;
        results.one(contender, pair.number, "back", last.duration_since(began).as_secs_f64());
        results.one(contender, pair.number, "restarts", float(supervised.restarts));
        clear(stand, &namespace)?;
        stand.lead_through(contender, None)?;
        // Some wait at the end for an answer over a connection that says nothing any more.
        supervised.running.kill();
        Ok(())
    })
}

/// A contender that is started again when it ends.
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
