//! What a process has used, as the system tells: processor time and memory. From /proc, so on Linux alone.

use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::stats::float;

/// The memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "units are in names")]
pub struct Memory {
    /// Resident now.
    pub rss_kib: u64,
    /// The most that ever was resident.
    pub peak_kib: u64,
    /// Resident now, pages shared with others counted in part.
    pub pss_kib: u64,
}

/// The processor seconds that a process has used so far, in user and system mode.
pub fn cpu_seconds(pid: i32) -> Result<f64> {
    let ticks_per_second = float(rustix::param::clock_ticks_per_second());
    parse_cpu_ticks(&read(pid, "stat")?)
        .map(|ticks| float(ticks) / ticks_per_second)
        .with_context(|| format!("/proc/{pid}/stat is not as proc(5) says"))
}

/// The memory of a process.
pub fn memory(pid: i32) -> Result<Memory> {
    let status = read(pid, "status")?;
    let field = |text: &str, name: &str| {
        parse_kib(text, name).with_context(|| format!("/proc/{pid} does not tell {name}"))
    };
    Ok(Memory {
        rss_kib: field(&status, "VmRSS")?,
        peak_kib: field(&status, "VmHWM")?,
        pss_kib: field(&read(pid, "smaps_rollup")?, "Pss")?,
    })
}

fn read(pid: i32, file: &str) -> Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .with_context(|| format!("process {pid} cannot be measured: it has ended, or this is not Linux"))
}

/// utime and stime, which are fields 14 and 15. The name, in parentheses, may hold anything.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parse_kib(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_fields_14_and_15() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 987654 1000 200";
        assert_eq!(parse_cpu_ticks(stat), Some(56));
        assert_eq!(parse_cpu_ticks("42 (a"), None);
    }

    #[test]
    fn memory_is_read_by_name() {
        let status = "Name:\tquintet\nVmHWM:\t    9000 kB\nVmRSS:\t    8000 kB\n";
        assert_eq!(parse_kib(status, "VmRSS"), Some(8_000));
        assert_eq!(parse_kib(status, "VmHWM"), Some(9_000));
        assert_eq!(parse_kib("Pss_Dirty: 1 kB\nPss:  7 kB\n", "Pss"), Some(7));
        assert_eq!(parse_kib(status, "Pss"), None);
    }

    #[test]
    fn this_process_can_be_measured() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(memory(me).unwrap().rss_kib > 0);
        assert!(cpu_seconds(me).unwrap() >= 0.0);
    }
}
