//! A rollout in waves, whose first node breaks after its success.

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;

use quintet_e2e::{condition, workspace};
use quintet_localcluster::{run, terminal, variables};
use serde_json::json;

use crate::broken_nodes::{A_WHILE, is_ready, job, paused_for, site, touched};
use crate::site::Site;

const JOB: &str = "drivers";
const STATUS: &str = "quintet rollout status daemonjob/drivers";
/// The output of the status command in the picture of docs/rollout.md.
const RECORD: &str = "docs/pictures/rollout.txt";

/// The width of a terminal on which no message is wrapped.
const COLUMNS: u16 = 400;

/// Longer than the control plane needs to report a silent node, which is 12 s and some seconds.
const SETTLE_SECONDS: u32 = 45;

/// The node of the only succeeded pod, and its number.
fn first_done(site: &Site) -> (String, u8) {
    let succeeded = || {
        let pods = site.list("pods", &format!("daemonjob={JOB}"));
        let pod = pods.into_iter().find(|pod| pod["status"]["phase"] == "Succeeded")?;
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    };
    site.wait("the first pod has succeeded", || succeeded().is_some());
    let node = succeeded().unwrap();
    let number = node.strip_prefix("node-").unwrap().parse().unwrap();
    (node, number)
}

/// Runs the status command on a terminal. Returns its exit code and its text.
fn status(site: &Site) -> (Option<i32>, String) {
    let (status, text) = terminal::output(site.command(STATUS), COLUMNS).unwrap();
    (status.code(), text)
}

/// Compares the output with that of the picture, except for the number of the node, or records it.
fn compare_with_picture(text: &str) {
    let (file, shown) = (workspace().join(RECORD), format!("$ {STATUS}\n{text}\n"));
    if std::env::var_os(variables::RECORD).is_some() {
        fs::write(file, shown).unwrap();
        return;
    }
    let any_node = |text: &str| {
        (2..=6).fold(text.to_owned(), |text, node| text.replace(&format!("node-{node}:"), "node-N:"))
    };
    let recorded = fs::read_to_string(file).unwrap();
    assert_eq!(any_node(&shown), any_node(&recorded), "to record the output, set {}", variables::RECORD);
}

/// The kubelet of the first node stops after its pod has succeeded. The rollout stops, and the status command prints
/// the command that continues it.
#[test]
fn stops_when_a_done_node_breaks() {
    let mut site = site("real-waves", 5);
    let spec = json!({ "backoffLimit": 0,
        "failurePolicy": { "type": "Pause", "maxFailedNodes": 1, "nodeLostAfterSeconds": 20 },
        "rollout": { "waveSizes": [1, 3], "settleSeconds": SETTLE_SECONDS } });
    site.apply(&job(JOB, &["true"], &spec));
    let (node, number) = first_done(&site);
    site.cluster().stop_kubelet(number, true).unwrap();
    let took = site.wait("the wave has failed", || paused_for(&site, JOB).starts_with("WaveFailed "));
    println!("the wave has failed {:.1} s after the kubelet of {node} stopped", took.as_secs_f64());
    sleep(A_WHILE);
    assert!(!is_ready(&site, &node));
    let now = site.get("daemonjob", JOB);
    let (rollout, failed) = (&now["status"]["rollout"], &now["status"]["failedNodes"]);
    assert_eq!((&rollout["wave"], &rollout["waitingFor"]), (&json!(1), &json!("WaveFailed")));
    assert_eq!(failed.as_array().map(Vec::len), Some(1));
    assert_eq!((&failed[0]["node"], &failed[0]["reason"]), (&json!(node), &json!("NodeLost")));
    let held = paused_for(&site, JOB);
    assert!(held.starts_with("WaveFailed 1 node failed and 0 succeeded in wave 1; "), "{held}");
    assert!(held.contains("set spec.retryToken") && held.contains("dj.dysproz.io/approved=1/1"), "{held}");
    assert_eq!(touched(&site, JOB), [node.clone()].into());
    assert_eq!(site.created_pods().values().sum::<usize>(), 1, "{:?}", site.created_pods());

    let (code, text) = status(&site);
    assert_eq!(code, Some(3), "{text}");
    for part in ["in wave 1 of 3 (WaveFailed): ", &format!("{node}: NodeLost: "), "quintet rollout retry "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    compare_with_picture(&text);

    // The printed command continues the rollout without the node.
    let approve = text.lines().find_map(|line| line.strip_prefix("To continue without them, run: ")).unwrap();
    run::stdout(&mut site.command(approve)).unwrap();
    let took = site.wait("the rollout has ended", || {
        let job = site.get("daemonjob", JOB);
        job["status"]["succeeded"] == 4 && condition(&job, "Failed").1 == "NodesFailed"
    });
    println!("the other nodes are done after {:.1} s more", took.as_secs_f64());
    assert_eq!(status(&site).0, Some(1));
    let all: BTreeSet<String> = (2..=6).map(|number| format!("node-{number}")).collect();
    assert_eq!(touched(&site, JOB), all);

    // The node recovers, settles, and does not run again.
    site.cluster().stop_kubelet(number, false).unwrap();
    let took = site.wait("the rollout is complete", || {
        let job = site.get("daemonjob", JOB);
        job["status"]["succeeded"] == 5 && condition(&job, "Complete").0 == "True"
    });
    assert_eq!(status(&site).0, Some(0));
    println!("the rollout is complete {:.1} s after the kubelet continued", took.as_secs_f64());
    let created = site.created_pods();
    assert!(created.len() == 5 && created.values().all(|times| *times == 1), "{created:?}");
}
