//! Free ports on the loopback interface, below the range of outgoing connections, so that no connection takes
//! a port before its use. A lock separates two clusters that start at the same moment.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::state::{self, Dir};

const RANGE: Range<u16> = 20_000..30_000;

/// The ports of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ports {
    /// etcd, for clients.
    pub etcd: u16,
    /// etcd, for peers; there are none.
    pub etcd_peer: u16,
    /// kube-apiserver.
    pub apiserver: u16,
    /// kube-controller-manager's health and metrics.
    pub controller_manager: u16,
    /// kube-scheduler's health and metrics.
    pub scheduler: u16,
    /// kwok's health and metrics.
    pub kwok: u16,
}

impl Ports {
    /// Chooses six ports that are free and that no cluster below `clusters` has.
    pub(super) fn choose(clusters: &Path) -> Result<Self> {
        let [etcd, etcd_peer, apiserver, controller_manager, scheduler, kwok] = choose(clusters, &[])?;
        Ok(Self { etcd, etcd_peer, apiserver, controller_manager, scheduler, kwok })
    }

    fn all(self) -> [u16; 6] {
        [self.etcd, self.etcd_peer, self.apiserver, self.controller_manager, self.scheduler, self.kwok]
    }
}

/// Chooses ports that are free, not in `taken`, and that no cluster below `clusters` has.
pub(crate) fn choose<const N: usize>(clusters: &Path, taken: &[u16]) -> Result<[u16; N]> {
    let of_clusters = of_all_clusters(clusters);
    let mut free = free().filter(|port| !of_clusters.contains(port) && !taken.contains(port));
    let mut chosen = [0; N];
    for port in &mut chosen {
        *port = free.next().map_or_else(none, Ok)?;
    }
    Ok(chosen)
}

/// Whether no process listens on a port of the loopback interface.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A free port that this process has not returned before and that no cluster has. A starting cluster listens
/// some time after it has chosen its ports.
pub fn one() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let of_clusters = of_all_clusters(&state::all()?);
    match free().find(|port| !given.contains(port) && !of_clusters.contains(port)) {
        Some(port) => {
            given.insert(port);
            Ok(port)
        }
        None => none(),
    }
}

/// All free ports, beginning anywhere in the range.
fn free() -> impl Iterator<Item = u16> {
    let width = u32::from(RANGE.end - RANGE.start);
    let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let start = (moment / 1_000).wrapping_add(std::process::id().wrapping_mul(7_919)) % width;
    (0..width)
        .filter_map(move |i| u16::try_from(u32::from(RANGE.start) + (start + i) % width).ok())
        .filter(|port| is_free(*port))
}

fn none<T>() -> Result<T> {
    bail!("no free port on 127.0.0.1 between {} and {}", RANGE.start, RANGE.end)
}

fn of_all_clusters(clusters: &Path) -> Vec<u16> {
    let Ok(entries) = fs::read_dir(clusters) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| Dir::at(entry.path()).settings().ok().flatten())
        .flat_map(|settings| settings.ports.all())
        .collect()
}
