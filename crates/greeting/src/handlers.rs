//! The lines of each cause, in kopf's terms: a table of handlers that may fail permanently or temporarily.
//!
//! A handler is a pure function. It runs *before* the claim, and is retried with backoff until a time limit.
//! The controller claims and then prints its line, and retries nothing after the claim.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::doubled;

use crate::line::line;

/// The reason to call handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The Greeting has no claim. kopf: `@kopf.on.create`.
    Create,
    /// The message differs from the claimed one. kopf: `@kopf.on.update`, of a field.
    Update,
    /// The Greeting is being deleted and has the finalizer. kopf: `@kopf.on.delete`.
    Delete,
    /// The message is already claimed, by this process or another. kopf: `@kopf.on.resume`.
    Resume,
    /// A tick is due. kopf: `@kopf.timer`.
    Timer,
}

impl Cause {
    /// The value of the metrics' label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Resume => "resume",
            Self::Timer => "timer",
        }
    }

    /// The retries of its handlers. The handlers of one cause share a claim, so they are retried together.
    pub fn retry(self) -> Retry {
        let timeout = match self {
            // Longer than any log rotation; after it, the condition reports the failure.
            Self::Create | Self::Update | Self::Resume => Some(SignedDuration::from_hours(1)),
            // The deletion of the namespace waits for this.
            Self::Delete => Some(SignedDuration::from_mins(1)),
            // The next tick replaces one that could not be printed.
            Self::Timer => None,
        };
        Retry { backoff: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(1), timeout }
    }
}

/// The retries of a cause's handlers. kopf: the options `backoff` and `timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The wait after the first temporary failure; each further failure doubles it.
    pub backoff: SignedDuration,
    /// The longest wait.
    pub longest: SignedDuration,
    /// The time limit for all attempts. After it, the failure is permanent.
    pub timeout: Option<SignedDuration>,
}

/// Whether standard output accepts lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It has room for all lines of the message.
    Ready,
    /// Lines wait for its reader, and there is no room for more.
    Full,
    /// Writing to it fails.
    Failing,
}

/// The input of a handler. kopf: its keyword arguments.
#[derive(Clone, Copy, Debug)]
pub struct Kwargs<'a> {
    /// `spec.message`, if it is a string.
    pub message: Option<&'a str>,
    /// Whether its line can be printed.
    pub output: Output,
}

/// Why a handler returned no line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not until the spec changes. kopf: `kopf.PermanentError`.
    Permanent {
        /// The condition's reason.
        reason: &'static str,
        /// The text of the condition.
        message: &'static str,
    },
    /// Retried later. kopf: `kopf.TemporaryError`.
    Temporary {
        /// The text of the condition.
        message: &'static str,
        /// The time until the next attempt, if known; default the cause's backoff.
        delay: Option<SignedDuration>,
    },
}

/// A function that is called for a cause. It returns a line to print, or none.
#[derive(Clone, Copy, Debug)]
pub struct Handler {
    /// Its cause.
    pub cause: Cause,
    /// The handler.
    pub run: fn(&Kwargs<'_>) -> Result<Option<String>, Failure>,
}

/// The handlers, in the order of their calls. The tutorial has two scripts, and so two handlers on creation.
pub const HANDLERS: [Handler; 6] = [
    Handler { cause: Cause::Create, run: greeting_created },
    Handler { cause: Cause::Create, run: create },
    Handler { cause: Cause::Update, run: update },
    Handler { cause: Cause::Delete, run: delete },
    Handler { cause: Cause::Resume, run: resume },
    Handler { cause: Cause::Timer, run: timer },
];

fn greeting_created(kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    say("Greeting", kwargs)
}

fn create(kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    say("Create", kwargs)
}

fn update(kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    say("Update", kwargs)
}

fn delete(kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    say("Delete", kwargs)
}

/// Prints nothing: a restarted process only continues.
#[expect(clippy::unnecessary_wraps, reason = "all handlers have one type")]
fn resume(_: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    Ok(None)
}

fn timer(kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    say("Timer", kwargs)
}

fn say(prefix: &str, kwargs: &Kwargs<'_>) -> Result<Option<String>, Failure> {
    let message = kwargs.message.filter(|message| !message.is_empty()).ok_or(Failure::Permanent {
        reason: "NoMessage",
        message: "spec.message is missing, empty or not a string. Set it to have it printed.",
    })?;
    match kwargs.output {
        Output::Ready => Ok(Some(line(prefix, message))),
        Output::Full => Err(Failure::Temporary {
            message: "the reader of the manager's standard output was too slow",
            delay: None,
        }),
        Output::Failing => Err(Failure::Temporary {
            message: "writing to the manager's standard output failed",
            delay: None,
        }),
    }
}

/// Calls the handlers of a cause. Returns all lines, or the first failure.
pub fn call(cause: Cause, kwargs: &Kwargs<'_>) -> Result<Vec<String>, Failure> {
    let handlers = HANDLERS.iter().filter(|handler| handler.cause == cause);
    handlers.filter_map(|handler| (handler.run)(kwargs).transpose()).collect()
}

/// The failed attempts of one cause in this process. kopf stores them in an annotation. Here a restart drops
/// them, which saves writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The cause.
    pub cause: Cause,
    /// The generation; for a tick, its second.
    pub about: i64,
    /// The number of failures.
    pub times: u32,
    /// The time of the first failure.
    pub since: Timestamp,
}

/// The consequence of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A retry.
    Again {
        /// When to retry.
        at: Timestamp,
        /// The failed attempts so far.
        attempt: Attempt,
    },
    /// No retry until the spec changes.
    GivenUp {
        /// The condition's reason.
        reason: &'static str,
        /// The text of the condition.
        message: String,
    },
}

