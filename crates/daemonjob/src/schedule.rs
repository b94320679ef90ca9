//! The schedule: which due time begins a run now. A pure function of the schedule, the status and the time.
//!
//! The crontab fields match local times. As for a CronJob, a local time that does not exist is not a due time. A
//! local time that exists twice is due the first time. A due time begins at most one run: the status has it before
//! the first pod of the run. The manager's clock decides, and a clock that was set back repeats no due time.

use std::cmp::Reverse;
use std::sync::LazyLock;

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions, parse_crontab_with};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions::is_true;

use crate::api::{DaemonJob, ScheduleStatus, ScheduledRun};

/// The longest wait for a due time. A schedule that waits longer is invalid.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(5 * 366 * 24);
/// The shortest time between two due times.
const SHORTEST_GAP: SignedDuration = SignedDuration::from_mins(1);
/// The number of due times in the history of the status.
const KEPT_DUE_TIMES: usize = 5;

/// The time zones in the program, so that neither the image nor the machine needs them.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The due times of a schedule.
#[derive(Clone, Debug)]
pub struct DueTimes {
    crontab: Crontab,
    zone: TimeZone,
}

impl DueTimes {
    /// Parses `schedule` and `timeZone`. An error is one sentence without a full stop.
    pub fn parse(schedule: &str, zone: Option<&str>) -> Result<Self, String> {
        let fields: Vec<&str> = schedule.split_ascii_whitespace().collect();
        if fields.len() != 5 {
            return Err(format!(
                "schedule must have five fields (minute, hour, day of month, month, day of week), got {schedule:?}"
            ));
        }
        if let Some(field) = fields.iter().find(|field| !field.split([',', '-', '/']).all(is_plain)) {
            return Err(format!(
                "schedule may have numbers, names of months and weekdays, *, lists, ranges and steps, got {field:?}"
            ));
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let crontab = parse_crontab_with(&fields.join(" "), options).map_err(|error| {
            let text = error.to_string();
            let why = text.rsplit_once("^ ").map_or(&*text, |(_, why)| why);
            format!("schedule {schedule:?} is invalid: {why}")
        })?;
        let zone = zone.map_or(Ok(TimeZone::UTC), |zone| {
            let unknown = || format!("timeZone must be a name in the IANA time zone database, got {zone:?}");
            ZONES.get(zone).map_err(|_| unknown())
        })?;
        Ok(Self { crontab, zone })
    }

    /// The first due time after a time. None: there is none within five years.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let horizon = after.checked_add(LONGEST_WAIT).unwrap_or(Timestamp::MAX);
        // The crontab has no time zone, so a local time stands for itself as a time in UTC.
        let mut local = Offset::UTC.to_timestamp(self.zone.to_datetime(after)).ok()?;
        while local < horizon {
            local = self.crontab.find_next(local).ok()?.timestamp();
            let found = self.zone.to_ambiguous_timestamp(Offset::UTC.to_datetime(local));
            if matches!(found.offset(), AmbiguousOffset::Gap { .. }) {
                continue;
            }
            // The first of two times. It may be earlier than `after`, when the clocks have been set back.
            let at = found.compatible().ok()?;
            if at > after {
                return Some(at);
            }
        }
        None
    }

    /// The last due time after one time and not after another.
    pub fn last_within(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut last = self.next_after(after).filter(|at| *at <= until)?;
        // No due time is after `end` and not after `until`.
        let mut end = until;
        while end.duration_since(last) >= SHORTEST_GAP {
            let middle = last.checked_add(end.duration_since(last) / 2).ok()?;
            match self.next_after(middle).filter(|at| *at <= until) {
                Some(later) => last = later,
                None => end = middle,
            }
        }
        Some(last)
    }
}

