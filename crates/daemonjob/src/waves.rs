//! Waves: how many nodes may have started in a rollout, and when the next wave begins.
//!
//! A wave has a size and no members: any node may be among the first. A wave is over when as many nodes as its
//! size are done and settled or failed, and more of them succeeded than failed. The spec may require that a
//! user approves it then. The status stores the waves that are over, so that they stay over.

use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::int_or_percent::{Round, scaled_value};

use crate::api::{Approval, DaemonJob, Rollout};
use crate::history::History;
use crate::labels::{APPROVED_ANNOTATION, PAUSED_ANNOTATION};
use crate::ledger::Entry;
use crate::node_state::{Cause, Reason, State, counted};
use crate::rollout::Key;

/// The place of a node in the order in which nodes start. It depends on the template and the run, so that
/// other nodes are the first each time. A retry is part of the same run.
pub fn order(key: &Key, node_uid: &str) -> u64 {
    FixedState::default().hash_one((&*key.hash, key.run, node_uid))
}

/// How one node counts in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not started, or it is skipped or not selected.
    Away,
    /// It has started and is not finished.
    Working,
    /// It is done and must stay Ready.
    Settling,
    /// It is done and settled.
    Settled,
    /// It has failed.
    Failed {
        /// Whether the failure ends when the node can be retried or is Ready.
        may_recover: bool,
    },
}

/// A pod of the rollout that runs, or may run later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenPod {
    /// It is on its node.
    Bound,
    /// According to the cache, no node has it.
    Unbound,
}

impl Standing {
    /// The standing of a node. `state` is None if the node is not selected.
    pub fn of(
        history: &History<'_>,
        rollout: u64,
        open: Option<OpenPod>,
        failure: Option<Cause>,
        state: Option<&State>,
    ) -> Self {
        if let Some(cause) = failure {
            return Self::Failed { may_recover: cause.is_provisional() };
        }
        let tried = history.latest.as_deref().filter(|latest| latest.was_tried_in(rollout));
        if open.is_none() && tried.is_none() {
            return Self::Away;
        }
        let is_settled = tried.is_some_and(|latest| latest.has_succeeded() && latest.unclear().is_none());
        match state {
            Some(State::Done) if is_settled => Self::Settled,
            // The manager deletes this pod, which may be bound meanwhile.
            Some(State::Skipped(_)) if open == Some(OpenPod::Unbound) => Self::Working,
            // A container has started, and hangs: the template may be the cause.
            Some(State::Skipped(reason))
                if reason.cause == Cause::PendingDeadlineExceeded && tried.is_some() =>
            {
                Self::Failed { may_recover: false }
            }
            Some(State::Skipped(_) | State::Done) => Self::Away,
            Some(State::Waiting(reason)) if reason.cause == Cause::Settling => Self::Settling,
            Some(_) => Self::Working,
            None if open.is_some() => Self::Working,
            None if is_settled => Self::Settled,
            // A node that is not selected runs again only if it is selected again.
            None if tried.is_some_and(Entry::has_succeeded) => Self::Settling,
            None => Self::Away,
        }
    }
}

/// The nodes of the rollout, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Nodes that have started and are not finished, without those that settle.
    pub working: usize,
    /// Done nodes that must stay Ready.
    pub settling: usize,
    /// Done nodes that have settled.
    pub settled: usize,
    /// Failed nodes, with those whose Node was deleted.
    pub failed: usize,
    /// Failed nodes that may recover.
    pub recoverable: usize,
}

impl Progress {
    /// Counts a node.
    pub fn add(&mut self, standing: Standing) {
        match standing {
            Standing::Away => {}
            Standing::Working => self.working += 1,
            Standing::Settling => self.settling += 1,
            Standing::Settled => self.settled += 1,
            Standing::Failed { may_recover } => {
                self.failed += 1;
                self.recoverable += usize::from(may_recover);
            }
        }
    }

    /// The number of nodes that have started.
    pub fn started(self) -> usize {
        self.unfinished() + self.finished()
    }

    fn unfinished(self) -> usize {
        self.working + self.settling
    }

    fn finished(self) -> usize {
        self.settled + self.failed
    }
}

/// The state of the current wave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaveState {
    /// Nodes may start, or have started and are not finished.
    #[default]
    Works,
    /// All its nodes are finished, and not more of them succeeded than failed.
    Failed,
    /// It is over when a user approves it.
    WaitsForApproval,
}

/// The reason why the current wave is not over. The status has the names of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum WaitingFor {
    /// Nodes run, or wait for a slot or a retry.
    Nodes,
    /// Nodes must stay Ready.
    Settling,
    /// A user must approve the wave.
    Approval,
    /// The wave has failed.
    WaveFailed,
    /// The DaemonJob is paused or suspended.
    Paused,
    /// A condition names a problem.
    Repair,
}

