//! `quintet rollout`: follows and changes the rollouts of DaemonJobs and PodSets.
//!
//! The rules are in the crates of the kinds. A command that a kind lacks is one sentence.

mod screen;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::command::{change, progress};
use quintet_podset::api::PodSet;
use quintet_podset::history::{self, History};
use quintet_podset::labels::UID_LABEL;
use quintet_podset::revision::CONTROLLER_REVISIONS;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::rollout::{Change, RolloutState, RolloutStatus};
use quintet_runtime::model::table::one_line;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::screen::{Screen, tell};
use self::target::{Kind, Rollout, Target};
use crate::parse::parse_duration;

/// The pause between two reads of the status.
const POLL: Duration = Duration::from_secs(1);

/// The exit code of `status` for a rollout that failed, or was not complete in time.
const FAILED: u8 = 1;
/// The exit code of `status` for a rollout that needs a user.
const HELD: u8 = 3;

/// Follow, approve, pause, resume, retry, undo or restart the rollout of a DaemonJob or PodSet.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    quintet rollout status daemonjob/NAME --timeout=30m\n  \
    quintet rollout approve daemonjob/NAME --wave=1\n  \
    quintet rollout pause daemonjob/NAME --reason=\"incident 7\"\n  \
    quintet rollout resume daemonjob/NAME\n  \
    quintet rollout retry daemonjob/NAME\n  \
    quintet rollout status podset/NAME --timeout=5m\n  \
    quintet rollout history podset/NAME\n  \
    quintet rollout undo podset/NAME --to-revision=2\n  \
    quintet rollout pause podset/NAME\n  \
    quintet rollout resume podset/NAME\n  \
    quintet rollout restart podset/NAME")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether the exit code is that of `status`.
    pub fn is_status(&self) -> bool {
        matches!(self.command, Command::Status(_))
    }
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(StatusArgs),
    Approve(ApproveArgs),
    Pause(PauseArgs),
    /// Continue a paused rollout.
    Resume(Target),
    Retry(RetryArgs),
    History(HistoryArgs),
    Undo(UndoArgs),
    /// Replace the pods of a PodSet by new ones of the same template, as a rollout does: partition and OnDelete keep
    /// pods.
    Restart(Target),
}

/// Show how far the rollout is, until it is complete, failed or held.
///
/// On a terminal, the command shows a progress bar for each wave of a DaemonJob. Otherwise, it prints a line for each
/// change.
///
/// The exit code is 0 if the rollout is complete. The exit code is 1 if the rollout failed or was not complete in time,
/// and 2 if the command cannot read the status. The exit code is 3 if the rollout of a DaemonJob is held: a user or the
/// failure policy paused it, a wave failed or waits for an approval, or too many nodes are unhealthy. With
/// --watch=false, the exit code of a rollout that continues is 0, as for kubectl.
#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    target: Target,

    /// Wait until the rollout is complete, failed or held. With --watch=false, print the progress once.
    #[arg(short, long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    watch: bool,

    /// Wait at most this long (default: without a limit).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// Approve a wave of a DaemonJob, so that the next wave starts.
///
/// The command writes the annotation dj.dysproz.io/approved with the number of the rollout and the wave. The approval
/// has no effect on other rollouts. A user who may approve a wave may also change the template.
#[derive(Debug, clap::Args)]
struct ApproveArgs {
    #[command(flatten)]
    target: Target,

    /// The wave to approve (default: the current wave). To continue after a failed wave, you must pass its number.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    wave: Option<u64>,

    /// Approve the wave before it waits for its approval.
    #[arg(long)]
    ahead: bool,
}

/// Pause a rollout: a DaemonJob gets no further pods, and of a PodSet only pods that end or are deleted are replaced.
///
/// Running pods continue. For a DaemonJob, the command writes the annotation dj.dysproz.io/paused, which a GitOps tool
/// does not revert.
#[derive(Debug, clap::Args)]
struct PauseArgs {
    #[command(flatten)]
    target: Target,

    /// The reason, which the status of the DaemonJob shows (default: "paused by quintet rollout").
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: Option<String>,
}

/// Retry the failed nodes of a DaemonJob.
///
/// The command sets spec.retryToken to a new value, which begins a new rollout. Nodes that are done do not run again.
/// If a GitOps tool applies the manifest, set the same retryToken in the manifest.
#[derive(Debug, clap::Args)]
struct RetryArgs {
    #[command(flatten)]
    target: Target,

    /// The new value of spec.retryToken (default: the current time).
    #[arg(long, value_name = "TEXT", value_parser = parse_token)]
    token: Option<String>,
}

/// List the stored templates of a PodSet, or print one of them.
#[derive(Debug, clap::Args)]
struct HistoryArgs {
    #[command(flatten)]
    target: Target,

    /// Print the template of this revision as JSON.
    #[arg(long, value_name = "NUMBER")]
    revision: Option<i64>,
}

/// Return to an older template of a PodSet.
///
/// You need permission to get and patch the PodSet, and to list ControllerRevisions.
#[derive(Debug, clap::Args)]
struct UndoArgs {
    #[command(flatten)]
    target: Target,

