//! `cargo xtask bench goals`: compares the stored results of the benches with the goals of
//! `goals/goals.yaml`, and with their peers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use quintet_localcluster::run::print;
use serde::Deserialize;

use super::growth::growths;
use super::kept::{Found, Kept, KeptRun, Query};
use super::stats::{self, Interval, ratio};
use super::table::{self, NONE, Table, decimals};
use super::{pages, report};

/// Compare the results in tests/bench/results with the goals and the peers.
///
/// This command measures nothing: it reads the results that `cargo xtask bench KIND --write` has stored. A
/// result reaches a goal if the worse end of the result's 95 % interval reaches the goal.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write all pages and plots of docs/bench
    #[arg(long)]
    write: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let (goals, kept) = (read()?, Kept::read(&report::results())?);
    let rows = rows(&goals, &kept);
    let mut parts = vec![String::new()];
    parts.extend([behind(&rows), by_goal(&rows), figures(&rows)].iter().map(Table::plain));
    parts.extend(growths(&kept).iter().map(|growth| growth.table().plain()));
    print(parts.join("\n"))?;
    if args.write { pages::write_stored() } else { Ok(()) }
}

/// A goal, or a comparison if it has no number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    #[serde(rename = "goal")]
    number: Option<u8>,
    what: String,
    found: Query,
    #[serde(default = "two")]
    places: usize,
    must: Option<f64>,
    ambitious: Option<f64>,
    /// Whether the limits apply below 0 too.
    #[serde(default)]
    is_both_ways: bool,
    /// Whether the row is left out if nothing was measured.
    #[serde(default)]
    is_optional: bool,
    #[serde(default)]
    why: String,
}

fn two() -> usize {
    2
}

/// The goals of `goals/goals.yaml`.
pub fn read() -> Result<Vec<Goal>> {
    serde_saphyr::from_str(include_str!("goals/goals.yaml")).context("goals.yaml is not a list of goals")
}

/// How a figure compares with its limits, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
enum Verdict {
    #[strum(to_string = "-")]
    NoLimit,
    #[strum(to_string = "yes")]
    Yes,
    /// The figure reaches the first limit alone.
    #[strum(to_string = "must")]
    Must,
    #[strum(to_string = "not measured")]
    NotMeasured,
    #[strum(to_string = "no")]
    No,
}

impl Goal {
    /// The end of an interval that is further from the goal.
    fn worse(&self, found: Interval) -> f64 {
        if self.is_both_ways { found.high.max(-found.low) } else { found.high }
    }

    fn verdict(&self, found: Option<Interval>) -> Verdict {
        if self.must.is_none() && self.ambitious.is_none() {
            return Verdict::NoLimit;
        }
        let Some(worse) = found.map(|found| self.worse(found)) else { return Verdict::NotMeasured };
        let keeps = |limit: Option<f64>| limit.is_none_or(|limit| worse <= limit);
        match (keeps(self.must), keeps(self.ambitious)) {
            (true, true) => Verdict::Yes,
            (true, false) if self.must.is_some() => Verdict::Must,
            _ => Verdict::No,
        }
    }

    fn limit(&self, limit: Option<f64>) -> String {
        let sign = if self.is_both_ways { "±" } else { "" };
        limit.map_or_else(|| NONE.to_owned(), |limit| format!("{sign}{limit}"))
    }
}

/// A goal or a comparison with its result.
pub struct Row<'a> {
    goal: &'a Goal,
    found: Found<'a>,
    interval: Option<Interval>,
    verdict: Verdict,
}

/// The rows of all goals and comparisons. Optional ones are left out if nothing was measured.
pub fn rows<'a>(goals: &'a [Goal], kept: &'a Kept) -> Vec<Row<'a>> {
    let row = |goal: &'a Goal| {
        let found = goal.found.found(kept);
        let interval = stats::interval(found.values.iter().copied());
        Row { goal, interval, verdict: goal.verdict(interval), found }
    };
    let rows = goals.iter().map(row);
    rows.filter(|row| !row.goal.is_optional || row.found.rounds > 0).collect()
}