impl WaitingFor {
    /// The word in the status.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// The size of one wave.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Size {
    /// Its index in the spec.
    at: usize,
    written: IntOrString,
    nodes: usize,
}

/// The waves of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waves {
    /// The sizes in force. The last wave has no size.
    sizes: Vec<Size>,
    /// The number of waves that are over.
    passed: usize,
    /// The number of waves that are over according to the last status.
    reported: usize,
    /// The nodes of the rollout.
    pub progress: Progress,
    /// The state of the current wave.
    pub state: WaveState,
    /// The approval that existed before the current wave failed.
    pub void_approval: Option<String>,
}

impl Waves {
    /// The waves, if the spec has rollout rules. `before` is the rollout of the last status, if it is the current
    /// one. While the failure policy stops the rollout (`is_stopped`), no wave passes: the status keeps the wave whose
    /// nodes failed.
    pub fn of(
        job: &DaemonJob,
        rollout: u64,
        base: usize,
        before: Option<&Rollout>,
        progress: Progress,
        is_stopped: bool,
    ) -> Option<Self> {
        let spec = job.spec.rollout.as_ref()?;
        let written = spec.wave_sizes.as_deref().unwrap_or_default();
        let sizes = in_force(written, base);
        let reported = before.map_or(0, |before| passed(written, &sizes, before));
        let mut waves = Self { sizes, passed: reported, reported, progress, ..Self::default() };
        let approved = Approved::of(job).filter(|approved| approved.rollout == rollout);
        if !is_stopped {
            waves.advance(spec.approval.unwrap_or_default(), approved, before);
        }
        Some(waves)
    }

    /// Passes the waves that are over, and judges the next one.
    fn advance(&mut self, approval: Approval, approved: Option<Approved<'_>>, before: Option<&Rollout>) {
        let progress = self.progress;
        while let Some(size) = self.sizes.get(self.passed)
            && progress.finished() >= size.nodes
        {
            let has_succeeded = progress.settled > progress.failed;
            let needs_approval = approval.applies_to(self.current() as u64);
            let is_approved = approved.is_some_and(|approved| approved.wave >= self.current());
            if has_succeeded && (!needs_approval || is_approved) {
                self.passed += 1;
                continue;
            }
            // The other nodes that have started may still succeed.
            if progress.unfinished() > 0 {
                return;
            }
            if has_succeeded {
                self.state = WaveState::WaitsForApproval;
                return;
            }
            let named = approved.filter(|approved| approved.wave == self.current()).map(|one| one.text);
            let void = self.void(before, named);
            if named.is_none() || void.is_some() {
                (self.state, self.void_approval) = (WaveState::Failed, void.map(str::to_owned));
                return;
            }
            self.passed += 1;
        }
    }

    /// The approval of the current wave, which has failed, if a user set it before the failure was in the status.
    fn void<'t>(&self, before: Option<&Rollout>, named: Option<&'t str>) -> Option<&'t str> {
        let failed = before.filter(|before| {
            before.waiting_for.as_deref() == Some(WaitingFor::WaveFailed.word())
                && before.wave.and_then(|wave| usize::try_from(wave).ok()) == Some(self.current())
        });
        named.filter(|named| failed.is_none_or(|failed| failed.void_approval.as_deref() == Some(*named)))
    }

    /// The number of the current wave, from 1.
    pub fn current(&self) -> usize {
        self.passed + 1
    }

    /// The sizes in nodes, without the last wave.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().map(|size| size.nodes)
    }

    /// The last size whose wave is over, as in the spec.
    pub fn passed_size(&self) -> Option<&IntOrString> {
        Some(&self.sizes.get(self.passed.checked_sub(1)?)?.written)
    }

    /// Whether the number of nodes in the current wave is limited.
    pub fn is_limited(&self) -> bool {
        self.sizes.get(self.passed).is_some()
    }

    /// The number of nodes that may start now. The status must have a wave before nodes start in it.
    pub fn room(&self) -> usize {
        let size = self.sizes.get(self.reported);
        size.map_or(usize::MAX, |size| size.nodes.saturating_sub(self.progress.started()))
    }

    /// The wave in which nodes may start now: its number and its size.
    pub fn open(&self) -> Option<(usize, usize)> {
        Some((self.reported + 1, self.sizes.get(self.reported)?.nodes))
    }

    /// Whether the current wave stays failed even if failed nodes recover.
    pub fn fails_for_good(&self) -> bool {
        let Progress { settled, failed, recoverable, .. } = self.progress;
        self.state == WaveState::Failed && settled + recoverable <= failed.saturating_sub(recoverable)
    }

    /// Why no further nodes start, with the remedy.
    pub fn hold(&self, job: &DaemonJob, rollout: u64) -> Option<Reason> {
        let wave = self.current();
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let approve =
            format!("kubectl annotate daemonjob {name} --overwrite {APPROVED_ANNOTATION}={rollout}/{wave}");
        let Progress { settled, failed, .. } = self.progress;
        match self.state {
            WaveState::Works => None,
            WaveState::WaitsForApproval => {
                let done = counted(settled as u64, "node");
                let message = format!(
                    "wave {wave} is over, with {done} done and {failed} failed; approve it: {approve}"
                );
                Some(Reason::new(Cause::WaitsForApproval, message))
            }
            WaveState::Failed => {
                let failed = counted(failed as u64, "node");
                let void = self.void_approval.as_ref().map_or_else(String::new, |text| {
                    format!("; the approval {text} is older than the failure: remove the annotation first")
                });
                let message = format!(
                    "{failed} failed and {settled} succeeded in wave {wave}; fix the cause and set spec.retryToken to a \
                     new value, or approve the wave: {approve}{void}"
                );
                Some(Reason::new(Cause::WaveFailed, message))
            }
        }
    }
}