    /// The revision to return to (default: status.currentRevision, or else the last one before the template of
    /// the spec).
    #[arg(long, value_name = "NUMBER")]
    to_revision: Option<i64>,
}

/// Parses a reason: one line, as in the status.
fn parse_reason(text: &str) -> Result<String, String> {
    let is_line = !text.trim().is_empty() && !text.chars().any(char::is_control);
    (is_line && text.chars().count() <= 256)
        .then(|| text.to_owned())
        .ok_or_else(|| "must be one line of 1 to 256 characters".to_owned())
}

/// Parses a retryToken. The schema has the same limit.
fn parse_token(text: &str) -> Result<String, String> {
    let is_token = (1..=63).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    is_token.then(|| text.to_owned()).ok_or_else(|| "must be one line of 1 to 63 characters".to_owned())
}

/// Runs the command, and prints its result. Returns the exit code.
pub async fn run(args: &Args) -> Result<ExitCode> {
    let message = match &args.command {
        Command::Status(args) => return status(args).await,
        Command::Approve(args) => approve(args).await?,
        Command::Pause(args) => pause(args).await?,
        Command::Resume(target) => resume(target).await?,
        Command::Retry(args) => retry(args).await?,
        Command::History(args) => history(args).await?,
        Command::Undo(args) => undo(args).await?,
        Command::Restart(target) => restart(target).await?,
    };
    tell(&message);
    Ok(ExitCode::SUCCESS)
}

async fn status(args: &StatusArgs) -> Result<ExitCode> {
    let rollout = args.target.rollout().await?;
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut screen = Screen::new();
    let mut is_known = false;
    loop {
        let now = Instant::now();
        let polled = match deadline {
            Some(deadline) => timeout_at(deadline, poll(&rollout)).await,
            None => Ok(poll(&rollout).await),
        };
        let Ok(polled) = polled else {
            let why = format!("the rollout of {rollout} was not complete in time: {}", screen.text());
            drop(screen);
            return Ok(crate::fail(&why, if is_known { FAILED } else { crate::NO_ANSWER }));
        };
        let is_open = match polled? {
            Ok(status) if status.state != RolloutState::Continues || !args.watch => {
                screen.end(&status);
                return Ok(report(&status));
            }
            Err(why) if !args.watch => bail!(why),
            Ok(status) => {
                is_known = true;
                screen.show(&status)
            }
            Err(why) => {
                is_known = false;
                screen.print(&why)
            }
        };
        // A closed output (`head`) ends the command.
        if !is_open {
            return Ok(ExitCode::SUCCESS);
        }
        sleep_until(now + POLL).await;
    }
}

/// The status of the rollout, or the reason of a failure that a retry may fix.
async fn poll(rollout: &Rollout) -> Result<Result<RolloutStatus, String>> {
    Ok(match rollout.kind {
        Kind::DaemonJob => rollout.poll::<DaemonJob>().await?.map(|job| progress::progress(&job)),
        Kind::PodSet => rollout.poll::<PodSet>().await?.map(|podset| history::progress(&podset)),
    })
}

/// Prints the last state of a rollout. Returns the exit code.
fn report(status: &RolloutStatus) -> ExitCode {
    let lines = [&status.message].into_iter().chain(&status.details);
    let text = lines.map(|line| one_line(line)).collect::<Vec<_>>().join("\n");
    let code = exit_code(status.state);
    if status.state == RolloutState::Failed {
        return crate::fail(&text, code);
    }
    tell(&text);
    ExitCode::from(code)
}

fn exit_code(state: RolloutState) -> u8 {
    match state {
        RolloutState::Continues | RolloutState::Complete => 0,
        RolloutState::Failed => FAILED,
        RolloutState::Held => HELD,
    }
}

async fn approve(args: &ApproveArgs) -> Result<String> {
    let otherwise = "rollout approve supports only DaemonJobs: a PodSet has no waves";
    let rollout = args.target.rollout_of(Kind::DaemonJob, otherwise).await?;
    rollout.change::<DaemonJob>(|job| change::approve(job, args.wave, args.ahead)).await
}

async fn pause(args: &PauseArgs) -> Result<String> {
    let reason = args.reason.as_deref();
    if reason.is_some() && args.target.parse()?.0 == Kind::PodSet {
        bail!("--reason supports only DaemonJobs: a PodSet has no field for a reason");
    }
    let rollout = args.target.rollout().await?;
    let reason = reason.unwrap_or("paused by quintet rollout");
    match rollout.kind {
        Kind::DaemonJob => rollout.change::<DaemonJob>(|job| change::pause(job, reason)).await,
        Kind::PodSet => change_podset(&rollout, "paused", |podset| history::pause(podset, true)).await,
    }
}

async fn resume(target: &Target) -> Result<String> {
    let rollout = target.rollout().await?;
    match rollout.kind {
        Kind::DaemonJob => rollout.change::<DaemonJob>(change::resume).await,
        Kind::PodSet => change_podset(&rollout, "resumed", |podset| history::pause(podset, false)).await,
    }
}

