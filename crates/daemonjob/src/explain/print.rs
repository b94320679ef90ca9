//! The formats of a report: a table, a wide table, and JSON.

use std::fmt::Write as _;

use crate::ledger::Entry;
use quintet_runtime::model::table::{aligned, one_line};
use serde_json::{Map, Value, json};
use strum::VariantArray as _;

use super::report::{Origin, Report, Row, Word};

/// One JSON document for each DaemonJob, with all nodes.
pub fn documents(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let _ = writeln!(text, "{:#}", as_json(report));
    }
    text
}

/// A table for each DaemonJob, with a line for each selected node. The wide table has all nodes, and the pod
/// number, the last outcome and the pod of each node.
pub fn table(reports: &[Report], is_wide: bool) -> String {
    let mut text = String::new();
    for (at, report) in reports.iter().enumerate() {
        if reports.len() > 1 {
            let gap = if at > 0 { "\n" } else { "" };
            let _ = writeln!(text, "{gap}daemonjob/{} in namespace {}", report.name, report.namespace);
        }
        text.push_str(&as_table(report, is_wide));
    }
    text
}

fn as_table(report: &Report, is_wide: bool) -> String {
    let headings: &[&str] = if is_wide {
        &["NODE", "STATE", "NUMBER", "LAST", "POD", "REASON", "MESSAGE"]
    } else {
        &["NODE", "STATE", "REASON", "MESSAGE"]
    };
    let shown: Vec<&Row> =
        report.rows.iter().filter(|row| is_wide || row.state != Word::NotSelected).collect();
    let mut lines = vec![headings.iter().map(|heading| (*heading).to_owned()).collect()];
    lines.extend(shown.iter().map(|row| {
        let mut cells = vec![row.node.clone(), row.state.text().to_owned()];
        if is_wide {
            cells.push(row.number.map(|run| run.to_string()).unwrap_or_default());
            cells.push(row.last.as_ref().map(last).unwrap_or_default());
            cells.push(row.pod.clone().unwrap_or_default());
        }
        let termination = row.termination_message.as_ref().filter(|_| row.state != Word::Done);
        let termination =
            termination.map(|message| format!("; termination message: {message}")).unwrap_or_default();
        cells.extend([row.reason.clone(), format!("{}{termination}", row.message)]);
        cells
    }));
    let mut text = if shown.is_empty() { String::new() } else { aligned(&lines) + "\n" };
    let _ = writeln!(text, "{}", report.summary());
    for note in &report.notes {
        let _ = writeln!(text, "{}", one_line(note));
    }
    let others = report.count(Word::NotSelected);
    let others = match (others, is_wide) {
        (0, _) => "Every node is selected.".to_owned(),
        (1, true) => "1 node is not selected.".to_owned(),
        (others, true) => format!("{others} nodes are not selected."),
        (1, false) => "1 node is not selected: -o wide shows it.".to_owned(),
        (others, false) => format!("{others} nodes are not selected: -o wide shows them."),
    };
    // A cluster without nodes needs neither sentence.
    if !report.rows.is_empty() {
        let _ = writeln!(text, "{others}");
    }
    text
}

fn last(last: &Entry) -> String {
    format!("{} {}", last.outcome.word(), last.ended)
}

fn as_json(report: &Report) -> Value {
    let count = |word: &Word| (lower_first(word.text()), Value::from(report.count(*word)));
    let mut counts: Map<String, Value> = Word::VARIANTS.iter().map(count).collect();
    counts.insert("selected".to_owned(), report.selected().into());
    json!({
        "namespace": report.namespace,
        "name": report.name,
        "source": match report.origin {
            Origin::Cluster => "Cluster",
            Origin::New => "NewInFile",
            Origin::Changed => "ChangedInFile",
            Origin::Unchanged => "UnchangedInFile",
        },
        "templateHash": report.template_hash,
        "newRun": report.begins,
        "hold": report.hold.as_ref().map(|hold| json!({ "reason": hold.cause.word(), "message": hold.message.to_string() })),
        "allRun": report.all_run(),
        "counts": counts,
        "nodes": report.rows.iter().map(row_as_json).collect::<Vec<_>>(),
        "notes": report.notes,
    })
}

