//! The free disk space, because a full disk fails tests without being named: a broker rejects messages, for example.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use quintet_localcluster::paths;

/// The disk space that a run with cold caches needs, in bytes.
const NEEDED: u64 = 30 << 30;

/// Warns if the disk is too small for a run: the later errors would not name the disk.
pub(super) fn warn_if_small() {
    for (folder, free) in free_by_disk() {
        if free < NEEDED {
            eprintln!(
                "warning: {} are free below {}, and a run with cold caches needs {}; later failures may be due to a full disk",
                gigabytes(free),
                folder.display(),
                gigabytes(NEEDED)
            );
        }
    }
}

/// The free bytes of the fullest disk that a run writes to. `None` if the system does not say.
pub(super) fn free() -> Option<u64> {
    free_by_disk().into_iter().map(|(_, free)| free).min()
}

/// Formats bytes as whole GB (2^30 bytes), rounded down.
pub(super) fn gigabytes(bytes: u64) -> String {
    format!("{} GB", bytes >> 30)
}

/// The disks of the checkout, cargo's target directory, the cache and the temporary files, with their free bytes. A disk is
/// named by the first of these folders.
fn free_by_disk() -> Vec<(PathBuf, u64)> {
    let folders = [Some(paths::workspace().to_owned()), Some(paths::target()), paths::cache().ok()];
    let mut found = BTreeMap::new();
    for folder in folders.into_iter().flatten().chain([std::env::temp_dir()]) {
        let folder = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        let (Ok(metadata), Ok(disk)) = (fs::metadata(folder), rustix::fs::statvfs(folder)) else { continue };
        found.entry(metadata.dev()).or_insert_with(|| (folder.to_owned(), disk.f_bavail * disk.f_frsize));
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_each_disk_once() {
        let disks = free_by_disk();
        let folders: Vec<&PathBuf> = disks.iter().map(|(folder, _)| folder).collect();
        assert!(folders.iter().any(|folder| *folder == paths::workspace()), "{folders:?}");
        let devices: std::collections::BTreeSet<u64> =
            folders.iter().map(|folder| fs::metadata(folder).unwrap().dev()).collect();
        assert_eq!(devices.len(), disks.len());
        // Other programs write meanwhile, so that only the presence is sure.
        assert!(free().is_some());
    }

    #[test]
    fn rounds_free_space_down() {
        assert_eq!(gigabytes((1 << 30) - 1), "0 GB");
        assert_eq!(gigabytes(NEEDED), "30 GB");
    }
}
