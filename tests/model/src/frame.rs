//! The moment of a search, and the times of a schedule.
//!
//! The state counts half-days. The plan gets their times relative to `NOW`, and a schedule whose due times are
//! moved as well. Statuses, ledger lines and pods keep half-days, so that they do not depend on the clock.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_daemonjob::api::DaemonJobStatus;
use quintet_daemonjob::ledger::Entry;

/// A midnight, for the schedules. It begins an hour, because deleted nodes are counted by the hour.
pub const NOW: Timestamp = Timestamp::constant(1_780_272_000, 0);
/// In seconds. Longer than every other wait of a plan, except the count of deleted nodes.
pub const HALF_DAY: i64 = 12 * 3_600;
/// The first half-day, in which the DaemonJob is created. No due time is before it.
pub const FIRST: u8 = 1;
/// The last half-day.
pub const LAST: u8 = 4;
/// startingDeadlineSeconds. A due time is in time in its own half-day only.
pub const STARTING_DEADLINE: i64 = 3_600;

/// A time, moved by half-days.
fn moved(at: Timestamp, half_days: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(half_days * HALF_DAY)).unwrap_or(at)
}

/// The time of a half-day, for a clock that shows another one.
pub fn time_of(half_day: u8, clock: u8) -> Timestamp {
    moved(NOW, i64::from(half_day) - i64::from(clock))
}

/// The half-day of a time, for a clock that shows another one.
pub fn half_day_of(at: Timestamp, clock: u8) -> u8 {
    let half_days = at.duration_since(NOW).as_secs() / HALF_DAY + i64::from(clock);
    u8::try_from(half_days).unwrap_or_default()
}

/// The fields of a schedule. `NOW` is a midnight, whatever the clock shows.
pub fn crontab(schedule: u8, clock: u8) -> Option<&'static str> {
    let parity = schedule.checked_sub(1)?;
    Some(if clock % 2 == parity { "0 0 * * *" } else { "0 12 * * *" })
}

fn move_times(status: &mut DaemonJobStatus, half_days: i64) {
    let due = status.rollout.as_mut().map(|rollout| &mut rollout.due_time);
    let schedule = status.schedule.as_mut();
    let of_schedule = schedule.map(|schedule| [&mut schedule.since, &mut schedule.last_due_time]);
    for time in due.into_iter().chain(of_schedule.into_iter().flatten()).flatten() {
        *time = Time(moved(time.0, half_days));
    }
}

/// A status of the plan, as the search keeps it: with the number of the schedule.
pub fn stored_status(mut status: DaemonJobStatus, schedule: u8, clock: u8) -> DaemonJobStatus {
    move_times(&mut status, clock.into());
    if let Some(of_status) = &mut status.schedule {
        of_status.schedule = schedule.to_string();
        of_status.next_due_time = None;
    }
    status
}

/// A kept status, as the plan sees it.
pub fn shown_status(mut status: DaemonJobStatus, clock: u8) -> DaemonJobStatus {
    move_times(&mut status, -i64::from(clock));
    if let Some(schedule) = &mut status.schedule {
        let number = schedule.schedule.parse().unwrap_or_default();
        crontab(number, clock).unwrap_or_default().clone_into(&mut schedule.schedule);
    }
    status
}

/// A ledger line of the plan, as the search keeps it.
pub fn stored_line(entry: Entry, clock: u8) -> Entry {
    move_line(entry, clock.into())
}

/// A kept ledger line, as the plan sees it.
pub fn shown_line(entry: Entry, clock: u8) -> Entry {
    move_line(entry, -i64::from(clock))
}

fn move_line(mut entry: Entry, half_days: i64) -> Entry {
    if let Some(attempt) = &mut entry.attempt {
        attempt.due = attempt.due.map(|due| moved(due, half_days));
    }
    entry
}

/// The parts of a kept status that concern its rollout and its schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The template in force.
    pub template: Option<u8>,
    pub has_token: bool,
    /// The due time of the rollout, or 0.
    pub due: u8,
    pub schedule: u8,
    /// The half-day up to which no due time counts.
    pub since: u8,
    /// The last due time that began a run or was passed over, or 0.
    pub last_due: u8,
}

impl Reported {
    /// `hashes` are those of the templates.
    pub fn of(status: &DaemonJobStatus, hashes: &[String]) -> Self {
        let hash = status.template_hash.as_ref();
        let template = hash.and_then(|hash| hashes.iter().position(|one| one == hash));
        let rollout = status.rollout.as_ref();
        let schedule = status.schedule.as_ref();
        let half_day = |time: Option<&Time>| time.map_or(0, |time| half_day_of(time.0, 0));
        Self {
            template: template.and_then(|template| u8::try_from(template).ok()),
            has_token: rollout.is_some_and(|rollout| rollout.retry_token.is_some()),
            due: half_day(rollout.and_then(|rollout| rollout.due_time.as_ref())),
            schedule: schedule.map_or(0, |schedule| schedule.schedule.parse().unwrap_or_default()),
            since: half_day(schedule.and_then(|schedule| schedule.since.as_ref())),
            last_due: half_day(schedule.and_then(|schedule| schedule.last_due_time.as_ref())),
        }
    }
}