/// The condition's reason after the time limit.
pub const TIMED_OUT: &str = "TimedOut";

/// Decides about a failure. `before` has the earlier attempts; `uid` spreads the retries of many objects.
pub fn verdict(
    failure: &Failure,
    (cause, about): (Cause, i64),
    before: Option<&Attempt>,
    uid: &str,
    now: Timestamp,
) -> Verdict {
    let (message, delay) = match *failure {
        Failure::Permanent { reason, message } => {
            return Verdict::GivenUp { reason, message: message.to_owned() };
        }
        Failure::Temporary { message, delay } => (message, delay),
    };
    let before = before.filter(|attempt| attempt.cause == cause && attempt.about == about);
    let (times, since) = before.map_or((0, now), |attempt| (attempt.times, attempt.since));
    let Retry { backoff, longest, timeout } = cause.retry();
    if let Some(timeout) = timeout
        && now.duration_since(since) >= timeout
    {
        return Verdict::GivenUp {
            reason: TIMED_OUT,
            message: format!("Not printed within {timeout:#}: {message}."),
        };
    }
    let wait = delay.unwrap_or_else(|| jittered(doubled(backoff, times, longest), uid, times));
    let at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
    Verdict::Again { at, attempt: Attempt { cause, about, times: times.saturating_add(1), since } }
}

/// Subtracts up to a quarter, so that objects that failed together are not retried together.
fn jittered(wait: SignedDuration, uid: &str, times: u32) -> SignedDuration {
    let mut hasher = DefaultHasher::new();
    (uid, times).hash(&mut hasher);
    let permille = i32::try_from(hasher.finish() % 250).unwrap_or_default();
    wait - wait / 1000 * permille
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NO_MESSAGE: &str = "NoMessage";

    fn given(message: Option<&str>) -> Kwargs<'_> {
        Kwargs { message, output: Output::Ready }
    }

    #[rstest]
    #[case(Cause::Create, &["Greeting: Hi", "Create: Hi"])]
    #[case(Cause::Update, &["Update: Hi"])]
    #[case(Cause::Delete, &["Delete: Hi"])]
    #[case(Cause::Resume, &[])]
    #[case(Cause::Timer, &["Timer: Hi"])]
    fn returns_the_lines_of_each_cause(#[case] cause: Cause, #[case] lines: &[&str]) {
        assert_eq!(call(cause, &given(Some("Hi"))).unwrap(), lines);
    }

    #[rstest]
    #[case::missing(None)]
    #[case::empty(Some(""))]
    fn without_a_message_all_but_resume_fail_permanently(#[case] message: Option<&str>) {
        for cause in [Cause::Create, Cause::Update, Cause::Delete, Cause::Timer] {
            // Even without room, because room would not help.
            let failure = call(cause, &Kwargs { message, output: Output::Full }).unwrap_err();
            assert!(
                matches!(failure, Failure::Permanent { reason: NO_MESSAGE, .. }),
                "{cause:?}: {failure:?}"
            );
        }
        assert_eq!(call(Cause::Resume, &given(message)), Ok(Vec::new()));
    }

    #[test]
    fn a_blocked_output_is_a_temporary_failure() {
        for output in [Output::Full, Output::Failing] {
            let failure = call(Cause::Create, &Kwargs { message: Some("Hi"), output }).unwrap_err();
            assert!(matches!(failure, Failure::Temporary { .. }));
        }
    }

    fn for_now(delay: Option<SignedDuration>) -> Failure {
        Failure::Temporary { message: "it rains", delay }
    }

    #[test]
    fn retries_back_off_until_the_time_limit() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (mut now, mut before, mut waits) = (start, None, Vec::new());
        let message = loop {
            match verdict(&for_now(None), (Cause::Create, 1), before.as_ref(), "u", now) {
                Verdict::Again { at, attempt } => {
                    waits.push(at.duration_since(now).as_millis());
                    (now, before) = (at, Some(attempt));
                }
                Verdict::GivenUp { reason, message } => {
                    assert_eq!(reason, TIMED_OUT);
                    break message;
                }
            }
        };
        assert!((750..=1_000).contains(&waits[0]) && (1_500..=2_000).contains(&waits[1]), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= 60_000), "{waits:?}");
        assert!(now.duration_since(start) >= SignedDuration::from_hours(1));
        assert!(waits.len() < 100, "about one a minute: {}", waits.len());
        assert_eq!(message, "Not printed within 1h: it rains.");
    }

    #[test]
    fn a_known_delay_counts_and_a_new_generation_starts_over() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let delay = SignedDuration::from_secs(7);
        let Verdict::Again { at, attempt } =
            verdict(&for_now(Some(delay)), (Cause::Update, 1), None, "u", now)
        else {
            panic!()
        };
        assert_eq!((at, attempt.times), (now + delay, 1));
        let later = now + SignedDuration::from_hours(2);
        let again = |about| verdict(&for_now(None), (Cause::Update, about), Some(&attempt), "u", later);
        assert!(matches!(again(1), Verdict::GivenUp { .. }));
        assert!(matches!(again(2), Verdict::Again { attempt: Attempt { times: 1, .. }, .. }));
    }

    #[test]
    fn a_tick_has_no_time_limit() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let before = Attempt { cause: Cause::Timer, about: 5, times: 90, since: Timestamp::MIN };
        let verdict = verdict(&for_now(None), (Cause::Timer, 5), Some(&before), "u", now);
        assert!(matches!(verdict, Verdict::Again { .. }));
    }

    #[test]
    fn spreads_the_retries_of_objects() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |uid: &str| verdict(&for_now(None), (Cause::Create, 1), None, uid, now);
        assert_ne!(at("a"), at("b"));
        assert_eq!(at("a"), at("a"));
    }
}
