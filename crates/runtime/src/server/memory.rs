//! The memory limit of this process's container, for an alert before the kernel ends the process.

/// The files with the limit, as a container sees them: of control groups version 2, then version 1.
const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// From this number on, version 1 means that there is no limit. It rounds the largest number to whole pages.
const UNLIMITED: i64 = 1 << 60;

/// The memory limit in bytes; 0 if there is none, or if it is unknown. The kubelet may change it while the process runs.
pub fn limit() -> i64 {
    FILES.iter().find_map(|file| bytes(&std::fs::read_to_string(file).ok()?)).unwrap_or_default()
}

/// The limit in the text of a file; None if there is none.
fn bytes(text: &str) -> Option<i64> {
    text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_limit_of_both_versions() {
        assert_eq!(bytes("67108864\n"), Some(64 * 1024 * 1024));
        assert_eq!(bytes("max\n"), None, "version 2 without a limit");
        assert_eq!(bytes("9223372036854771712\n"), None, "version 1 without a limit");
        assert_eq!(bytes(""), None);
    }
}