/// The sizes that are larger than the ones before them.
fn in_force(written: &[IntOrString], base: usize) -> Vec<Size> {
    let mut sizes: Vec<Size> = Vec::new();
    for (at, written) in written.iter().enumerate() {
        let nodes = scaled_value(written, base, Round::Up).unwrap_or_default();
        if nodes > sizes.last().map_or(0, |last| last.nodes) {
            sizes.push(Size { at, written: written.clone(), nodes });
        }
    }
    sizes
}

/// The number of waves that are over according to the last status. A size that was passed stays passed when the
/// base grows. If the user has changed the sizes, those up to the passed number of nodes are passed.
fn passed(written: &[IntOrString], sizes: &[Size], before: &Rollout) -> usize {
    let Some(last) = &before.passed_size else { return 0 };
    if let Some(at) = written.iter().rposition(|size| size == last) {
        return sizes.iter().filter(|size| size.at <= at).count();
    }
    let wave = before.wave.and_then(|wave| usize::try_from(wave).ok()).unwrap_or_default();
    let nodes = wave.checked_sub(2).and_then(|at| before.wave_sizes.get(at));
    let nodes = nodes.and_then(|nodes| usize::try_from(*nodes).ok()).unwrap_or_default();
    sizes.iter().filter(|size| size.nodes <= nodes).count()
}

impl Approval {
    /// Whether a wave needs an approval, unless it is the last one.
    pub fn applies_to(self, wave: u64) -> bool {
        match self {
            Self::None => false,
            Self::FirstWave => wave == 1,
            Self::EveryWave => true,
        }
    }
}

/// An approval by annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Approved<'j> {
    pub rollout: u64,
    pub wave: usize,
    pub text: &'j str,
}

impl<'j> Approved<'j> {
    /// The approval in the annotation. Any other text approves nothing.
    pub fn of(job: &'j DaemonJob) -> Option<Self> {
        let text = job.metadata.annotations.as_ref()?.get(APPROVED_ANNOTATION)?;
        let (rollout, wave) = text.split_once('/')?;
        Some(Self { rollout: rollout.parse().ok()?, wave: wave.parse().ok()?, text })
    }
}

