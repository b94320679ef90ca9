//! A DaemonJob as the rules of `quintet rollout` read it.

use std::fmt;

use crate::api::{DaemonJob, DaemonJobStatus, Rollout};
use crate::waves::{Approved, WaitingFor};

/// A DaemonJob, with the values of its status as the rules need them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'j> {
    pub job: &'j DaemonJob,
}

/// A count in a status. An absent count is 0.
pub(super) fn count(count: Option<i32>) -> u64 {
    u64::try_from(count.unwrap_or_default()).unwrap_or_default()
}

impl<'j> Subject<'j> {
    /// The status, if it describes the current spec.
    pub fn observed(self) -> Option<&'j DaemonJobStatus> {
        let status = self.job.status.as_ref();
        status.filter(|status| status.observed_generation == self.job.metadata.generation)
    }

    /// The rollout in the status.
    pub fn rollout(self) -> Option<&'j Rollout> {
        self.job.status.as_ref()?.rollout.as_ref()
    }

    /// The current wave, from 1. None without `spec.rollout`.
    pub fn wave(self) -> Option<u64> {
        u64::try_from(self.rollout()?.wave?).ok()
    }

    /// The sizes of the waves, except the last one. A size is the number of nodes that have started when the
    /// wave ends, all waves before it included.
    pub fn sizes(self) -> impl Iterator<Item = u64> {
        let sizes = self.rollout().map_or(&[][..], |rollout| &rollout.wave_sizes);
        sizes.iter().map(|size| count(Some(*size)))
    }

    /// The size of a wave; None for the last one.
    pub fn size(self, wave: u64) -> Option<u64> {
        self.sizes().nth(usize::try_from(wave.checked_sub(1)?).ok()?)
    }

    /// The number of the last wave.
    pub fn last_wave(self) -> u64 {
        self.sizes().count() as u64 + 1
    }

    /// The number of nodes that have started in the rollout.
    pub fn started(self) -> u64 {
        count(self.rollout().and_then(|rollout| rollout.started))
    }

    /// The number of nodes that are done and have settled in the rollout.
    pub fn settled(self) -> u64 {
        count(self.rollout().and_then(|rollout| rollout.settled))
    }

    /// The reason why the current wave is not over, if this version knows it.
    pub fn waiting_for(self) -> Option<WaitingFor> {
        self.rollout()?.waiting_for.as_deref()?.parse().ok()
    }

    /// The approval that was set before the current wave failed. It does not approve the failed wave.
    pub fn void_approval(self) -> Option<&'j str> {
        self.rollout()?.void_approval.as_deref()
    }

    /// Whether a wave may need an approval.
    pub fn needs_approval(self, wave: u64) -> bool {
        let approval = self.job.spec.rollout.as_ref().and_then(|rollout| rollout.approval);
        approval.unwrap_or_default().applies_to(wave)
    }

    /// The value of an annotation.
    pub fn annotation(self, key: &str) -> Option<&'j str> {
        self.job.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The annotation that approves a wave of the current rollout.
    fn approval(self) -> Option<Approved<'j>> {
        let rollout = u64::try_from(self.rollout()?.number).ok()?;
        Approved::of(self.job).filter(|approved| approved.rollout == rollout)
    }

    /// The wave that the annotation approves in the current rollout, with all waves before it.
    pub fn approved(self) -> Option<u64> {
        self.approval().map(|approved| approved.wave as u64)
    }

    /// Whether the annotation approves the current wave. The approval of a failed wave names this wave, and is
    /// newer than the failure.
    pub fn is_approved(self, has_failed: bool) -> bool {
        let (Some(current), Some(approval)) = (self.wave(), self.approval()) else { return false };
        let (approved, is_void) = (approval.wave as u64, self.void_approval() == Some(approval.text));
        if has_failed { approved == current && !is_void } else { approved >= current }
    }

    /// The flags that name the DaemonJob in a command.
    pub fn target(self) -> String {
        format!("{self} -n {}", self.job.metadata.namespace.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "daemonjob/{}", self.job.metadata.name.as_deref().unwrap_or_default())
    }
}
