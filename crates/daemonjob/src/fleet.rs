//! The health of the selected nodes as a whole. An outage must not count as a failure of nodes.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::model::core_types::Node;

use crate::api::DaemonJob;
use crate::eligibility::Placement;

/// The smallest fleet that can be unhealthy as a whole.
const SMALLEST_FLEET: usize = 3;

/// The nodes that the template selects, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Selected nodes.
    pub selected: usize,
    /// Selected nodes that existed when the run began.
    pub members: usize,
    /// Members with a condition taint that the template does not tolerate.
    pub unhealthy: usize,
}

impl Fleet {
    /// Counts selected nodes, for a run with this start. None: the run begins now.
    pub fn of<'n>(
        nodes: impl Iterator<Item = &'n Node>,
        placement: &Placement,
        start: Option<Timestamp>,
    ) -> Self {
        let mut fleet = Self::default();
        for node in nodes.filter(|node| node.meta.deleted.is_none()) {
            fleet.selected += 1;
            // Every new node is not Ready at first. It must not count as unhealthy.
            let has_joined = start.is_some() && node.meta.created > start;
            fleet.members += usize::from(!has_joined);
            fleet.unhealthy += usize::from(!has_joined && placement.is_unhealthy(node));
        }
        fleet
    }

    /// Whether more than half of the nodes that were healthy when the run began are unhealthy. The cause is
    /// then probably the network or the control plane, not the nodes.
    pub fn is_unhealthy(self, unhealthy_from_start: usize) -> bool {
        let healthy = self.members.saturating_sub(unhealthy_from_start);
        let fallen_ill = self.unhealthy.saturating_sub(unhealthy_from_start);
        healthy >= SMALLEST_FLEET && fallen_ill * 2 > healthy
    }
}

/// Whether the fleet is unhealthy as a whole, before a reconcile decides whether a run begins.
pub fn is_fleet_unhealthy(job: &DaemonJob, placement: &Placement, nodes: &[Arc<Node>]) -> bool {
    let start = job.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|start| start.0);
    let nodes = nodes.iter().map(|node| &**node).filter(|node| placement.eligibility(node).is_selected());
    let fleet = Fleet::of(nodes, placement, start);
    fleet.is_unhealthy(unhealthy_from_start(job, fleet))
}

/// The smallest number of unhealthy nodes since the run began.
pub fn unhealthy_from_start(job: &DaemonJob, fleet: Fleet) -> usize {
    // A retry is another rollout of the same run.
    let before = job.status.as_ref().and_then(|status| status.rollout.as_ref());
    let before = before.map(|rollout| usize::try_from(rollout.unhealthy_from_start).unwrap_or_default());
    before.map_or(fleet.unhealthy, |before| before.min(fleet.unhealthy))
}
