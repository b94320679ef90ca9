//! What is said on each cause, in kopf's words: handlers, registered in one table, that may fail for good or for now.
//!
//! A handler is a pure function of what it is given. It runs *before* the claim: until then it is retried, ever more
//! slowly, up to a time limit. What it returns is claimed and then printed, and nothing after the claim is retried.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::doubled;

use crate::line::line;

/// Why handlers are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nothing was ever claimed of this Greeting. kopf: `@kopf.on.create`.
    Create,
    /// The message is another one than was claimed last. kopf: `@kopf.on.update`, of a field.
    Update,
    /// Its deletion was asked for and our finalizer is still on. kopf: `@kopf.on.delete`.
    Delete,
    /// What it says was claimed already, by this process or by one before. kopf: `@kopf.on.resume`.
    Resume,
    /// A tick is due. kopf: `@kopf.timer`.
    Timer,
}

impl Cause {
    /// As metrics say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Resume => "resume",
            Self::Timer => "timer",
        }
    }

    /// How its handlers are retried. Those of one cause are claimed together, so they are retried together.
    pub fn retry(self) -> Retry {
        let timeout = match self {
            // Longer than any rotation of logs; the condition then says that it was not said.
            Self::Create | Self::Update | Self::Resume => Some(SignedDuration::from_hours(1)),
            // A namespace that is deleted waits for this.
            Self::Delete => Some(SignedDuration::from_mins(1)),
            // The next tick takes the place of one that could not be said.
            Self::Timer => None,
        };
        Retry { backoff: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(1), timeout }
    }
}

/// How a cause's handlers are retried. kopf: the options `backoff` and `timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The wait after the first temporary failure; doubled with each further one.
    pub backoff: SignedDuration,
    /// The longest wait.
    pub longest: SignedDuration,
    /// For how long in all. What fails for longer has failed for good.
    pub timeout: Option<SignedDuration>,
}

/// Whether standard output takes lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// There is room for what the message comes to.
    Ready,
    /// Lines wait for whoever reads it, and there is no room for more.
    Full,
    /// Writing to it fails.
    Failing,
}

/// What a handler is given. kopf: its keyword arguments.
#[derive(Clone, Copy, Debug)]
pub struct Kwargs<'a> {
    /// `spec.message`, where it is a text.
    pub message: Option<&'a str>,
    /// Whether its line could be printed.
    pub output: Output,
}

/// Why a handler did not say anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It will not until the spec changes. kopf: `kopf.PermanentError`.
    Permanent {
        /// The condition's reason.
        reason: &'static str,
        /// What a person reads.
        message: &'static str,
    },
    /// It may, later. kopf: `kopf.TemporaryError`.
    Temporary {
        /// What a person reads.
        message: &'static str,
        /// When it is worth another try, if that is known; else the cause's backoff says.
        delay: Option<SignedDuration>,
    },
}

/// A function that is called for a cause: the line to say, or none.
#[derive(Clone, Copy, Debug)]
pub struct Handler {
    /// What it is called for.
    pub cause: Cause,
    /// What is called.
    pub run: fn(&Kwargs<'_>) -> Result<Option<String>, Failure>,
}

/// The handlers, in the order in which they are called. The post has two scripts, and so two handlers on creation.
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

/// Says nothing: what a restart finds is taken up where it was, and that is all there is to it.
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
        message: "spec.message is missing, empty or no text: nothing is said until it is set.",
    })?;
    match kwargs.output {
        Output::Ready => Ok(Some(line(prefix, message))),
        Output::Full => Err(Failure::Temporary {
            message: "lines wait for whoever reads the manager's standard output",
            delay: None,
        }),
        Output::Failing => Err(Failure::Temporary {
            message: "the manager's standard output cannot be written",
            delay: None,
        }),
    }
}

/// Calls the handlers of a cause. All of them say their lines, or the first failure is all there is.
pub fn call(cause: Cause, kwargs: &Kwargs<'_>) -> Result<Vec<String>, Failure> {
    let handlers = HANDLERS.iter().filter(|handler| handler.cause == cause);
    handlers.filter_map(|handler| (handler.run)(kwargs).transpose()).collect()
}

/// The tries of one cause that have failed for now, in this process. kopf keeps as much in an annotation; a restart
/// begins anew here, which costs no write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What was tried.
    pub cause: Cause,
    /// Of which generation; of a tick, of which second.
    pub about: i64,
    /// How often it has failed.
    pub times: u32,
    /// When it first did.
    pub since: Timestamp,
}

/// What becomes of a handler that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is tried again.
    Again {
        /// When.
        at: Timestamp,
        /// What is to be remembered until then.
        attempt: Attempt,
    },
    /// It is not, until the spec changes.
    GivenUp {
        /// The condition's reason.
        reason: &'static str,
        /// What a person reads.
        message: String,
    },
}

/// The condition's reason where a time limit has passed.
pub const TIMED_OUT: &str = "TimedOut";

/// Says what becomes of a failure. `before` are the tries of the same; `uid` spreads the tries of many.
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
            message: format!("Not said: for {timeout:#} {message}."),
        };
    }
    let wait = delay.unwrap_or_else(|| jittered(doubled(backoff, times, longest), uid, times));
    let at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
    Verdict::Again { at, attempt: Attempt { cause, about, times: times.saturating_add(1), since } }
}

/// Less up to a quarter, by who waits and how often: what failed together is not tried together.
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
    fn each_cause_has_its_lines(#[case] cause: Cause, #[case] lines: &[&str]) {
        assert_eq!(call(cause, &given(Some("Hi"))).unwrap(), lines);
    }

    #[rstest]
    #[case::missing(None)]
    #[case::empty(Some(""))]
    fn without_a_message_all_but_resume_fail_for_good(#[case] message: Option<&str>) {
        for cause in [Cause::Create, Cause::Update, Cause::Delete, Cause::Timer] {
            // Also where there is no room: it would not help.
            let failure = call(cause, &Kwargs { message, output: Output::Full }).unwrap_err();
            assert!(
                matches!(failure, Failure::Permanent { reason: NO_MESSAGE, .. }),
                "{cause:?}: {failure:?}"
            );
        }
        assert_eq!(call(Cause::Resume, &given(message)), Ok(Vec::new()));
    }

    #[test]
    fn an_output_that_takes_nothing_is_a_failure_for_now() {
        for output in [Output::Full, Output::Failing] {
            let failure = call(Cause::Create, &Kwargs { message: Some("Hi"), output }).unwrap_err();
            assert!(matches!(failure, Failure::Temporary { .. }));
        }
    }

    fn for_now(delay: Option<SignedDuration>) -> Failure {
        Failure::Temporary { message: "it rains", delay }
    }

    #[test]
    fn tries_become_rarer_and_end() {
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
        assert_eq!(message, "Not said: for 1h it rains.");
    }

    #[test]
    fn a_delay_that_is_known_is_kept_to_and_another_generation_begins_anew() {
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
    fn a_tick_is_never_given_up() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let before = Attempt { cause: Cause::Timer, about: 5, times: 90, since: Timestamp::MIN };
        let verdict = verdict(&for_now(None), (Cause::Timer, 5), Some(&before), "u", now);
        assert!(matches!(verdict, Verdict::Again { .. }));
    }

    #[test]
    fn what_fails_together_is_tried_at_different_times() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |uid: &str| verdict(&for_now(None), (Cause::Create, 1), None, uid, now);
        assert_ne!(at("a"), at("b"));
        assert_eq!(at("a"), at("a"));
    }
}