/// Why a user has paused the DaemonJob by annotation.
pub fn paused(job: &DaemonJob) -> Option<&str> {
    job.metadata.annotations.as_ref()?.get(PAUSED_ANNOTATION).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn job(rollout: &Value) -> DaemonJob {
        serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "d"}, "spec": {"template": {}, "rollout": rollout}}))
        .unwrap()
    }

    fn progress(working: usize, settled: usize, failed: usize) -> Progress {
        Progress { working, settled, failed, ..Progress::default() }
    }

    /// The waves of a fleet of this size, in which nothing has started yet.
    fn sizes(written: &Value, base: usize) -> Vec<usize> {
        let waves =
            Waves::of(&job(&json!({ "waveSizes": written })), 1, base, None, Progress::default(), false);
        waves.unwrap().sizes().collect()
    }

    #[rstest]
    #[case::numbers(json!([1, 5]), 3, &[1, 5])]
    #[case::rounded_up(json!(["10%", "50%"]), 15, &[2, 8])]
    #[case::not_larger(json!([1, "10%", "50%"]), 5, &[1, 3])]
    #[case::smaller(json!([5, "10%", 6]), 30, &[5, 6])]
    #[case::no_nodes(json!(["10%"]), 0, &[])]
    #[case::no_waves(json!(null), 9, &[])]
    #[case::never_stored(json!([0, "x", 2]), 9, &[2])]
    fn leaves_out_sizes_that_do_not_grow(
        #[case] written: Value,
        #[case] base: usize,
        #[case] expected: &[usize],
    ) {
        assert_eq!(sizes(&written, base), expected);
    }

    #[test]
    fn has_no_waves_without_rollout_rules() {
        assert_eq!(Waves::of(&job(&json!(null)), 1, 9, None, progress(1, 1, 1), false), None);
    }

    /// Sizes 1, 10 and 50 of 100 nodes. The current wave, and its state.
    #[rstest]
    #[case::nothing("None", progress(0, 0, 0), 1, WaveState::Works)]
    #[case::one_runs("None", progress(1, 0, 0), 1, WaveState::Works)]
    #[case::one_is_done("None", progress(0, 1, 0), 2, WaveState::Works)]
    #[case::one_has_failed("None", progress(0, 0, 1), 1, WaveState::Failed)]
    #[case::half_have_failed("None", progress(0, 5, 5), 1, WaveState::Failed)]
    #[case::fewer_have_failed("None", progress(0, 6, 4), 3, WaveState::Works)]
    #[case::others_still_run("None", progress(3, 5, 5), 1, WaveState::Works)]
    #[case::several_at_once("None", progress(9, 60, 1), 4, WaveState::Works)]
    #[case::first("FirstWave", progress(0, 1, 0), 1, WaveState::WaitsForApproval)]
    #[case::first_with_others("FirstWave", progress(2, 1, 0), 1, WaveState::Works)]
    #[case::every("EveryWave", progress(0, 10, 0), 1, WaveState::WaitsForApproval)]
    fn a_wave_is_over_when_its_nodes_are(
        #[case] approval: &str,
        #[case] progress: Progress,
        #[case] current: usize,
        #[case] state: WaveState,
    ) {
        let job = job(&json!({"waveSizes": [1, "10%", 50], "approval": approval}));
        let waves = Waves::of(&job, 1, 100, None, progress, false).unwrap();
        assert_eq!((waves.current(), waves.state), (current, state));
        let room = 1_usize.saturating_sub(progress.started());
        assert_eq!(waves.room(), room, "the status does not have a later wave yet");
    }

    /// The status after `passed`, at a base of 20: sizes 2, 5 and 10.
    fn status(passed: &Value, wave: i32) -> Rollout {
        let passed_size = serde_json::from_value(passed.clone()).unwrap();
        Rollout { wave_sizes: vec![2, 5, 10], wave: Some(wave), passed_size, ..Rollout::default() }
    }

    #[rstest]
    #[case::nothing(json!(["10%", 5, "50%"]), status(&json!(null), 1), 20, 1)]
    #[case::one(json!(["10%", 5, "50%"]), status(&json!("10%"), 2), 20, 2)]
    #[case::one_of_more_nodes(json!(["10%", 5, "50%"]), status(&json!("10%"), 2), 2_000, 2)]
    #[case::two_of_which_one_is_left_out(json!(["10%", 5, "50%"]), status(&json!(5), 3), 100, 2)]
    #[case::another_in_between(json!(["10%", 3, 5, "50%"]), status(&json!(5), 3), 20, 4)]
    #[case::others_up_to_its_nodes(json!([1, 4, 6]), status(&json!(5), 3), 20, 3)]
    #[case::only_larger_ones(json!([3]), status(&json!("10%"), 2), 20, 1)]
    fn a_size_that_was_passed_stays_passed(
        #[case] written: Value,
        #[case] before: Rollout,
        #[case] base: usize,
        #[case] wave: usize,
    ) {
        let job = job(&json!({ "waveSizes": written }));
        let waves = Waves::of(&job, 1, base, Some(&before), Progress::default(), false).unwrap();
        assert_eq!(waves.current(), wave, "{waves:?}");
    }

    #[test]
    fn other_nodes_are_the_first_in_another_run_and_template() {
        let key = |hash: &str, rollout, run| Key { hash: hash.into(), rollout, run, due: None };
        let nodes: Vec<String> = (0..100).map(|number| format!("node-{number}")).collect();
        let sorted = |key: &Key| {
            let mut sorted: Vec<&str> = nodes.iter().map(String::as_str).collect();
            sorted.sort_by_key(|uid| order(key, uid));
            sorted
        };
        let first = sorted(&key("a", 1, 1));
        assert_eq!(first, sorted(&key("a", 2, 1)), "a retry");
        assert_ne!(first, sorted(&key("a", 3, 2)), "the same template again");
        assert_ne!(first, sorted(&key("b", 1, 1)));
    }
}
