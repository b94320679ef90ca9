//! The findings of the checks, and the report.

use std::fmt::Write as _;

use quintet_runtime::model::table::one_line;

/// A fact, or one sentence with the reason why it cannot be read.
pub type Fact<T> = Result<T, String>;

/// The most findings of a check for one kind.
pub const LISTED: usize = 20;

/// The exit code if a check found a problem.
const PROBLEM: u8 = 1;
/// The exit code if no check found a problem, and some have no result.
const UNKNOWN: u8 = 2;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no problem.
    Well,
    /// There is a problem.
    Problem,
    /// A fact cannot be read, so the check has no result.
    Unknown,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Problem => "PROBLEM",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// One sentence of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The result.
    pub verdict: Verdict,
    /// The fact, with its value.
    pub sentence: String,
    /// The next command.
    pub remedy: Option<String>,
}

impl Finding {
    /// There is no problem.
    pub fn well(sentence: impl Into<String>) -> Self {
        Self { verdict: Verdict::Well, sentence: sentence.into(), remedy: None }
    }

    /// A problem, and the command that fixes it or shows more.
    pub fn problem(sentence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Problem, sentence: sentence.into(), remedy: Some(remedy.into()) }
    }

    /// There is no result, for this reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, sentence: why.into(), remedy: None }
    }

    /// The finding with the next command.
    pub fn then(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// A check and its findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// One word.
    pub name: &'static str,
    /// At least one.
    pub findings: Vec<Finding>,
}

/// The text and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Lines to print.
    pub text: String,
    /// The exit code of the command.
    pub code: u8,
}

/// The report of these checks. `head` describes the installation.
pub fn report(head: &str, checks: &[Check]) -> Report {
    let mut text = format!("{head}\n\n");
    for Check { name, findings } in checks {
        for (at, finding) in findings.iter().enumerate() {
            let (verdict, sentence) = (finding.verdict.word(), one_line(&finding.sentence));
            let _ = writeln!(text, "{verdict:<9}{name:<13}{sentence}");
            let next = findings.get(at + 1).and_then(|next| next.remedy.as_ref());
            // Consecutive findings may have one remedy.
            if let Some(remedy) = finding.remedy.as_ref().filter(|remedy| next != Some(*remedy)) {
                let _ = writeln!(text, "{:22}$ {remedy}", "");
            }
        }
    }
    let count = |verdict: Verdict| {
        let of_check = |check: &Check| check.findings.iter().filter(|one| one.verdict == verdict).count();
        checks.iter().map(of_check).sum::<usize>()
    };
    let (problems, unknown) = (count(Verdict::Problem), count(Verdict::Unknown));
    let _ = writeln!(text, "\nProblems: {problems}. Unknown: {unknown}.");
    let code = match (problems, unknown) {
        (0, 0) => 0,
        (0, _) => UNKNOWN,
        _ => PROBLEM,
    };
    Report { text, code }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(findings: &[Finding]) -> u8 {
        report("head", &[Check { name: "one", findings: findings.to_vec() }]).code
    }

    #[test]
    fn a_problem_outweighs_a_check_without_a_result() {
        let [well, problem, unknown] =
            [Finding::well("a"), Finding::problem("b", "c"), Finding::unknown("d")];
        assert_eq!(code(std::slice::from_ref(&well)), 0);
        assert_eq!(code(&[well.clone(), unknown.clone()]), 2);
        assert_eq!(code(&[unknown, problem, well]), 1);
    }

    #[test]
    fn equal_remedies_are_printed_once() {
        let findings = ["one", "two\nlines", "three"].map(|text| Finding::problem(text, "fix it"));
        let [first, second, third] = findings;
        let checks = [Check { name: "pods", findings: vec![first, second, third.then("other")] }];
        let expected = "head\n\n\
            PROBLEM  pods         one\n\
            PROBLEM  pods         two lines\n                      $ fix it\n\
            PROBLEM  pods         three\n                      $ other\n\n\
            Problems: 3. Unknown: 0.\n";
        assert_eq!(report("head", &checks).text, expected);
    }
}
