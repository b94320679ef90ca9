//! `cargo xtask bench goals`: compares the stored results of the benches with the goals of
//! `goals/goals.yaml`, and writes docs/bench/README.md and its plots.

use anyhow::{Context, Result};
use quintet_localcluster::run::print;
use serde::Deserialize;

use super::growth::{Growth, growths};
use super::kept::{Kept, Query};
use super::stats::{self, Interval};
use super::table::{self, NONE, Table, decimals};
use super::{plot, report};

/// The verdict on a goal that reaches only its first limit, and on one that misses it.
const MUST: &str = "must";
const NO: &str = "no";

/// Compare the results in tests/bench/results with the goals.
///
/// This command measures nothing: it reads the results that `cargo xtask bench KIND --write` has stored. A
/// result reaches a goal if the worse end of the result's 95 % interval reaches the goal.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write docs/bench/README.md and the plots of growth
    #[arg(long)]
    write: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let kept = Kept::read(&report::results())?;
    let (table, lists, growths) = found(&kept)?;
    let mut parts = vec![String::new(), table.plain()];
    for (title, items) in &lists {
        parts.push(format!("{title}\n{items}\n"));
    }
    parts.extend(growths.iter().map(|growth| growth.table().plain()));
    print(parts.join("\n"))?;
    if args.write { write(&kept) } else { Ok(()) }
}

/// Writes docs/bench/README.md and the plots from the stored results.
pub fn write_stored() -> Result<()> {
    write(&Kept::read(&report::results())?)
}

