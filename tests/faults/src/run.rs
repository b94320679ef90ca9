//! Runs one plan: a cluster, its managers, the scenario and the fault. Returns the violations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quintet_fake_apiserver::types::Type;
use quintet_fake_apiserver::{Server, models};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::end;
use crate::moments::Moment;
use crate::plan::{Fault, Plan, Trouble};
use crate::process::{Lines, Process, Skew};
use crate::scenarios::{Story, When, lives};
use crate::watcher::{Keeps, Order, Watcher};

/// The time without writes before the next step of a scenario.
const BETWEEN: Duration = Duration::from_secs(45);
/// The time limit for a run to settle, by the cluster's clock.
const LONGEST: Duration = Duration::from_mins(90);
/// The time between a crash and the restart.
const AWAY: Duration = Duration::from_secs(1);
/// The lifetime of another client's object.
const STRANGER: Duration = Duration::from_secs(40);
/// If other faults delay the report of the object, its longest further lifetime.
const UNREPORTED: Duration = Duration::from_mins(5);

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The violations.
    pub violations: Vec<String>,
    /// Violations that a late write excuses.
    pub excused: Vec<String>,
    /// The objects at the end, one line each, without the parts that differ between runs.
    pub end: Vec<String>,
    /// The printed lines.
    pub lines: Vec<String>,
    /// The number of requests by name.
    pub requests: BTreeMap<String, usize>,
    /// The number of watch lines by type.
    pub events: BTreeMap<String, usize>,
    /// The number of objects that managers created, by type.
    pub created: BTreeMap<String, usize>,
    /// The number of objects that managers deleted, by type.
    pub deleted: BTreeMap<String, usize>,
    /// The number of faults that occurred.
    pub hits: usize,
    /// The steps, for a reader.
    pub trace: Vec<String>,
    /// The moments after the last fault.
    pub moments: Vec<Moment>,
    /// The duration by the cluster's clock.
    pub took: Duration,
}

pub fn types() -> &'static [Arc<Type>] {
    static TYPES: OnceLock<Vec<Arc<Type>>> = OnceLock::new();
    TYPES.get_or_init(|| {
        let crds = quintet_kinds::definitions();
        let values = crds.iter().filter_map(|crd| serde_json::to_value(crd).ok());
        values.filter_map(|crd| Type::defined_by(&crd)).map(Arc::new).collect()
    })
}

/// Runs a plan. `usual` is the result without a fault; the run waits until it has the same end.
pub fn run(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, keeps: Keeps) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(play(story, plan, seed, usual, keeps)),
        Err(error) => Outcome { violations: vec![format!("no runtime: {error}")], ..Outcome::default() },
    }
}

/// The processes, with what a restart needs.
struct Fleet {
    server: Server,
    scenario: &'static [crate::process::Kind],
    processes: Vec<Process>,
    started: usize,
    lines: Lines,
    skew: Skew,
    printers: Vec<quintet_greeting::printer::Printer>,
}

impl Fleet {
    fn start(&mut self, who: &str) -> Result<(), String> {
        self.started += 1;
        let name = format!("{who}-{}", self.started);
        let process = Process::start(&self.server, &name, self.scenario, self.skew, &self.lines)?;
        self.printers.extend(process.printer.clone());
        self.processes.push(process);
        Ok(())
    }

    fn take(&mut self, who: &str) -> Option<Process> {
        let at = self.processes.iter().position(|process| process.who == who)?;
        Some(self.processes.remove(at))
    }
}