async fn retry(args: &RetryArgs) -> Result<String> {
    let otherwise = "rollout retry supports only DaemonJobs: a PodSet replaces failed pods without a command";
    let rollout = args.target.rollout_of(Kind::DaemonJob, otherwise).await?;
    // Two commands in a second are two rollouts.
    let token = args.token.clone().unwrap_or_else(|| format!("{:.3}", Clock::System.now()));
    rollout.change::<DaemonJob>(|job| change::retry(job, &token)).await
}

async fn restart(target: &Target) -> Result<String> {
    let otherwise = "rollout restart supports only PodSets: to run a DaemonJob again on all nodes, change an annotation \
                     of its template; to retry its failed nodes, use rollout retry";
    let rollout = target.rollout_of(Kind::PodSet, otherwise).await?;
    let now = Clock::System.now();
    change_podset(&rollout, "restarted", |podset| history::restart(podset, now)).await
}

/// Changes the spec of a PodSet.
async fn change_podset(
    rollout: &Rollout,
    done: &str,
    operations: impl Fn(&PodSet) -> Result<Value, String>,
) -> Result<String> {
    let message = format!("{rollout} {done}");
    let change = |podset: &PodSet| {
        operations(podset).map(|operations| Change { operations, message: message.clone() })
    };
    rollout.change::<PodSet>(change).await
}

async fn history(args: &HistoryArgs) -> Result<String> {
    let otherwise = "rollout history supports only PodSets: the templates of a DaemonJob are not stored";
    let rollout = args.target.rollout_of(Kind::PodSet, otherwise).await?;
    let podset: PodSet = rollout.read().await?;
    let history = history_of(&rollout, &podset).await?;
    let text = match args.revision {
        Some(number) => format!("{:#}\n", history.template(number).map_err(|why| anyhow!(why))?.0),
        None => history.table(),
    };
    Ok(text.trim_end().to_owned())
}

async fn undo(args: &UndoArgs) -> Result<String> {
    let otherwise = "rollout undo supports only PodSets: apply the older manifest of a DaemonJob instead";
    let rollout = args.target.rollout_of(Kind::PodSet, otherwise).await?;
    let podset: PodSet = rollout.read().await?;
    let history = history_of(&rollout, &podset).await?;
    let Some(undo) = history.undo(args.to_revision).map_err(|why| anyhow!(why))? else {
        return Ok(format!("{rollout} has the template of this revision already"));
    };
    if !rollout.patch(&podset.key(), &undo.operations).await? {
        return Err(rollout.changed());
    }
    Ok(format!("{rollout} returns to revision {} ({})", undo.number, undo.images))
}

async fn history_of<'a>(rollout: &Rollout, podset: &'a PodSet) -> Result<History<'a>> {
    let key = podset.key();
    let selector = format!("{UID_LABEL}={}", key.uid);
    let (cluster, namespace) = (&rollout.cluster, &rollout.namespace);
    let found = cluster.reads.list(&CONTROLLER_REVISIONS, namespace, &selector).await;
    let stored = found.map_err(|error| cluster.sorry("cannot list the ControllerRevisions", &error))?;
    Ok(History::of(podset, &key, stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn rejects_commands_that_a_kind_lacks() {
        for (line, expected) in [
            ("undo daemonjob/a", "rollout undo supports only PodSets: "),
            ("history dj/a", "rollout history supports only PodSets: "),
            ("restart daemonjob a", "rollout restart supports only PodSets: "),
            ("approve podset/a", "rollout approve supports only DaemonJobs: "),
            ("retry pset/a", "rollout retry supports only DaemonJobs: "),
            ("pause podset/a --reason=x", "--reason supports only DaemonJobs: "),
            (
                "status book/a",
                "rollout supports only DaemonJobs and PodSets, got \"book\": use daemonjob/NAME or ",
            ),
            ("resume a", "\"a\" has no resource type: use daemonjob/a or podset/a"),
        ] {
            let words = ["rollout"].into_iter().chain(line.split(' '));
            let refusal = run(&Line::try_parse_from(words).unwrap().args).await.unwrap_err().to_string();
            assert!(refusal.starts_with(expected) && !refusal.contains('\n'), "{line}: {refusal}");
        }
    }

    #[test]
    fn reasons_and_tokens_are_short_lines() {
        assert_eq!(parse_reason("incident 7"), Ok("incident 7".to_owned()));
        for reason in ["", " ", "a\nb", "\u{1b}[31m", &"a".repeat(257)] {
            assert!(parse_reason(reason).is_err(), "{reason:?}");
        }
        assert_eq!(parse_token("2026-11-24T00:00:00Z"), Ok("2026-11-24T00:00:00Z".to_owned()));
        for token in ["", "a\nb", &"a".repeat(64)] {
            assert!(parse_token(token).is_err(), "{token:?}");
        }
    }

    #[test]
    fn the_state_determines_the_exit_code() {
        let states =
            [RolloutState::Continues, RolloutState::Complete, RolloutState::Failed, RolloutState::Held];
        assert_eq!(states.map(exit_code), [0, 0, 1, 3]);
    }
}