/// Whether a part of a field is a number, the name of a month or weekday, or `*`. The crate knows further forms, such
/// as `L`, that a CronJob does not have.
fn is_plain(part: &str) -> bool {
    part == "*"
        || !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
        || part.len() == 3 && part.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// The times up to which no due time begins a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// When the schedule was last changed, or the DaemonJob resumed.
    pub since: Timestamp,
    /// The last due time whose run began, was held or was missed.
    pub last: Option<Timestamp>,
}

impl Horizon {
    /// The time after which due times count.
    fn at(self) -> Timestamp {
        self.last.map_or(self.since, |last| last.max(self.since))
    }
}

/// The due time of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No due time has come.
    Waits,
    /// The run of this due time may begin.
    Begins(Timestamp),
    /// The run of this due time must not begin any more.
    Missed(Timestamp),
}

/// Decides whether a due time begins a run. Of several due times, only the last one counts. `deadline` is
/// startingDeadlineSeconds.
pub fn decide(
    times: &DueTimes,
    horizon: Horizon,
    deadline: Option<SignedDuration>,
    now: Timestamp,
) -> Decision {
    let Some(due) = times.last_within(horizon.at(), now) else { return Decision::Waits };
    let is_late = deadline.is_some_and(|deadline| late_at(due, deadline) <= now);
    if is_late { Decision::Missed(due) } else { Decision::Begins(due) }
}

/// The first second in which it is too late for a run to begin.
fn late_at(due: Timestamp, deadline: SignedDuration) -> Timestamp {
    let end = due.checked_add(deadline).and_then(|end| end.checked_add(SignedDuration::from_secs(1)));
    end.unwrap_or(Timestamp::MAX)
}

/// Why a due time began no run. The history of the status has the names of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum PassedOver {
    /// Failed nodes, or a failed wave, stop the rollout.
    Held,
    /// startingDeadlineSeconds have passed.
    Missed,
}

impl PassedOver {
    /// Why a due time in the history began no run. None if a run began.
    pub fn of(one: &ScheduledRun) -> Option<Self> {
        one.result.as_deref()?.parse().ok()
    }
}

/// The schedule in one reconcile.
#[derive(Clone, Debug)]
pub struct Agenda {
    /// The next due time, or why the schedule is invalid.
    pub next: Result<Timestamp, String>,
    /// The due time that has come.
    pub decision: Decision,
    /// When it is too late for the run of that due time to begin.
    pub late_at: Option<Timestamp>,
    /// The due time whose run begins in this reconcile.
    pub begins: Option<Timestamp>,
    /// The due time that begins no run, and the reason.
    passed_over: Option<(Timestamp, PassedOver)>,
    horizon: Horizon,
}

impl Agenda {
    /// The next due time. None if the schedule is invalid.
    pub fn next_due_time(&self) -> Option<Timestamp> {
        self.next.as_ref().ok().copied()
    }

    /// The schedule of a DaemonJob. None without a schedule.
    pub fn of(job: &DaemonJob, now: Timestamp) -> Option<Self> {
        let spec = &job.spec;
        let schedule = spec.schedule.as_deref()?;
        let is_suspended = spec.suspend == Some(true);
        let before = job.status.as_ref();
        let resumes = before.is_some_and(|before| is_true(&before.conditions, "Suspended")) && !is_suspended;
        let before = before.and_then(|before| before.schedule.as_ref());
        let is_same =
            before.is_some_and(|before| before.schedule == schedule && before.time_zone == spec.time_zone);
        let since = before.and_then(|before| before.since.as_ref()).filter(|_| is_same && !resumes);
        let horizon = Horizon {
            since: since.map_or(whole_seconds(now), |since| since.0),
            last: before.and_then(|before| before.last_due_time.as_ref()).map(|last| last.0),
        };
        let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
        let mut decision = Decision::Waits;
        let next = DueTimes::parse(schedule, spec.time_zone.as_deref()).and_then(|times| {
            if !is_suspended {
                decision = decide(&times, horizon, deadline, now);
            }
            let next = times.next_after(horizon.at().max(now));
            next.ok_or_else(|| format!("schedule {schedule:?} has no due time within five years"))
        });
        let late_at = match decision {
            Decision::Begins(due) => deadline.map(|deadline| late_at(due, deadline)),
            Decision::Waits | Decision::Missed(_) => None,
        };
        Some(Self { next, decision, late_at, begins: None, passed_over: None, horizon })
    }