impl Row<'_> {
    /// Whether Quintet's figure is higher than the peer's: its median ratio, or the figure itself if the peer's is 0.
    fn is_behind(&self) -> bool {
        let is_beyond_zero = self.found.beside.is_some_and(|(ours, theirs)| ours > 0.0 && theirs == 0.0);
        let is_higher = self.interval.is_some_and(|interval| interval.median > 1.0);
        self.goal.found.is_beside_peer() && (is_beyond_zero || is_higher)
    }

    fn misses_limit(&self) -> bool {
        matches!(self.verdict, Verdict::Must | Verdict::No)
    }

    /// The worse end of the result, in parts of the limit that decides the verdict.
    fn part_of_limit(&self) -> f64 {
        let Goal { must, ambitious, .. } = *self.goal;
        let limit = if self.verdict == Verdict::No { must.or(ambitious) } else { ambitious.or(must) };
        let parts = self.interval.zip(limit);
        parts.and_then(|(found, limit)| ratio(self.goal.worse(found), limit)).unwrap_or_default()
    }

    fn peer(&self) -> String {
        self.goal.found.other().unwrap_or(NONE).to_owned()
    }

    fn result(&self) -> String {
        table::interval(self.interval, self.goal.places)
    }

    fn both_sides(&self) -> String {
        let sides = |(ours, theirs)| format!("{} / {}", three_digits(ours), three_digits(theirs));
        self.found.beside.map_or_else(|| NONE.to_owned(), sides)
    }

    fn run(&self) -> String {
        self.found.run.map_or_else(|| NONE.to_owned(), KeptRun::link)
    }
}

/// The figures that are behind a peer, the furthest first. A peer whose figure is 0 has no ratio.
pub fn behind(rows: &[Row]) -> Table {
    let mut table = Table::new("Behind a peer", ["peer", "ratio", "both sides", "pairs", "run"]);
    "figure".clone_into(&mut table.header[0]);
    let mut behind: Vec<&Row> = rows.iter().filter(|row| row.is_behind()).collect();
    let ratio = |row: &Row| row.interval.map_or(f64::INFINITY, |interval| interval.median);
    behind.sort_by(|one, other| ratio(other).total_cmp(&ratio(one)));
    for row in behind {
        let rounds = row.found.rounds.to_string();
        table.row(&row.goal.what, [row.peer(), row.result(), row.both_sides(), rounds, row.run()]);
    }
    table
}

/// A row for each goal: its worst verdict, with the figure that is furthest beyond its limit or closest to it.
pub fn by_goal(rows: &[Row]) -> Table {
    let header = ["peer", "result", "must", "ambitious", "reached", "run"];
    let mut table = Table::new("Goals", header);
    "goal".clone_into(&mut table.header[0]);
    let mut goals: BTreeMap<u8, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        if let Some(number) = row.goal.number {
            goals.entry(number).or_default().push(row);
        }
    }
    for (number, rows) in &goals {
        let worst = rows.iter().max_by(|one, other| {
            let parts = || one.part_of_limit().total_cmp(&other.part_of_limit());
            one.verdict.cmp(&other.verdict).then_with(parts)
        });
        let Some(worst) = worst else { continue };
        let goal = worst.goal;
        let cells = [
            worst.peer(),
            worst.result(),
            goal.limit(goal.must),
            goal.limit(goal.ambitious),
            worst.verdict.to_string(),
            worst.run(),
        ];
        table.row(format!("{number}. {}", goal.what), cells);
    }
    table
}

/// All figures.
pub fn figures(rows: &[Row]) -> Table {
    let header = ["goal", "peer", "result", "both sides", "pairs", "must", "ambitious", "reached", "run"];
    let mut table = Table::new("All figures", header);
    "figure".clone_into(&mut table.header[0]);
    for row in rows {
        let goal = row.goal;
        let cells = [
            goal.number.map_or_else(|| NONE.to_owned(), |number| number.to_string()),
            row.peer(),
            row.result(),
            row.both_sides(),
            row.found.rounds.to_string(),
            goal.limit(goal.must),
            goal.limit(goal.ambitious),
            row.verdict.to_string(),
            row.run(),
        ];
        table.row(&goal.what, cells);
    }
    table
}

/// The reasons why figures miss a limit or are behind a peer. Each reason is an item with its goals and comparisons.
pub fn reasons(rows: &[Row]) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows.iter().filter(|row| row.misses_limit() || row.is_behind()) {
        let goal = row.goal;
        if goal.why.is_empty() {
            continue;
        }
        let of = goal.number.map_or_else(|| goal.what.clone(), |number| format!("Goal {number}"));
        match reasons.iter_mut().find(|(why, _)| *why == goal.why) {
            Some((_, all)) if all.contains(&of) => {}
            Some((_, all)) => all.push(of),
            None => reasons.push((&goal.why, vec![of])),
        }
    }
    let items: Vec<String> = reasons.iter().map(|(why, of)| format!("- {}. {why}", of.join("; "))).collect();
    items.join("\n")
}

