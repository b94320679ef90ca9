//! Clusters and brokers that are removed with the command or test that created them. The creating process is
//! recorded, so that the next command removes the remains of a killed one.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;

use anyhow::Result;

use crate::cluster::processes::{self, Process};
use crate::cluster::{Cluster, UpOptions, state};
use crate::{paths, pulsar};

/// A name for a cluster and a broker, and a prefix for further ones. Dropping it removes all of them.
#[derive(Debug)]
pub struct Temporary(String);

impl Temporary {
    /// A name that no other process uses: `PURPOSE-PID`. First removes the remains of dead processes.
    pub fn new(purpose: &str) -> Self {
        let name = format!("{purpose}-{}", std::process::id());
        remove_remains();
        if let Ok(records) = records() {
            let recorded = fs::create_dir_all(&records)
                .map_err(Into::into)
                .and_then(|()| processes::claim(&records, &name));
            if let Err(error) = recorded {
                eprintln!("cannot record {name}, which would remain if this command were killed: {error:#}");
            }
        }
        Self(name)
    }

    /// The name.
    pub fn name(&self) -> String {
        self.0.clone()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if remove(&self.0)
            && let Ok(records) = records()
        {
            processes::forget(&records, &self.0);
        }
    }
}

/// A cluster with simulated nodes. Dropping it removes the cluster.
#[derive(Debug)]
pub struct TemporaryCluster {
    cluster: Cluster,
    _name: Temporary,
}

impl TemporaryCluster {
    /// Brings up a cluster whose name contains the purpose.
    pub fn up(purpose: &str, nodes: usize) -> Result<Self> {
        let name = Temporary::new(purpose);
        let (cluster, _) =
            Cluster::up(&UpOptions { name: name.name(), nodes: Some(nodes), ..UpOptions::default() })?;
        Ok(Self { cluster, _name: name })
    }
}

impl Deref for TemporaryCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

fn records() -> Result<PathBuf> {
    Ok(paths::cache()?.join("temporary"))
}

/// Removes the clusters and brokers of dead processes.
pub fn remove_remains() {
    let Ok(records) = records() else { return };
    let all = processes::all(&records).unwrap_or_default();
    for Process { name, .. } in all.into_iter().filter(|process| !process.is_alive()) {
        eprintln!("removing the clusters and brokers of {name}");
        if remove(&name) {
            processes::forget(&records, &name);
        }
    }
}

/// Whether a cluster or broker with the name `candidate` belongs to `name`.
fn belongs_to(candidate: &str, name: &str) -> bool {
    candidate.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Removes the clusters and brokers of a name. Returns whether none is left.
fn remove(name: &str) -> bool {
    let mut gone = true;
    let mut take = |what: &str, name: &str, taken: Result<()>| {
        if let Err(error) = taken {
            eprintln!("cannot remove {what} {name}: {error:#}");
            gone = false;
        }
    };
    for name in pulsar::Broker::names().unwrap_or_default().iter().filter(|other| belongs_to(other, name)) {
        take("broker", name, pulsar::Broker::open(name).and_then(pulsar::Broker::down));
    }
    for name in Cluster::names().unwrap_or_default().iter().filter(|other| belongs_to(other, name)) {
        take("cluster", name, Cluster::open(name).and_then(Cluster::down));
    }
    let _ = fs::remove_file(state::all().unwrap_or_default().join(format!("{name}.lock")));
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_covers_itself_and_names_with_its_prefix() {
        assert!(belongs_to("test-47", "test-47"));
        assert!(belongs_to("test-47-tls", "test-47"));
        assert!(!belongs_to("test-471", "test-47"));
        assert!(!belongs_to("my-test-47", "test-47"));
    }

    #[test]
    fn a_record_lives_as_long_as_its_name() {
        let temporary = Temporary::new("temporary-unit");
        let record = processes::find(&records().unwrap(), &temporary.name());
        assert!(record.unwrap().is_some_and(|process| process.is_alive()));
        let name = temporary.name();
        drop(temporary);
        assert_eq!(processes::find(&records().unwrap(), &name).unwrap(), None);
    }
}
