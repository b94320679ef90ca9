//! A DaemonJob as `quintet rollout` reads it.

use std::fmt;

use quintet_runtime::model::object::{Key, Object};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::api::{DaemonJob, DaemonJobStatus, Rollout};

/// Annotation: `<rollout number>/<wave>`, the wave that a user approved.
pub const APPROVED_ANNOTATION: &str = "dj.dysproz.io/approved";
/// Annotation: the reason why a user paused the DaemonJob.
pub const PAUSED_ANNOTATION: &str = "dj.dysproz.io/paused";

/// A DaemonJob, and the fields for its waves.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The DaemonJob.
    pub job: DaemonJob,
    pub(super) waves: Waves,
    pub(super) approval: Approval,
}

/// The fields of `status.rollout` for waves. They are absent without `spec.rollout`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Waves {
    /// The number of nodes that have started when a wave ends, all waves before it included. The last wave has
    /// no size.
    #[serde(rename = "waveSizes")]
    pub sizes: Vec<u64>,
    /// The current wave, from 1.
    #[serde(rename = "wave")]
    pub current: Option<u64>,
    /// The number of nodes that have started in the rollout.
    pub started: u64,
    /// The number of nodes that are done and have settled in the rollout.
    pub settled: u64,
    /// The condition for which the current wave waits.
    pub waiting_for: Option<WaitingFor>,
    /// The value of the annotation when the current wave failed. It does not approve the failed wave.
    pub void_approval: Option<String>,
}

/// The condition for which a wave waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum WaitingFor {
    /// Its nodes run.
    Nodes,
    /// Its nodes stay Ready for settleSeconds.
    Settling,
    /// A user approves it.
    Approval,
    /// A user retries its failed nodes, or approves it.
    WaveFailed,
    /// A user resumes the rollout.
    Paused,
    /// An administrator repairs the fleet or the definition.
    Repair,
    /// A condition that this version does not know.
    #[serde(other)]
    Other,
}

/// The waves that need an approval, as in `spec.rollout.approval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Approval {
    /// No wave.
    #[default]
    None,
    /// The first wave.
    FirstWave,
    /// Every wave except the last.
    EveryWave,
    /// Waves that this version does not know.
    #[serde(other)]
    Other,
}

impl Approval {
    /// Whether a wave may need an approval.
    pub fn applies_to(self, wave: u64) -> bool {
        match self {
            Self::None => false,
            Self::FirstWave => wave == 1,
            Self::EveryWave | Self::Other => true,
        }
    }
}

impl Waves {
    /// The number of the last wave.
    pub fn last(&self) -> u64 {
        self.sizes.len() as u64 + 1
    }

    /// The size of a wave; None for the last one.
    pub fn size(&self, wave: u64) -> Option<u64> {
        let index = usize::try_from(wave.checked_sub(1)?).ok()?;
        self.sizes.get(index).copied()
    }
}

impl Subject {
    /// The status, if it describes the current spec.
    pub(super) fn observed(&self) -> Option<&DaemonJobStatus> {
        let status = self.job.status.as_ref();
        status.filter(|status| status.observed_generation == self.job.metadata.generation)
    }

    /// The rollout in the status.
    pub(super) fn rollout(&self) -> Option<&Rollout> {
        self.job.status.as_ref()?.rollout.as_ref()
    }

    /// The value of an annotation.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.job.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The wave that the annotation approves in the current rollout, with all waves before it.
    pub(super) fn approved(&self) -> Option<u64> {
        let (number, wave) = self.annotation(APPROVED_ANNOTATION)?.split_once('/')?;
        let is_current = self.rollout().is_some_and(|rollout| number.parse() == Ok(rollout.number));
        wave.parse().ok().filter(|_| is_current)
    }

    /// Whether the annotation approves the current wave. The approval of a failed wave names this wave, and is
    /// newer than the failure.
    pub(super) fn is_approved(&self, has_failed: bool) -> bool {
        let (Some(current), Some(approved)) = (self.waves.current, self.approved()) else { return false };
        let is_void = self.waves.void_approval.as_deref() == self.annotation(APPROVED_ANNOTATION);
        if has_failed { approved == current && !is_void } else { approved >= current }
    }

    /// The flags that name the DaemonJob in a command.
    pub(super) fn target(&self) -> String {
        format!("{self} -n {}", self.job.metadata.namespace.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "daemonjob/{}", self.job.metadata.name.as_deref().unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let waves = Option::<Waves>::deserialize(&object["status"]["rollout"]);
        let waves = waves.map_err(D::Error::custom)?;
        let approval = Option::<Approval>::deserialize(&object["spec"]["rollout"]["approval"]);
        let approval = approval.map_err(D::Error::custom)?;
        Ok(Self {
            waves: waves.unwrap_or_default(),
            approval: approval.unwrap_or_default(),
            job: serde_json::from_value(object).map_err(D::Error::custom)?,
        })
    }
}

impl Object for Subject {
    fn key(&self) -> Key {
        self.job.key()
    }

    fn resource_version(&self) -> &str {
        self.job.resource_version()
    }

    fn terminating(&self) -> bool {
        self.job.terminating()
    }
}
