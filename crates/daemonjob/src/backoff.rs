//! The backoff before a node's retry: from 10 s, doubled for each attempt of the rollout, up to 10 minutes.

use jiff::Timestamp;
use quintet_runtime::model::clock::{FIRST_BACKOFF, LONGEST_BACKOFF, doubled, whole_seconds};
use quintet_runtime::model::conditions;

use crate::history::History;
use crate::ledger::{Entry, Outcome, exit_text};
use crate::node_state::{Cause, Reason, counted};

/// The reason why a node waits for its next attempt, and until when.
pub(crate) fn backs_off(
    latest: &Entry,
    history: &History<'_>,
    now: Timestamp,
) -> Option<(Reason, Timestamp)> {
    let tries = latest.tries();
    if tries == 0 || latest.outcome == Outcome::Succeeded {
        return None;
    }
    let wait = doubled(FIRST_BACKOFF, tries - 1, LONGEST_BACKOFF);
    let until = latest.ended.checked_add(wait).unwrap_or(now);
    if until <= now {
        return None;
    }
    let at = whole_seconds(until);
    let reason = if latest.outcome == Outcome::Rejected {
        let words = history.rejection.map(|words| format!(": {words}")).unwrap_or_default();
        let message = format!("the kubelet rejected pod {}{words}; the manager retries at {at}", latest.pod);
        Reason::new(Cause::Rejected, conditions::shorten(message, 256))
    } else {
        let exit = exit_text(latest.exit.as_deref(), "; the last failure: ");
        let tries = counted(u64::from(tries), "attempt");
        Reason::new(Cause::BackingOff, format!("the manager retries at {at}, after {tries}{exit}"))
    };
    Some((reason, until))
}