    /// This schedule when the run of a due time begins.
    #[must_use]
    pub fn beginning(self, due: Timestamp) -> Self {
        Self { begins: Some(due), horizon: Horizon { last: Some(due), ..self.horizon }, ..self }
    }

    /// This schedule when a due time begins no run.
    #[must_use]
    pub fn passing_over(self, due: Timestamp, why: PassedOver) -> Self {
        Self { passed_over: Some((due, why)), horizon: Horizon { last: Some(due), ..self.horizon }, ..self }
    }

    /// The due time that has come, and whose run begins when a pause ends.
    pub fn waiting(&self) -> Option<Timestamp> {
        match self.decision {
            Decision::Begins(due) if self.begins.is_none() && self.passed_over.is_none() => Some(due),
            _ => None,
        }
    }

    /// The schedule in the next status.
    pub fn status(&self, job: &DaemonJob) -> ScheduleStatus {
        ScheduleStatus {
            schedule: job.spec.schedule.clone().unwrap_or_default(),
            time_zone: job.spec.time_zone.clone(),
            since: Some(Time(self.horizon.since)),
            last_due_time: self.horizon.last.map(Time),
            next_due_time: self.next_due_time().map(Time),
        }
    }

    /// The history in the next status. `run` is the run of the current due time.
    pub fn history(&self, before: &[ScheduledRun], run: Option<ScheduledRun>) -> Vec<ScheduledRun> {
        let mut history = before.to_vec();
        if self.begins.is_some() {
            for unfinished in history.iter_mut().filter(|one| one.result.is_none()) {
                unfinished.result = Some("Unfinished".to_owned());
                unfinished.end_time = run.as_ref().and_then(|run| run.start_time.clone());
            }
        }
        history.extend(self.passed_over.map(|(due, why)| ScheduledRun {
            due_time: Time(due),
            start_time: None,
            end_time: None,
            succeeded: None,
            failed: None,
            result: Some(<&'static str>::from(why).to_owned()),
        }));
        if let Some(run) = run {
            match history.iter_mut().find(|one| one.due_time == run.due_time) {
                // Nodes that join or leave after the end do not change the result.
                Some(known) if known.end_time.is_some() && run.end_time.is_some() => {}
                Some(known) => {
                    *known = ScheduledRun { start_time: known.start_time.take().or(run.start_time), ..run };
                }
                None => history.push(run),
            }
        }
        history.sort_by_key(|one| Reverse(one.due_time.0));
        history.truncate(KEPT_DUE_TIMES);
        history
    }
}

/// Which nodes wait for the next due time.
#[derive(Clone, Copy, Debug)]
pub struct DueTimeWait {
    /// Whether every node waits that is not done: no run has begun, or the template has changed.
    pub for_all: bool,
    /// Whether the run is over.
    pub is_over: bool,
    /// The next due time, if the schedule is valid.
    pub next: Option<Timestamp>,
}

impl DueTimeWait {
    /// Whether a node waits that is not done. `is_late`: it was created after the start of the run. `has_run`: it had a
    /// pod at this due time, so it does not join a run that is over.
    pub fn applies(self, is_late: bool, has_run: bool) -> bool {
        self.for_all || is_late || self.is_over && !has_run
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::civil::{DateTime, Weekday};
    use rstest::rstest;

    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    fn times(schedule: &str, zone: &str) -> DueTimes {
        DueTimes::parse(schedule, Some(zone)).unwrap()
    }

    /// The due times after a time, and not after another.
    fn between(times: &DueTimes, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
        let mut all = Vec::new();
        let mut last = from;
        while let Some(next) = times.next_after(last).filter(|next| *next <= until) {
            all.push(next);
            last = next;
        }
        all
    }

    /// The minutes of a year whose local time matches, without the second of two equal local times.
    fn minutes(zone: &str, matches: fn(DateTime) -> bool) -> Vec<Timestamp> {
        let zone = ZONES.get(zone).unwrap();
        let first = at("2026-01-01T00:00:00Z").as_second() / 60;
        let mut seen = HashSet::new();
        let all =
            (first + 1..=first + 365 * 24 * 60).map(|minute| Timestamp::from_second(minute * 60).unwrap());
        all.filter(|minute| {
            let local = zone.to_datetime(*minute);
            matches(local) && seen.insert(local)
        })
        .collect()
    }

    fn is_at(local: DateTime, hour: i8, minute: i8) -> bool {
        (local.hour(), local.minute()) == (hour, minute)
    }

    /// A year of due times agrees with a search through every minute, and a clock that moves over it, in steps of this
    /// number of minutes, begins the run of each due time once.
    #[rstest]
    #[case::nightly("30 2 * * *", 1_000, |local: DateTime| is_at(local, 2, 30))]
    #[case::in_the_repeated_hour("45 1 * * *", 1_000, |local: DateTime| is_at(local, 1, 45))]
    #[case::hourly("0 * * * *", 17, |local: DateTime| local.minute() == 0)]
    #[case::twenty_minutes("*/20 1-3 * * *", 17, |local: DateTime| local.minute() % 20 == 0 && (1..4).contains(&local.hour()))]
    #[case::workdays("15 3 * * mon-FRI", 1_000, |local: DateTime| {
        is_at(local, 3, 15) && !matches!(local.weekday(), Weekday::Saturday | Weekday::Sunday)
    })]
    #[case::one_of_two_days("0 4 13 * 5", 1_000, |local: DateTime| {
        is_at(local, 4, 0) && (local.day() == 13 || local.weekday() == Weekday::Friday)
    })]
    #[case::both_days("0 4 8-14 * */7", 1_000, |local: DateTime| {
        is_at(local, 4, 0) && (8..15).contains(&local.day()) && local.weekday() == Weekday::Sunday
    })]
    #[case::months("0 0 1 JAN,jul *", 10_000, |local: DateTime| is_at(local, 0, 0) && local.day() == 1 && local.month() % 6 == 1)]
    fn every_due_time_of_a_year_begins_one_run(
        #[case] schedule: &str,
        #[case] step: i64,
        #[case] matches: fn(DateTime) -> bool,
        #[values("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")] zone: &str,
    ) {
        let (start, end) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
        let (times, step) = (times(schedule, zone), SignedDuration::from_mins(step));
        let expected = minutes(zone, matches);
        assert_eq!(between(&times, start, end), expected);

        let mut horizon = Horizon { since: start, last: None };
        let (mut begun, mut now) = (Vec::new(), start);
        while now < end {
            now += step;
            if let Decision::Begins(due) = decide(&times, horizon, None, now) {
                assert!(now.duration_since(due) < step);
                begun.push(due);
                horizon.last = Some(due);
                assert_eq!(decide(&times, horizon, None, now), Decision::Waits);
            }
        }
        begun.retain(|due| *due <= end);
        assert_eq!(begun, expected);
    }

    #[rstest]
    #[case::berlin_gap("30 2 * * *", "Europe/Berlin", "2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z")]
    #[case::berlin_first("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z")]
    #[case::berlin_not_again("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z")]
    #[case::berlin_hourly("0 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z")]
    #[case::berlin_from_the_second(
        "*/10 * * * *",
        "Europe/Berlin",
        "2026-10-25T01:10:00Z",
        "2026-10-25T02:00:00Z"
    )]
    #[case::new_york_gap("30 2 * * *", "America/New_York", "2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z")]
    #[case::new_york_first("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", "2026-11-01T05:30:00Z")]
    #[case::new_york_not_again(
        "30 1 * * *",
        "America/New_York",
        "2026-11-01T05:30:00Z",
        "2026-11-02T06:30:00Z"
    )]
    #[case::lord_howe_gap(
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-02T15:45:00Z",
        "2026-10-04T15:15:00Z"
    )]
    #[case::lord_howe_first(
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T12:00:00Z",
        "2026-04-04T14:45:00Z"
    )]
    #[case::lord_howe_not_again(
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T14:45:00Z",
        "2026-04-05T15:15:00Z"
    )]
    #[case::leap_day("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z")]
    fn a_local_time_is_due_once_if_it_exists(
        #[case] schedule: &str,
        #[case] zone: &str,
        #[case] after: &str,
        #[case] due: &str,
    ) {
        let times = times(schedule, zone);
        assert_eq!(times.next_after(at(after)), Some(at(due)));
        let before = at(due).checked_sub(SignedDuration::from_secs(1)).unwrap();
        assert_eq!(times.next_after(before), Some(at(due)));
    }

    /// Nightly at three. The schedule was set at noon on the first, and the run of the second has begun.
    #[rstest]
    #[case::before("2026-01-02T23:00:00Z", None, Decision::Waits)]
    #[case::at_the_due_time("2026-01-03T03:00:00Z", None, Decision::Begins(at("2026-01-03T03:00:00Z")))]
    #[case::just_before("2026-01-03T02:59:59Z", None, Decision::Waits)]
    #[case::down_for_hours("2026-01-03T20:00:00Z", None, Decision::Begins(at("2026-01-03T03:00:00Z")))]
    #[case::down_for_days("2026-01-09T02:00:00Z", None, Decision::Begins(at("2026-01-08T03:00:00Z")))]
    #[case::down_for_years("2036-01-09T12:00:00Z", None, Decision::Begins(at("2036-01-09T03:00:00Z")))]
    #[case::in_time("2026-01-09T04:00:00Z", Some(3_600), Decision::Begins(at("2026-01-09T03:00:00Z")))]
    #[case::late("2026-01-09T04:00:01Z", Some(3_600), Decision::Missed(at("2026-01-09T03:00:00Z")))]
    #[case::earlier_ones_are_in_time(
        "2026-01-09T02:59:00Z",
        Some(90_000),
        Decision::Begins(at("2026-01-08T03:00:00Z"))
    )]
    #[case::clock_is_set_back("2026-01-02T02:50:00Z", None, Decision::Waits)]
    #[case::clock_is_set_back_by_days("2025-12-20T12:00:00Z", None, Decision::Waits)]
    fn the_last_due_time_begins_if_it_is_in_time(
        #[case] now: &str,
        #[case] deadline: Option<i64>,
        #[case] expected: Decision,
    ) {
        let horizon = Horizon { since: at("2026-01-01T12:00:00Z"), last: Some(at("2026-01-02T03:00:00Z")) };
        let deadline = deadline.map(SignedDuration::from_secs);
        assert_eq!(decide(&times("0 3 * * *", "UTC"), horizon, deadline, at(now)), expected);
    }

    #[rstest]
    #[case::earlier("2026-01-02T03:00:01Z", Decision::Waits)]
    #[case::at_the_same_time("2026-01-02T03:00:00Z", Decision::Waits)]
    #[case::later("2026-01-02T02:59:59Z", Decision::Begins(at("2026-01-02T03:00:00Z")))]
    fn due_times_before_a_change_do_not_count(#[case] since: &str, #[case] expected: Decision) {
        let horizon = Horizon { since: at(since), last: None };
        let now = at("2026-01-02T04:00:00Z");
        assert_eq!(decide(&times("0 3 * * *", "UTC"), horizon, None, now), expected);
    }

    #[rstest]
    #[case::four_fields("0 3 * *", None, "must have five fields")]
    #[case::six_fields("0 0 3 * * *", None, "must have five fields")]
    #[case::nickname("@daily", None, "must have five fields")]
    #[case::minute("60 3 * * *", None, "60")]
    #[case::weekday("0 3 * * 8", None, "8")]
    #[case::name("0 3 * * day", None, "is invalid")]
    #[case::range("0 5-3 * * *", None, "5-3")]
    #[case::empty_part("0,, 3 * * *", None, r#"got "0,,""#)]
    #[case::last_day("0 3 L * *", None, r#"got "L""#)]
    #[case::nearest_weekday("0 3 15W * *", None, r#"got "15W""#)]
    #[case::nth_weekday("0 3 * * 5#3", None, r#"got "5#3""#)]
    #[case::zone_in_the_schedule("0 3 * * * UTC", None, "must have five fields")]
    #[case::unknown_zone("0 3 * * *", Some("Europe/Atlantis"), r#"got "Europe/Atlantis""#)]
    #[case::local_zone("0 3 * * *", Some("Local"), "IANA")]
    #[case::not_ascii("0 3 * * ä", None, "ä")]
    fn explains_why_a_schedule_is_invalid(
        #[case] schedule: &str,
        #[case] zone: Option<&str>,
        #[case] words: &str,
    ) {
        let why = DueTimes::parse(schedule, zone).unwrap_err();
        assert!(why.contains(words) && !why.contains('\n') && !why.ends_with('.'), "{why}");
    }

    #[rstest]
    #[case::no_such_day("0 0 30 2 *", "UTC")]
    #[case::only_in_gaps("30 2 25-31 3 */7", "Europe/Berlin")]
    fn finds_no_due_time_if_there_is_none(#[case] schedule: &str, #[case] zone: &str) {
        assert_eq!(times(schedule, zone).next_after(at("2026-01-01T00:00:00Z")), None);
    }

    #[test]
    fn the_history_has_the_last_five_due_times() {
        let due = |day: i64| Timestamp::from_second(day * 86_400).unwrap();
        let run = |day: i64, end: Option<i64>, result: Option<&str>| ScheduledRun {
            due_time: Time(due(day)),
            start_time: Some(Time(due(day))),
            end_time: end.map(|day| Time(due(day))),
            succeeded: Some(1),
            failed: Some(0),
            result: result.map(str::to_owned),
        };
        let agenda = Agenda {
            next: Ok(due(99)),
            decision: Decision::Waits,
            late_at: None,
            begins: None,
            passed_over: None,
            horizon: Horizon { since: due(0), last: None },
        };
        let mut history: Vec<ScheduledRun> = Vec::new();
        for day in 1..8 {
            history = agenda.clone().beginning(due(day)).history(&history, Some(run(day, None, None)));
        }
        let results = |history: &[ScheduledRun]| -> Vec<(i64, Option<String>)> {
            let day = |one: &ScheduledRun| one.due_time.0.as_second() / 86_400;
            history.iter().map(|one| (day(one), one.result.clone())).collect()
        };
        let unfinished = |day: i64| (day, Some("Unfinished".to_owned()));
        let expected = [(7, None), unfinished(6), unfinished(5), unfinished(4), unfinished(3)];
        assert_eq!(results(&history), expected);
        assert_eq!(history[1].end_time, Some(Time(due(7))));

        let done = agenda.history(&history, Some(run(7, Some(8), Some("Complete"))));
        let later = agenda.history(&done, Some(run(7, Some(9), Some("Complete"))));
        assert_eq!((later[0].end_time.clone(), &later), (Some(Time(due(8))), &done), "the first end counts");
        let held = agenda.clone().passing_over(due(9), PassedOver::Held).history(&later, None);
        assert_eq!(results(&held)[..2], [(9, Some("Held".to_owned())), (7, Some("Complete".to_owned()))]);
        assert_eq!(held.len(), KEPT_DUE_TIMES);
    }
}