/// Formats with three digits, or with all digits before the point.
fn three_digits(value: f64) -> String {
    let places = if value >= 100.0 || value == 0.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    decimals(places)(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(must: Option<f64>, ambitious: Option<f64>, is_both_ways: bool) -> Goal {
        let goal = "{what: a, found: {bench: podset, figure: b}}";
        Goal { must, ambitious, is_both_ways, ..serde_saphyr::from_str(goal).unwrap() }
    }

    fn row<'a>(goal: &'a Goal, values: &[f64], beside: Option<(f64, f64)>) -> Row<'a> {
        let interval = stats::interval(values.iter().copied());
        let found = Found { run: None, rounds: values.len(), values: values.to_vec(), beside };
        Row { goal, found, interval, verdict: goal.verdict(interval) }
    }

    #[test]
    fn the_worse_end_of_an_interval_decides() {
        use Verdict::{Must, No, NoLimit, NotMeasured, Yes};
        let verdict =
            |goal: &Goal, low, high| goal.verdict(Some(Interval { median: 0.1, low, high, pairs: 7 }));
        let both = goal(Some(0.5), Some(0.25), false);
        assert_eq!([0.25, 0.26, 0.51].map(|high| verdict(&both, 0.1, high)), [Yes, Must, No]);
        let ambitious = goal(None, Some(0.5), false);
        assert_eq!([0.5, 0.51].map(|high| verdict(&ambitious, 0.1, high)), [Yes, No]);
        assert_eq!(verdict(&goal(None, None, false), 0.1, 9.0), NoLimit);
        assert_eq!(both.verdict(None), NotMeasured);
        let around = goal(Some(10.0), None, true);
        let ends = [(-10.0, 10.0), (-11.0, 2.0), (2.0, 11.0)];
        assert_eq!(ends.map(|(low, high)| verdict(&around, low, high)), [Yes, No, No]);
    }

    #[test]
    fn only_a_figure_beside_a_peer_can_be_behind() {
        let over = |over: &str| -> Goal {
            let found = format!("{{bench: daemonjob, figure: b, over: {over}}}");
            serde_saphyr::from_str(&format!("{{what: a, found: {found}}}")).unwrap()
        };
        let (peer, bare, alone) = (over("job"), over("bare"), goal(None, None, false));
        let is_behind = |goal: &Goal, ratios: &[f64], beside| row(goal, ratios, Some(beside)).is_behind();
        assert_eq!([0.9, 1.1].map(|ratio| is_behind(&peer, &[ratio], (ratio, 1.0))), [false, true]);
        assert_eq!([0.0, 3.0].map(|ours| is_behind(&peer, &[], (ours, 0.0))), [false, true]);
        assert!(is_behind(&peer, &[0.9, 1.1, 1.2], (1.1, 1.0)));
        assert!(!is_behind(&bare, &[1.1], (1.1, 1.0)) && !row(&alone, &[1.1], None).is_behind());
        let [slower, faster] = [1.2, 0.8].map(|ratio| row(&peer, &[ratio], None));
        let rows = [slower, faster, row(&peer, &[], Some((3.0, 0.0)))];
        let shown: Vec<String> = behind(&rows).rows.into_iter().map(|cells| cells[2].clone()).collect();
        assert_eq!(shown, [NONE, "1.20"]);
    }

    #[test]
    fn a_goal_has_its_worst_verdict() {
        let numbered = |number, must, ambitious| Goal { number, ..goal(must, ambitious, false) };
        let first = numbered(Some(1), Some(2.0), Some(1.0));
        let (second, none) = (numbered(Some(2), None, Some(0.0)), numbered(None, Some(2.0), None));
        let results = [(&first, 0.5), (&first, 1.8), (&first, 1.5), (&none, 9.0), (&second, 0.0)];
        let table = by_goal(&results.map(|(goal, result)| row(goal, &[result], None)));
        let shown: Vec<String> = table.rows.iter().map(|row| format!("{} | {}", row[2], row[5])).collect();
        assert_eq!(shown, ["1.80 | must", "0.00 | yes"]);
    }

    #[test]
    fn missed_limits_have_a_reason() {
        let (goals, kept) = (read().unwrap(), Kept::read(&report::results()).unwrap());
        let rows = rows(&goals, &kept);
        assert!(rows.iter().filter(|row| row.misses_limit()).all(|row| row.goal.why.ends_with('.')));
        let shared = Goal { number: Some(4), why: "A reason.".to_owned(), ..goal(Some(1.0), None, false) };
        let unnumbered = Goal { number: None, what: "b".to_owned(), ..goal(Some(1.0), None, false) };
        let unnumbered = Goal { why: "A reason.".to_owned(), ..unnumbered };
        let ratios = [(&shared, 2.0), (&shared, 3.0), (&unnumbered, 2.0), (&shared, 0.5)];
        let rows = ratios.map(|(goal, ratio)| row(goal, &[ratio], None));
        assert_eq!(reasons(&rows), "- Goal 4; b. A reason.");
    }

    #[test]
    fn contenders_of_goals_have_names() {
        for goal in read().unwrap() {
            assert!(!goal.found.is_beside_peer() || goal.found.other().is_some(), "{}", goal.what);
        }
    }
}