/// Executes the fault's orders until the run ends.
async fn rule(
    fleet: Arc<tokio::sync::Mutex<Fleet>>,
    watcher: Arc<Watcher>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Crash(who) => {
                watcher.bury(&who);
                drop(fleet.lock().await.take(&who));
                watcher.touch();
                sleep(AWAY).await;
                let base = who.rsplit_once('-').map_or(&*who, |(base, _)| base).to_owned();
                if let Err(error) = fleet.lock().await.start(&base) {
                    watcher.violate(error);
                }
                watcher.touch();
            }
            Order::End(who) => {
                let process = fleet.lock().await.take(&who);
                if let Some(process) = process {
                    process.end().await;
                }
                watcher.ended(&who);
                watcher.touch();
                sleep(AWAY).await;
                let base = who.rsplit_once('-').map_or(&*who, |(base, _)| base).to_owned();
                if let Err(error) = fleet.lock().await.start(&base) {
                    watcher.violate(error);
                }
            }
            Order::RemoveStranger { path, name } => {
                let (server, watcher) = (fleet.lock().await.server.clone(), watcher.clone());
                tokio::spawn(async move {
                    stay_active(&watcher, STRANGER).await;
                    let limit = Instant::now() + UNREPORTED;
                    while watcher.awaits_report(&name) && Instant::now() < limit {
                        stay_active(&watcher, STRANGER / 8).await;
                    }
                    server.delete("stranger", &path, &serde_json::json!({}));
                });
            }
            Order::StayActive(length) => {
                let watcher = watcher.clone();
                tokio::spawn(async move { stay_active(&watcher, length).await });
            }
        }
    }
}

/// Keeps the run from settling for this time.
async fn stay_active(watcher: &Watcher, length: Duration) {
    let until = Instant::now() + length;
    while Instant::now() < until {
        watcher.touch();
        sleep(Duration::from_secs(5)).await;
    }
}

/// Waits until no write has happened for `quiet`. Returns false if that does not happen until `limit`.
async fn settle(watcher: &Watcher, quiet: Duration, limit: Instant) -> bool {
    loop {
        let since = watcher.last_write().unwrap_or_else(Instant::now);
        let until = since + quiet;
        if until <= Instant::now() {
            return true;
        }
        if Instant::now() >= limit {
            return false;
        }
        sleep_until(until.min(limit)).await;
    }
}

fn custom_resources(server: &Server) -> Vec<Arc<Value>> {
    types().iter().flat_map(|kind| server.objects(&kind.qualified())).collect()
}

/// Whether a pod in this phase is on the node and has no deletion timestamp.
fn is_on(server: &Server, node: &str, phase: &str) -> bool {
    let pods = server.objects("pods");
    let runs = |pod: &Value| {
        pod["spec"]["nodeName"] == node
            && pod["status"]["phase"] == phase
            && pod["metadata"]["deletionTimestamp"].is_null()
    };
    pods.iter().any(|pod| runs(pod))
}

async fn play(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, keeps: Keeps) -> Outcome {
    let began = Instant::now();
    let server = Server::new(seed);
    for kind in types() {
        server.add(kind.clone());
    }
    let (watcher, orders) = Watcher::new(plan.clone(), keeps);
    let watcher = Arc::new(watcher);
    watcher.attach(Some(server.clone()));
    server.follow(watcher.clone());
    let lines: Lines = Arc::new(Mutex::new(Vec::new()));
    let models = tokio::spawn(models::run(server.clone(), Arc::new(lives)));
    let mut fleet = Fleet {
        server: server.clone(),
        scenario: story.kinds,
        processes: Vec::new(),
        started: 0,
        lines: lines.clone(),
        skew: Skew::None,
        printers: Vec::new(),
    };
    let mut outcome = Outcome::default();
    for (_, step) in story.steps.iter().take_while(|(when, _)| matches!(when, When::Before)) {
        step(&server);
    }
    if let Err(error) = fleet.start("manager-a") {
        outcome.violations.push(error);
        return outcome;
    }
    // Only the successors have the other clock.
    fleet.skew = skew(plan);
    if plan.needs_standby() {
        sleep(Duration::from_millis(500)).await;
        if let Err(error) = fleet.start("manager-b") {
            outcome.violations.push(error);
            return outcome;
        }
    }
    sleep(Duration::from_secs(2)).await;
    let fleet = Arc::new(tokio::sync::Mutex::new(fleet));
    let ruler = tokio::spawn(rule(fleet.clone(), watcher.clone(), orders));
    // Several faults may take as long as each of them in turn.
    let limit = began + if plan.is_compound() { LONGEST * 3 } else { LONGEST };
    watcher.step_done();
    let mut settled = steps(story, plan, &server, &watcher, limit).await;
    settled &= settle(&watcher, plan.quiet(), limit).await;
    let mut end = server.look(story.end);
    // A state that waits for long (a refusal, a lost watch) still leads to the same end.
    while settled && usual.is_some_and(|usual| usual.end != end) && Instant::now() < limit {
        sleep(Duration::from_secs(30)).await;
        settled &= settle(&watcher, plan.quiet(), limit).await;
        end = server.look(story.end);
    }
    if !settled {
        watcher.violate("the managers never stop writing".to_owned());
    }
    outcome.took = began.elapsed();
    end_processes(&mut *fleet.lock().await, &server, &watcher, plan);
    ruler.abort();
    models.abort();
    for what in server.look(end::wrong) {
        watcher.violate(what);
    }
    outcome.lines = lines
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .map(|(_, line)| line.clone())
        .filter(|line| !line.starts_with("Timer:"))
        .collect();
    outcome.end = end;
    if let Some(usual) = usual {
        compare(&watcher, plan, usual, &outcome);
    } else {
        twice(&watcher, &outcome.lines);
    }
    // A hasty change may make the name unnecessary. Blind managers may not need the name for as long as it is taken.
    let may_be_unreported = plan.scenario.ends_with("hastily") || plan.has_blindness();
    for name in watcher.unreported().into_iter().filter(|_| !may_be_unreported) {
        watcher.violate(format!("another client has the name {name}, and no status or Event reports it"));
    }
    (outcome.requests, outcome.events) = watcher.recorded();
    (outcome.created, outcome.deleted) = watcher.counts();
    if let Some(usual) = usual.filter(|_| plan.fault != Fault::None) {
        count(&watcher, plan, usual, &outcome);
    }
    outcome.hits = watcher.hits();
    outcome.violations.extend(watcher.violations());
    outcome.excused = watcher.excused();
    outcome.trace = watcher.trace();
    outcome.moments = watcher.moments();
    watcher.attach(None);
    outcome
}

