//! The pages and plots of docs/bench. All are made from the stored results, so that no figure is typed by hand.

use anyhow::Result;

use super::goals::{self, Goal};
use super::growth::{self, Growth};
use super::kept::Kept;
use super::report::{self, Measurements};
use super::{all, daemonjob, fence, greeting, manager, plot, podset, pulsar, rollout};

/// Writes all pages and plots from the stored results.
pub fn write_stored() -> Result<()> {
    for File { name, text } in files()? {
        report::write_file(&report::pages().join(name), &text)?;
    }
    Ok(())
}

struct File {
    name: String,
    text: String,
}

/// The page of a bench, and its section of METHOD.md.
struct Bench {
    page: File,
    method: String,
}

impl Bench {
    fn of<M: Measurements>(growths: &[Growth]) -> Result<Self> {
        let growth = growths.iter().find(|growth| growth.bench == M::NAME).map(Growth::markdown);
        let text = report::page::<M>(&report::results(), growth.as_deref())?;
        Ok(Self {
            page: File { name: format!("{}.md", M::NAME), text },
            method: format!("## {}\n\n{}", M::TITLE, M::METHOD.trim_end()),
        })
    }
}

fn files() -> Result<Vec<File>> {
    let kept = Kept::read(&report::results())?;
    let growths = growth::growths(&kept);
    let benches = [
        Bench::of::<daemonjob::figures::Results>(&growths)?,
        Bench::of::<rollout::figures::Results>(&growths)?,
        Bench::of::<podset::figures::Results>(&growths)?,
        Bench::of::<greeting::figures::Results>(&growths)?,
        Bench::of::<pulsar::Results>(&growths)?,
        Bench::of::<manager::figures::Results>(&growths)?,
        Bench::of::<fence::Results>(&growths)?,
    ];
    let methods: Vec<&str> = benches.iter().map(|bench| bench.method.as_str()).collect();
    let goals = goals::read()?;
    let mut files = vec![
        File { name: "README.md".to_owned(), text: readme(&goals, &kept) },
        File { name: "goals.md".to_owned(), text: of_goals(&goals, &kept) },
        File {
            name: "METHOD.md".to_owned(),
            text: report::wrapped(
                &include_str!("pages/method.md").replace("{benches}", &methods.join("\n\n")),
            ),
        },
    ];
    files.extend(benches.into_iter().map(|bench| bench.page));
    for curve in growths.iter().flat_map(|growth| &growth.curves) {
        files.push(File { name: curve.file(), text: plot::svg(curve)? });
    }
    Ok(files)
}

fn readme(goals: &[Goal], kept: &Kept) -> String {
    let rows = goals::rows(goals, kept);
    let page = include_str!("pages/readme.md")
        .replace("{behind}", &goals::behind(&rows).body())
        .replace("{goals}", &goals::by_goal(&rows).body())
        .replace("{benches}", &all::parts());
    report::wrapped(&page)
}

fn of_goals(goals: &[Goal], kept: &Kept) -> String {
    let rows = goals::rows(goals, kept);
    let page = include_str!("pages/goals.md")
        .replace("{figures}", &goals::figures(&rows).body())
        .replace("{reasons}", &goals::reasons(&rows));
    report::wrapped(&page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn pages_are_made_from_the_results() {
        let folder = report::pages();
        let mut made = BTreeSet::new();
        for File { name, text } in files().unwrap() {
            let written = fs::read_to_string(folder.join(&name)).unwrap_or_default();
            assert!(
                text == written,
                "run `cargo xtask bench goals --write`: {name} differs from its results"
            );
            made.insert(name);
        }
        let entries = fs::read_dir(folder).unwrap();
        let written: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(written, made);
    }
}
