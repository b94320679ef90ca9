//! Exactly one run on every node, despite crashes of the manager and restarts of the API server. Only the
//! nodes are simulated. The API server's audit log counts the runs: a pod's name contains its node and its
//! number.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quintet_e2e::objects::Watch;
use quintet_e2e::{Dice, PATIENCE, TestEnv};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};

/// Like [`TestEnv::wait_for`], with three times the limit, and tolerates an absent API server.
fn complete(env: &TestEnv, name: &str, nodes: usize) -> Value {
    let mut last = Value::Null;
    let done = run::poll("it is complete", 3 * PATIENCE, Duration::from_millis(500), || {
        if let Ok(Some(job)) = env.kube().get(env.namespace(), "daemonjob", name) {
            last = job;
        }
        Ok((is_complete(&last) && last["status"]["succeeded"] == nodes).then(|| last.clone()))
    });
    done.unwrap_or_else(|error| panic!("{error}\n{last:#}"))
}

/// Asserts that exactly one pod was created for each node, and that it was the first. Checks every change
/// that the watch has shown, and the audit log, which lacks a creation whose client died before the answer.
fn ran_once_everywhere(env: &TestEnv, watch: &Watch, nodes: &[String]) {
    let mut seen: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for (_, pod) in watch.events() {
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let node = part(&pod["metadata"]["annotations"]["dj.dysproz.io/node-name"]);
        assert!(pod["spec"]["nodeName"].is_null() || pod["spec"]["nodeName"] == *node, "{pod:#}");
        let (name, uid) = (part(&pod["metadata"]["name"]), part(&pod["metadata"]["uid"]));
        seen.entry(node).or_default().insert((name, uid));
    }
    assert_eq!(seen.len(), nodes.len(), "the watch shows a pod for every node");
    let odd: Vec<_> = seen.iter().filter(|(_, pods)| pods.len() != 1).collect();
    assert!(odd.is_empty(), "several pods for a node: {odd:?}");
    let names: BTreeSet<&str> = seen.values().flatten().map(|(name, _)| &**name).collect();
    assert!(names.iter().all(|name| name.ends_with("-1")), "{names:?}");
    answered_once(env, &names);
}

/// Asserts that the audit log has no pod twice, and only these.
fn answered_once(env: &TestEnv, names: &BTreeSet<&str>) {
    let created = env.created_pods();
    let odd: Vec<_> =
        created.iter().filter(|(name, times)| **times != 1 || !names.contains(&***name)).collect();
    assert!(odd.is_empty(), "created twice, or unknown: {odd:?}");
}

/// The number of nodes that become eligible with each kill.
const NODES_PER_KILL: usize = 2;

/// Makes nodes eligible.
fn open(env: &TestEnv, nodes: &[String]) {
    let mut args = vec!["label", "node"];
    args.extend(nodes.iter().map(String::as_str));
    args.push("open=yes");
    env.kubectl(&args).unwrap();
}

/// Kills the manager at 50 random moments of a run on 200 simulated nodes. In between it deletes ended pods,
/// so that both pods and ledger carry outcomes across the crashes.
#[test]
fn runs_every_node_once_despite_fifty_kills() {
    let env = TestEnv::new("df-kills");
    let nodes = env.nodes(0..200);
    // Nodes become eligible with the kills, so that the run lasts until the last kill on any machine.
    let (first, later) = nodes.split_at(nodes.len() - 50 * NODES_PER_KILL);
    let mut job = daemonjob(&env, "kills", &json!({ "parallelism": 8 }));
    job["spec"]["template"]["spec"]["nodeSelector"]["open"] = "yes".into();
    open(&env, first);
    env.apply(&job).unwrap();
    let watch = env.watch("pods", "daemonjob=kills");
    let mut dice = Dice::new();
    let mut deleted = BTreeSet::new();
    let mut during = 0;
    for (kill, opened) in later.chunks(NODES_PER_KILL).enumerate() {
        let mut manager = env.bare_manager("daemonjob");
        open(&env, opened);
        sleep(Duration::from_millis(150 + dice.below(1_200)));
        manager.kill().unwrap();
        manager.wait().unwrap();
        if kill % 3 == 0 {
            let pods = env.list("pods", "daemonjob=kills");
            let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
            let over: Vec<String> = pods
                .iter()
                .filter(|pod| pod["status"]["phase"] == "Succeeded")
                .map(name)
                .filter(|pod| !deleted.contains(pod))
                .collect();
            if !over.is_empty() {
                let pod = &over[usize::try_from(dice.below(over.len() as u64)).unwrap()];
                env.kubectl(&["delete", "pod", pod, "--wait=false"]).unwrap();
                deleted.insert(pod.clone());
            }
        }
        during += usize::from(env.created_pods().len() < nodes.len());
    }
    println!("{during} of 50 kills before the last pod was created, {} pods deleted", deleted.len());
    let _manager = env.manager("daemonjob");
    let job = complete(&env, "kills", nodes.len());
    assert_eq!(job["status"]["failed"], 0);
    env.wait("the deleted pods are gone", || {
        env.list("pods", "daemonjob=kills").len() == nodes.len() - deleted.len()
    });
    ran_once_everywhere(&env, &watch, &nodes);
    assert!(during >= 49, "the run ended after {during} kills");
    assert!(deleted.len() >= 5, "{deleted:?}");
}