fn write(kept: &Kept) -> Result<()> {
    let folder = report::pages();
    report::write_file(&folder.join("README.md"), &page(kept)?)?;
    for curve in growths(kept).iter().flat_map(|growth| &growth.curves) {
        report::write_file(&folder.join(curve.file()), &plot::svg(curve)?)?;
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
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

impl Goal {
    fn number(&self) -> String {
        self.number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
    }

    /// The verdict on the worse end of an interval.
    fn verdict(&self, found: Interval) -> &'static str {
        let worse = if self.is_both_ways { found.high.max(-found.low) } else { found.high };
        let keeps = |limit: Option<f64>| limit.is_none_or(|limit| worse <= limit);
        match (keeps(self.must), keeps(self.ambitious)) {
            _ if self.must.is_none() && self.ambitious.is_none() => NONE,
            (true, true) => "yes",
            (true, false) if self.must.is_some() => MUST,
            _ => NO,
        }
    }

    fn limit(&self, limit: Option<f64>) -> String {
        let sign = if self.is_both_ways { "±" } else { "" };
        limit.map_or_else(|| NONE.to_owned(), |limit| format!("{sign}{limit}"))
    }
}

/// A goal that misses a limit.
struct Short {
    verdict: &'static str,
    what: String,
    why: String,
}

type List = (&'static str, String);

/// The table of the goals, the lists of those that miss a limit, and the growth of figures.
fn found(kept: &Kept) -> Result<(Table, Vec<List>, Vec<Growth>)> {
    let goals: Vec<Goal> = serde_saphyr::from_str(include_str!("goals/goals.yaml"))
        .context("goals.yaml is not a list of goals")?;
    let (mut table, shorts) = compare(&goals, kept);
    for one in kept.all() {
        let remarks = one.run.remarks().into_iter();
        table.notes.extend(remarks.map(|remark| format!("`{}`: {remark}", one.arguments())));
    }
    let titles = [(NO, "Missed goals"), (MUST, "Goals that reach only the first limit")];
    let lists = titles.map(|(verdict, title)| (title, list(&shorts, verdict)));
    Ok((table, lists.into_iter().filter(|(_, items)| !items.is_empty()).collect(), growths(kept)))
}

fn compare(goals: &[Goal], kept: &Kept) -> (Table, Vec<Short>) {
    let header = ["goal", "result", "both sides", "pairs", "must", "ambitious", "reached", "measured by"];
    let mut table = Table::new("Goals", header);
    table.header[0] = "what".into();
    let mut shorts = Vec::new();
    // The row to which "the same" refers.
    let mut subject = "";
    for goal in goals {
        let found = goal.found.found(kept);
        if goal.is_optional && found.values.is_empty() {
            continue;
        }
        let what = goal.what.as_str();
        let is_same = what.starts_with("the same");
        if !is_same {
            subject = what;
        }
        let interval = stats::interval(found.values);
        let shown = table::interval(interval, goal.places);
        let verdict = interval.map_or("not measured", |interval| goal.verdict(interval));
        if [MUST, NO].contains(&verdict) {
            let number = goal.number.map_or_else(String::new, |number| format!("{number}, "));
            let what = if is_same { format!("{subject} ({what})") } else { what.to_owned() };
            shorts.push(Short { verdict, what: format!("{number}{what}: {shown}"), why: goal.why.clone() });
        }
        let beside =
            found.beside.map(|(ours, theirs)| format!("{} / {}", three_digits(ours), three_digits(theirs)));
        let cells = [
            goal.number(),
            shown,
            beside.unwrap_or_else(|| NONE.to_owned()),
            interval.map_or(0, |interval| interval.pairs).to_string(),
            goal.limit(goal.must),
            goal.limit(goal.ambitious),
            verdict.to_owned(),
            format!("`{}`", found.by),
        ];
        table.row(what, cells);
    }
    (table, shorts)
}

/// The list of goals with this verdict. Neighbours with the same reason share an item.
fn list(shorts: &[Short], verdict: &str) -> String {
    let shorts: Vec<&Short> = shorts.iter().filter(|goal| goal.verdict == verdict).collect();
    let item = |goals: &[&Short]| {
        let what: Vec<&str> = goals.iter().map(|goal| goal.what.as_str()).collect();
        format!("- {}. {}", what.join("; "), goals[0].why).trim_end().to_owned()
    };
    shorts.chunk_by(|one, next| one.why == next.why).map(item).collect::<Vec<_>>().join("\n")
}

/// Formats with three digits, or with all digits before the point.
fn three_digits(value: f64) -> String {
    let places = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    decimals(places)(value)
}

fn page(kept: &Kept) -> Result<String> {
    let (table, lists, growths) = found(kept)?;
    let mut goals: Vec<String> = of_larger_program(kept).into_iter().collect();
    goals.push(table.markdown());
    goals.extend(lists.into_iter().map(|(title, items)| format!("### {title}\n\n{items}")));
    let mut grown = Vec::new();
    for growth in &growths {
        grown.push(format!("## {}", growth.title));
        grown.push(growth.table().markdown());
        grown.extend(growth.curves.iter().map(|curve| format!("![{}]({})", curve.label, curve.file())));
    }
    let frame = report::unwrapped(include_str!("goals/page.md"));
    Ok(frame.replace("{goals}", &goals.join("\n\n")).replace("{growths}", &grown.join("\n\n")) + "\n")
}

/// A note with the runs of the program before it was optimised for size only.
fn of_larger_program(kept: &Kept) -> Option<String> {
    let larger = kept.all().iter().filter(|one| one.run.versions.profile.starts_with("opt-level=s"));
    let larger: Vec<String> = larger.map(|one| format!("`{}`", one.arguments())).collect();
    (!larger.is_empty()).then(|| {
        format!(
            "Since commit f1a9559 the release program is optimised for size only (opt-level \"z\" instead of \"s\"). These \
             runs are of the larger program before that commit: {}.",
            larger.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(must: Option<f64>, ambitious: Option<f64>, is_both_ways: bool) -> Goal {
        let goal = "{what: a, found: {bench: podset, figure: b}}";
        Goal { must, ambitious, is_both_ways, ..serde_saphyr::from_str(goal).unwrap() }
    }

    #[test]
    fn the_worse_end_of_an_interval_decides() {
        let verdict = |goal: &Goal, low, high| goal.verdict(Interval { median: 0.1, low, high, pairs: 7 });
        let both = goal(Some(0.5), Some(0.25), false);
        assert_eq!([0.25, 0.26, 0.51].map(|high| verdict(&both, 0.1, high)), ["yes", MUST, NO]);
        let ambitious = goal(None, Some(0.5), false);
        assert_eq!([0.5, 0.51].map(|high| verdict(&ambitious, 0.1, high)), ["yes", NO]);
        assert_eq!(verdict(&goal(None, None, false), 0.1, 9.0), NONE);
        let around = goal(Some(10.0), None, true);
        let ends = [(-10.0, 10.0), (-11.0, 2.0), (2.0, 11.0)];
        assert_eq!(ends.map(|(low, high)| verdict(&around, low, high)), ["yes", NO, NO]);
    }

    #[test]
    fn missed_goals_have_a_reason() {
        let short = |what: &str, why: &str| Short { verdict: NO, what: what.to_owned(), why: why.to_owned() };
        let shorts = [short("1, a: 1.0", "A reason."), short("1, b: 2.0", "A reason."), short("c: 3", "")];
        assert_eq!(list(&shorts, NO), "- 1, a: 1.0; 1, b: 2.0. A reason.\n- c: 3.");
        let kept = Kept::read(&report::results()).unwrap();
        let (_, lists, _) = found(&kept).unwrap();
        assert!(lists.iter().flat_map(|(_, items)| items.lines()).all(|item| item.matches(". ").count() > 0));
    }

    #[test]
    fn the_page_is_made_from_the_results() {
        let (folder, kept) = (report::pages(), Kept::read(&report::results()).unwrap());
        let written = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(page(&kept).unwrap() == written, "run `cargo xtask bench goals --write`");
        for curve in growths(&kept).iter().flat_map(|growth| &growth.curves) {
            let written = std::fs::read_to_string(folder.join(curve.file())).unwrap();
            assert!(
                plot::svg(curve).unwrap() == written,
                "run `cargo xtask bench goals --write` for {}",
                curve.file()
            );
        }
    }
}
