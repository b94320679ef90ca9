//! The processor time and memory of a process, from /proc, so only on Linux.

use anyhow::{Context, Result};
use procfs_core::FromRead;
use procfs_core::process::{SmapsRollup, Stat, Status};
use serde::{Deserialize, Serialize};

use super::stats::float;

/// The memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "units are in names")]
pub struct Memory {
    pub rss_kib: u64,
    /// The highest RSS since the start.
    pub peak_kib: u64,
    /// RSS, with shared pages counted in part.
    pub pss_kib: u64,
}

/// The processor seconds of a process so far, in user and system mode.
pub fn cpu_seconds(pid: i32) -> Result<f64> {
    let stat: Stat = read(pid, "stat")?;
    Ok(float(stat.utime + stat.stime) / float(rustix::param::clock_ticks_per_second()))
}

pub fn memory(pid: i32) -> Result<Memory> {
    let (status, rollup): (Status, SmapsRollup) = (read(pid, "status")?, read(pid, "smaps_rollup")?);
    let pss = rollup.memory_map_rollup.0.first().and_then(|map| map.extension.map.get("Pss"));
    let found = status.vmrss.zip(status.vmhwm).zip(pss);
    let ((rss_kib, peak_kib), pss) =
        found.with_context(|| format!("/proc/{pid} does not contain the memory"))?;
    Ok(Memory { rss_kib, peak_kib, pss_kib: pss / 1_024 })
}

fn read<T: FromRead>(pid: i32, file: &str) -> Result<T> {
    T::from_file(format!("/proc/{pid}/{file}"))
        .with_context(|| format!("cannot measure process {pid}: it has exited, or this is not Linux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_this_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let memory = memory(me).unwrap();
        assert!(0 < memory.pss_kib && memory.pss_kib <= memory.rss_kib && memory.rss_kib <= memory.peak_kib);
        assert!(cpu_seconds(me).unwrap() >= 0.0);
    }
}