fn skew(plan: &Plan) -> Skew {
    if plan.has_trouble(Trouble::ClockAhead) {
        Skew::Ahead
    } else if plan.has_trouble(Trouble::ClockBehind) {
        Skew::Behind
    } else {
        Skew::None
    }
}

/// Plays the steps after the start. Returns whether the managers settled before each step that waits for it.
async fn steps(story: &Story<'_>, plan: &Plan, server: &Server, watcher: &Watcher, limit: Instant) -> bool {
    let mut settled = true;
    for (number, (when, step)) in story.steps.iter().enumerate() {
        match when {
            When::Before => continue,
            When::Settled => settled &= settle(watcher, BETWEEN.max(plan.between()), limit).await,
            When::After(wait) => sleep(*wait).await,
            When::RunningOn(node) | When::DoneOn(node) => {
                let phase = if matches!(when, When::DoneOn(_)) { "Succeeded" } else { "Running" };
                while Instant::now() < limit && !is_on(server, node, phase) {
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        watcher.note(&format!("STEP {}", number + 1));
        watcher.touch();
        step(server);
        watcher.step_done();
    }
    settled
}

/// Stops the managers. Reports leaders that could not watch, tasks that ended early, deleted objects that a process
/// still keeps, and wrong caches.
fn end_processes(fleet: &mut Fleet, server: &Server, watcher: &Watcher, plan: &Plan) {
    watcher.judge_leaders();
    for process in &mut fleet.processes {
        if process.has_ended() {
            watcher.violate(format!("a task of {} ended unexpectedly", process.who));
        }
        for what in process.remembers_gone(&custom_resources(server)) {
            watcher.violate(what);
        }
        // Some sequences of specs have objects that cannot be decoded, which no cache keeps.
        let is_excused = plan.fault == Fault::None || watcher.is_blind(&process.who);
        let wrong = if is_excused { Vec::new() } else { process.wrong_caches(server) };
        for what in wrong {
            watcher.violate(what);
        }
    }
    fleet.processes.clear();
    for printer in fleet.printers.drain(..) {
        let _ = printer.flush();
    }
}

/// Reports lines that were printed twice.
fn twice(watcher: &Watcher, lines: &[String]) {
    for (index, line) in lines.iter().enumerate() {
        if lines[..index].contains(line) {
            watcher.violate(format!("printed twice: {line}"));
        }
    }
}

/// Reports differences from the usual end and the usual lines.
fn compare(watcher: &Watcher, plan: &Plan, usual: &Outcome, outcome: &Outcome) {
    if outcome.end != usual.end {
        let lacks = usual.end.iter().filter(|line| !outcome.end.contains(line));
        let has = outcome.end.iter().filter(|line| !usual.end.contains(line));
        // A late deletion finds the pod by its UID, even if the pod has succeeded. Its ledger line must be
        // the usual one.
        let is_spent = |line: &str| {
            plan.is_late() && line.starts_with("pod of DaemonJob/") && line.contains(" Succeeded finalizers")
        };
        let lacks: Vec<&str> = lacks.map(String::as_str).filter(|line| !is_spent(line)).collect();
        let has: Vec<&str> = has.map(String::as_str).collect();
        if !(lacks.is_empty() && has.is_empty()) {
            let what = format!(
                "the end differs from the end without the fault:\n  without: {}\n  with:    {}",
                lacks.join("\n           "),
                has.join("\n           ")
            );
            watcher.violate(what);
        }
    }
    // The record of a printed line may be lost with the store.
    if plan.fault == Fault::None || plan.has_restore() {
        return;
    }
    twice(watcher, &outcome.lines);
    // A process that dies between claim and print loses the line: Greeting prints at most once. A change that
    // is replaced before any manager sees it prints nothing either.
    let may_miss =
        plan.has_crash() || plan.is_late() || plan.needs_standby() || plan.scenario.ends_with("hastily");
    if may_miss {
        return;
    }
    let sorted = |lines: &[String]| {
        let mut lines = lines.to_vec();
        lines.sort();
        lines
    };
    if sorted(&outcome.lines) != sorted(&usual.lines) {
        watcher.violate(format!("printed {:?}; usually {:?}", outcome.lines, usual.lines));
    }
}

/// Reports more creations than usual, unless the faults explain them.
fn count(watcher: &Watcher, plan: &Plan, usual: &Outcome, outcome: &Outcome) {
    let made = |of: &Outcome, kind: &str| of.created.get(kind).copied().unwrap_or_default();
    // Hasty changes meet more or fewer pods of the previous step. A process with a silent watch does not know that a node is
    // deleted.
    if plan.has_restore()
        || plan.scenario.ends_with("hastily")
        || plan.scenario.ends_with("delete")
        || plan.is_blind()
    {
        return;
    }
    // A process that has not seen the owner's deletion creates the pods again, until its status write fails. Another fault may
    // delay another view, or hide that failure.
    let usually = usual.created.values().copied().max().unwrap_or_default() * plan.fault.parts().len();
    if watcher.for_the_dead() > usually {
        watcher.violate(format!("{} objects were created for deleted owners", watcher.for_the_dead()));
    }
    for kind in ["pods", "deployments"] {
        let (usually, mut now) = (made(usual, kind), made(outcome, kind));
        // A process that learns late that nodes are not Ready creates pods for them. It deletes them before they run, and
        // creates them again when the nodes are Ready.
        if plan.is_compound() && plan.scenario == "daemonjob-fleet-unhealthy" {
            let deleted = |of: &Outcome| of.deleted.get(kind).copied().unwrap_or_default();
            now -= deleted(outcome).saturating_sub(deleted(usual));
        }
        if now > usually + spare(plan, usually) {
            watcher.violate(format!("{now} {kind} were created; usually {usually}"));
        }
    }
}

/// The number of objects that late writes may add to the usual ones. Other faults add none.
fn spare(plan: &Plan, usually: usize) -> usize {
    // Without other changes, every process creates the object under the same name.
    if plan.scenario.ends_with("-create") {
        return 0;
    }
    let of_one = |fault: &Fault| match fault {
        // A deletion has one UID, so a late one cannot delete another object of the name. Only after another fault may the
        // managers want to keep that object.
        Fault::Request(name, _, Trouble::Late) if name.starts_with("delete-") => {
            usize::from(plan.is_compound())
        }
        // All requests under way.
        Fault::Request(_, _, Trouble::Paused) => usually,
        // Another manager has created the object under another number.
        Fault::Request(_, _, trouble) => usize::from(trouble.is_late()),
        _ => 0,
    };
    let parts = plan.fault.parts();
    let late: usize = parts.iter().map(of_one).sum();
    // While another fault delays the view of the added object, a manager may delete an older one, and replace it.
    if late == 0 { 0 } else { late + parts.len() - 1 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Fault;
    use crate::process::Kind;
    use crate::scenarios::{ALL, PODSETS, Scenario, WHO};

    /// Without nodes, no pod gets a node.
    const UNSCHEDULED: Scenario = Scenario {
        name: "podset-unscheduled",
        kinds: &[Kind::PodSet],
        steps: &[
            (When::After(Duration::ZERO), |server| {
                let podset = json!({ "metadata": { "name": "s" }, "spec": { "replicas": 3 } });
                server.create(WHO, PODSETS, &podset);
            }),
            (When::Settled, |server| {
                server.merge(WHO, &format!("{PODSETS}/s"), &json!({ "spec": { "replicas": 0 } }));
            }),
        ],
    };

    fn requests(name: &str) -> Vec<String> {
        requests_of(ALL.iter().find(|scenario| scenario.name == name).unwrap())
    }

    /// The manager's requests in a scenario without a fault, in order, without Leases, Events and watches.
    fn requests_of(scenario: &Scenario) -> Vec<String> {
        let plan = Plan { scenario: scenario.name.to_owned(), fault: Fault::None };
        let outcome = run(&scenario.story(), &plan, 1, None, Keeps::Steps);
        assert_eq!(outcome.violations, Vec::<String>::new());
        let asked = outcome.trace.iter().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().filter(|who| who.starts_with("manager-"))?;
            let (request, _) = words.next()?.rsplit_once('.')?;
            let is_left_out =
                request.starts_with("watch-") || ["leases", "events"].iter().any(|of| request.ends_with(of));
            (!is_left_out).then(|| request.to_owned())
        });
        asked.collect()
    }

    /// The first requests of a new PodSet create its pods. Each new status costs one write, and each of a
    /// Greeting's two lines one claim.
    #[test]
    fn new_objects_cost_only_these_requests() {
        let status = |of: &str| format!("apply-{of}-status");
        // The list is the search for pods without the label of the watch, once for each process.
        let of_podset =
            ["list-pods", "apply-controllerrevisions", "create-pods", "create-pods", "create-pods"]
                .map(str::to_owned);
        let of_podset = [&of_podset[..], &[status("podsets"), status("podsets")]].concat();
        let of_greeting = vec!["patch-greetings".to_owned(), status("greetings"), status("greetings")];
        for (story, expected) in [
            ("podset-create", of_podset),
            ("greeting-interval", of_greeting),
            // The Book is changed meanwhile.
            ("book-life", vec![status("books"); 2]),
        ] {
            assert_eq!(requests(story), expected, "{story}");
        }
    }

    /// A new manager finds and labels pods that its watch does not select, and then creates one more.
    #[test]
    fn searches_for_pods_without_the_label_of_the_watch() {
        let asked = requests("podset-label-lost-before");
        let count = |request: &str| asked.iter().filter(|asked| *asked == request).count();
        assert_eq!(asked[0], "list-pods", "{asked:?}");
        assert_eq!(
            ["merge-pods", "create-pods", "delete-pods"].map(count),
            [2, 1, 0],
            "labelled, created and deleted: {asked:?}"
        );
    }

    /// Two PodSets share pods without an owner, and one of them loses the first attempt. A PodSet adopts the pods of its
    /// predecessor.
    #[test]
    fn adopts_pods_and_creates_only_missing_ones() {
        for (scenario, expected) in [("podset-adopt", [3, 0, 0]), ("podset-adopt-again", [4, 1, 0])] {
            let asked = requests(scenario);
            let count = |request: &str| asked.iter().filter(|asked| *asked == request).count();
            assert_eq!(
                ["apply-pods", "create-pods", "delete-pods"].map(count),
                expected,
                "adopted, created and deleted: {asked:?}"
            );
        }
    }

    /// A pod without a node is gone at once. The watch reports such a deletion as it reports a pod that lost the label.
    #[test]
    fn reads_no_pod_that_it_deleted() {
        let asked = requests_of(&UNSCHEDULED);
        let count = |request: &str| asked.iter().filter(|asked| *asked == request).count();
        assert_eq!(["delete-pods", "get-pods"].map(count), [3, 0], "deleted and read: {asked:?}");
    }
}
