//! Selects the attempts of contenders, divides their figures within a round, and shows them in tables.

use std::fmt::Display;

use strum::VariantArray;

use super::stats::{self, ratio};
use super::table::{self, Figure, Table};

pub trait Attempt: Sized {
    type Contender: Copy + PartialEq + Display + VariantArray;
    /// The condition under which attempts are compared, such as a setting.
    type Under: Copy + PartialEq;

    /// The third value is the round, from 1.
    fn key(&self) -> (Self::Contender, Self::Under, usize);
}

pub fn of<A: Attempt>(attempts: &[A], under: A::Under, contender: A::Contender) -> impl Iterator<Item = &A> {
    attempts.iter().filter(move |one| {
        let (found, found_under, _) = one.key();
        found == contender && found_under == under
    })
}

pub fn conditions<A: Attempt>(attempts: &[A]) -> Vec<A::Under> {
    let mut conditions: Vec<A::Under> = attempts.iter().map(|one| one.key().1).collect();
    conditions.dedup();
    conditions
}

/// The ratio of two contenders' figures, for each round that has both.
pub fn ratios<A: Attempt>(
    attempts: &[A],
    under: A::Under,
    (ours, other): (A::Contender, A::Contender),
    figure: impl Fn(&A) -> Option<f64>,
) -> Vec<f64> {
    let ratios = of(attempts, under, ours).filter_map(|ours| {
        let theirs = of(attempts, under, other).find(|theirs| theirs.key().2 == ours.key().2)?;
        ratio(figure(ours)?, figure(theirs)?)
    });
    ratios.collect()
}

/// A row for each contender that has attempts.
pub fn table<A: Attempt>(
    title: impl Into<String>,
    attempts: &[A],
    under: A::Under,
    figures: &[Figure<A>],
) -> Table {
    let compared: Vec<&A> = attempts.iter().filter(|one| one.key().1 == under).collect();
    let figures = &table::measured(figures, &compared);
    let mut table = Table::of(title, figures);
    for contender in A::Contender::VARIANTS {
        let runs: Vec<&A> = of(attempts, under, *contender).collect();
        if !runs.is_empty() {
            table.figures(contender.to_string(), &runs, figures);
        }
    }
    table
}

/// Adds a row of the ratios of each figure, with their intervals.
pub fn add_ratios<A: Attempt>(
    table: &mut Table,
    name: String,
    attempts: &[A],
    under: A::Under,
    contenders: (A::Contender, A::Contender),
    figures: &[Figure<A>],
) {
    let cells = figures.iter().map(|(_, places, figure)| {
        table::interval(stats::interval(ratios(attempts, under, contenders, figure)), *places)
    });
    table.row(name, cells);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, strum::Display, VariantArray)]
    enum Side {
        Ours,
        Theirs,
        Absent,
    }

    struct Timed(Side, usize, f64);

    impl Attempt for Timed {
        type Contender = Side;
        type Under = ();

        fn key(&self) -> (Side, (), usize) {
            (self.0, (), self.1)
        }
    }

    #[test]
    fn divides_within_a_round() {
        use Side::{Absent, Ours, Theirs};
        let attempts =
            [Timed(Theirs, 1, 1.0), Timed(Ours, 1, 2.0), Timed(Ours, 2, 3.0), Timed(Theirs, 2, 2.0)];
        assert_eq!(ratios(&attempts, (), (Ours, Theirs), |one| Some(one.2)), [2.0, 1.5]);
        assert_eq!(ratios(&attempts, (), (Ours, Absent), |one| Some(one.2)), [0.0; 0]);
        let figures: [Figure<Timed>; 1] = [("s", 2, |one| Some(one.2))];
        let mut table = table("Times", &attempts, (), &figures);
        add_ratios(&mut table, "ratio".to_owned(), &attempts, (), (Ours, Theirs), &figures);
        let rows = [["Ours", "2.50 (3.00)"], ["Theirs", "1.50 (2.00)"], ["ratio", "1.75 (1.50 to 2.00)"]];
        assert_eq!(table.rows, rows);
    }
}