/// 100 simulated nodes and two managers that both write. Deterministic pod names make creations collide.
#[test]
fn two_active_managers_run_every_node_once() {
    let env = TestEnv::new("df-two");
    let nodes = env.nodes(0..100);
    let watch = env.watch("pods", "daemonjob=two");
    let first = env.manager_with("first", "daemonjob", &[]);
    let second = env.manager_with("second", "daemonjob", &[]);
    env.apply(&daemonjob(&env, "two", &json!({ "parallelism": "50%" }))).unwrap();
    complete(&env, "two", nodes.len());
    let attempts = |metrics: &str| -> usize {
        let line =
            metrics.lines().find(|line| line.starts_with("quintet_daemonjob_attempts_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    ran_once_everywhere(&env, &watch, &nodes);
    let by = || [&first, &second].map(|manager| attempts(&manager.metrics().unwrap()));
    // The manager that loses a creation pauses, and the other may create all pods. Then try another job.
    for more in 0..4 {
        println!("pods created by each: {:?}", by());
        if by().iter().all(|made| *made > 0) {
            break;
        }
        let name = format!("two-more-{more}");
        env.apply(&daemonjob(&env, &name, &json!({ "parallelism": "50%" }))).unwrap();
        complete(&env, &name, nodes.len());
    }
    let created = env.created_pods();
    assert!(created.values().all(|times| *times == 1), "{created:?}");
    assert!(by().iter().all(|made| *made > 0) && by().iter().sum::<usize>() == created.len(), "{:?}", by());
}

/// Restarts and then kills the API server of a separate cluster while 50 simulated nodes run.
#[test]
fn api_server_restart_runs_no_node_twice() {
    let env = TestEnv::alone("df-server");
    let nodes = env.nodes(0..50);
    let manager = env.manager("daemonjob");
    env.apply(&daemonjob(&env, "survives", &json!({ "parallelism": 5 }))).unwrap();
    let made = |count: usize| {
        env.wait(&format!("{count} pods are created"), || env.created_pods().len() >= count);
    };
    made(8);
    env.cluster().restart(Component::Apiserver, &[]).unwrap();
    made(23);
    env.cluster().process(Component::Apiserver).unwrap().unwrap().kill();
    let away = Instant::now();
    assert!(env.created_pods().len() < nodes.len(), "in the middle of the run");
    sleep(Duration::from_secs(2));
    env.cluster().restart(Component::Apiserver, &[]).unwrap();
    println!("the API server was away for {} ms", away.elapsed().as_millis());
    complete(&env, "survives", nodes.len());
    assert!(manager.is_alive());
    let pods = env.list("pods", "daemonjob=survives");
    let part = |pod: &Value, path: &str| pod.pointer(path).and_then(Value::as_str).unwrap().to_owned();
    let on: BTreeSet<String> = pods.iter().map(|pod| part(pod, "/spec/nodeName")).collect();
    let names: Vec<String> = pods.iter().map(|pod| part(pod, "/metadata/name")).collect();
    assert_eq!((pods.len(), on.len()), (nodes.len(), nodes.len()));
    assert!(names.iter().all(|name| name.ends_with("-1")), "{names:?}");
    answered_once(&env, &names.iter().map(String::as_str).collect());
    assert_eq!(manager.stop().unwrap(), Some(0));
}