fn row_as_json(row: &Row) -> Value {
    json!({
        "node": row.node,
        "state": row.state.text(),
        "reason": row.reason,
        "message": row.message,
        "eligible": row.eligible,
        "podNumber": row.number,
        "last": row.last.as_ref().map(|last| json!({
            "podNumber": last.pod,
            "outcome": last.outcome.word(),
            "time": last.ended.to_string(),
            "templateHash": &*last.hash,
            "failures": last.failures,
        })),
        "pod": row.pod,
        "podWouldBeDeleted": row.is_going,
        "terminationMessage": row.termination_message,
    })
}

fn lower_first(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: &str, state: Word, reason: &str, message: &str) -> Row {
        Row {
            node: node.to_owned(),
            state,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Row::default()
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report {
            namespace: "ns".to_owned(),
            name: "a".to_owned(),
            origin: Origin::Cluster,
            template_hash: "v1-x".to_owned(),
            begins: false,
            hold: None,
            rows,
            notes: Vec::new(),
        }
    }

    fn some() -> Report {
        let entry = "node=node-1 template=v1-x rollout=1 run=1 pod=2 outcome=Succeeded clear=true ended=2026-01-01T00:00:00Z"
            .parse().unwrap();
        let mut done = row("node-1", Word::Done, "Succeeded", "pod 2");
        (done.number, done.last, done.pod) = (Some(2), Some(entry), Some("a-abc-2".to_owned()));
        report(vec![
            done,
            row("node-10", Word::WouldRun, "FirstRun", ""),
            row("n", Word::Skipped, "Tainted", "a taint\n\u{1b}[31mred"),
            row("other", Word::NotSelected, "NodeSelector", "no label"),
        ])
    }

    #[test]
    fn aligns_the_table_and_counts_the_omitted_nodes() {
        assert_eq!(
            table(&[some()], false),
            "NODE      STATE      REASON      MESSAGE\n\
             node-1    Done       Succeeded   pod 2\n\
             node-10   WouldRun   FirstRun    -\n\
             n         Skipped    Tainted     a taint [31mred\n\
             \n\
             3 nodes selected: 1 done, 1 would run now, 0 running, 0 starting, 0 waiting, 1 skipped, 0 failed.\n\
             1 node is not selected: -o wide shows it.\n"
        );
    }

    #[test]
    fn the_wide_table_has_every_node() {
        let text = table(&[some()], true);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("   ").map(str::trim).collect()).collect();
        let cells =
            |at: usize| -> Vec<&str> { lines[at].iter().copied().filter(|cell| !cell.is_empty()).collect() };
        assert_eq!(cells(0), ["NODE", "STATE", "NUMBER", "LAST", "POD", "REASON", "MESSAGE"]);
        assert_eq!(
            cells(1),
            ["node-1", "Done", "2", "Succeeded 2026-01-01T00:00:00Z", "a-abc-2", "Succeeded", "pod 2"]
        );
        assert_eq!(cells(4), ["other", "NotSelected", "-", "-", "-", "NodeSelector", "no label"]);
        assert!(text.ends_with("1 node is not selected.\n"), "{text}");
    }

    #[test]
    fn prints_all_nodes_and_counts_as_json() {
        let text = documents(&[some(), some()]);
        let documents: Vec<Value> =
            serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(documents.len(), 2);
        let report = &documents[0];
        assert_eq!(report["counts"]["wouldRun"], 1);
        assert_eq!(report["counts"]["selected"], 3);
        assert_eq!(report["counts"]["notSelected"], 1);
        assert_eq!(report["allRun"], false);
        assert_eq!(report["nodes"][0]["last"]["outcome"], "Succeeded");
        assert_eq!(report["nodes"][3]["state"], "NotSelected");
        assert_eq!(report["nodes"][1]["last"], Value::Null);
    }

    #[test]
    fn prints_a_heading_before_each_of_several_tables() {
        let text = table(&[some(), some()], false);
        assert!(text.starts_with("daemonjob/a in namespace ns\nNODE"), "{text}");
        assert_eq!(text.matches("\n\ndaemonjob/a in namespace ns\n").count(), 1, "{text}");
    }

    #[test]
    fn prints_one_line_without_nodes() {
        assert_eq!(table(&[report(Vec::new())], false).lines().count(), 1);
    }
}
