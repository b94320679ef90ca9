//! Clusters and brokers that go with the command or the test that made them. The process that made them is on record, so
//! that what a killed one left behind is removed by the next one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cluster::processes::{self, Process};
use crate::cluster::{Cluster, state};
use crate::{paths, pulsar};

/// A name for a cluster and a broker, and the beginning of names of further ones. All of them go with this value.
#[derive(Debug)]
pub struct Temporary(String);

impl Temporary {
    /// A name that no other process uses: `PURPOSE-PID`. What processes that are no more left behind is removed before.
    pub fn new(purpose: &str) -> Self {
        let name = format!("{purpose}-{}", std::process::id());
        if let Ok(records) = records() {
            sweep(&records);
            let recorded = fs::create_dir_all(&records)
                .map_err(Into::into)
                .and_then(|()| processes::claim(&records, &name));
            if let Err(error) = recorded {
                eprintln!("{name} would be left behind if this command were killed: {error:#}");
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

fn records() -> Result<PathBuf> {
    Ok(paths::cache()?.join("temporary"))
}

/// Removes what is on record for processes that are no more.
fn sweep(records: &Path) {
    let all = processes::all(records).unwrap_or_default();
    for Process { name, .. } in all.into_iter().filter(|process| !process.is_alive()) {
        eprintln!("removing what {name} left behind");
        if remove(&name) {
            processes::forget(records, &name);
        }
    }
}

/// Whether a cluster or a broker goes with a name.
fn goes_with(candidate: &str, name: &str) -> bool {
    candidate.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Removes the clusters and brokers that go with a name, and says whether none is left.
fn remove(name: &str) -> bool {
    let mut gone = true;
    let mut take = |what: &str, name: &str, taken: Result<()>| {
        if let Err(error) = taken {
            eprintln!("{what} {name} could not be removed: {error:#}");
            gone = false;
        }
    };
    for name in pulsar::Broker::names().unwrap_or_default().iter().filter(|other| goes_with(other, name)) {
        take("broker", name, pulsar::Broker::open(name).and_then(pulsar::Broker::down));
    }
    for name in Cluster::names().unwrap_or_default().iter().filter(|other| goes_with(other, name)) {
        take("cluster", name, Cluster::open(name).and_then(Cluster::down));
    }
    let _ = fs::remove_file(state::all().unwrap_or_default().join(format!("{name}.lock")));
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_with_a_name_has_it_or_begins_with_it() {
        assert!(goes_with("test-47", "test-47"));
        assert!(goes_with("test-47-tls", "test-47"));
        assert!(!goes_with("test-471", "test-47"));
        assert!(!goes_with("my-test-47", "test-47"));
    }

    #[test]
    fn the_record_of_a_name_is_there_for_as_long_as_the_name() {
        let temporary = Temporary::new("temporary-unit");
        let record = processes::find(&records().unwrap(), &temporary.name());
        assert!(record.unwrap().is_some_and(|process| process.is_alive()));
        let name = temporary.name();
        drop(temporary);
        assert_eq!(processes::find(&records().unwrap(), &name).unwrap(), None);
    }
}
