//! Runs one plan: a cluster, its managers, the story, the fault; and says what was wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quintet_fake_apiserver::types::Type;
use quintet_fake_apiserver::{Server, models};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::end;
use crate::plan::{Event, Fault, Plan, Trouble};
use crate::process::{Lines, Process, Skew};
use crate::scenarios::{Story, When, lives};
use crate::watcher::{Order, Watcher};

/// How long nothing may be written before the next step of a story.
const BETWEEN: Duration = Duration::from_secs(45);
/// How long a run may take to settle, in the cluster's time.
const LONGEST: Duration = Duration::from_mins(90);
/// How long a process is away after a crash.
const AWAY: Duration = Duration::from_secs(1);
/// How long an object of a stranger stays.
const STRANGER: Duration = Duration::from_secs(40);

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was wrong.
    pub violations: Vec<String>,
    /// What was wrong for a while, by a write that came late.
    pub excused: Vec<String>,
    /// What there is at the end, one line for each thing, without what differs from run to run.
    pub end: Vec<String>,
    /// What was said.
    pub lines: Vec<String>,
    /// How often there was each request.
    pub requests: BTreeMap<String, usize>,
    /// How often there was each line of a watch.
    pub events: BTreeMap<String, usize>,
    /// Objects that managers made.
    pub created: BTreeMap<String, usize>,
    /// Objects that managers deleted.
    pub deleted: BTreeMap<String, usize>,
    /// Whether the fault came about.
    pub hit: bool,
    /// What happened.
    pub trace: Vec<String>,
    /// How long it took in the cluster's time.
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

/// Runs a plan. `usual` is what came of the same story without a fault; it waits for the same end.
pub fn run(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, trace: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(play(story, plan, seed, usual, trace)),
        Err(error) => Outcome { violations: vec![format!("no runtime: {error}")], ..Outcome::default() },
    }
}

/// The processes, and who comes after whom.
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

/// Carries the fault's orders out, for as long as the run lasts.
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
                watcher.touch();
                sleep(AWAY).await;
                let base = who.rsplit_once('-').map_or(&*who, |(base, _)| base).to_owned();
                if let Err(error) = fleet.lock().await.start(&base) {
                    watcher.violate(error);
                }
            }
            Order::RemoveStranger(path) => {
                let (server, watcher) = (fleet.lock().await.server.clone(), watcher.clone());
                tokio::spawn(async move {
                    let until = Instant::now() + STRANGER;
                    while Instant::now() < until {
                        watcher.touch();
                        sleep(Duration::from_secs(5)).await;
                    }
                    server.delete("stranger", &path, &serde_json::json!({}));
                });
            }
        }
    }
}

/// Waits until nothing was written for so long. False where that never comes.
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

/// Whether a pod in this phase is on a node and was not asked to go.
fn is_on(server: &Server, node: &str, phase: &str) -> bool {
    let pods = server.objects("pods");
    let runs = |pod: &Value| {
        pod["spec"]["nodeName"] == node
            && pod["status"]["phase"] == phase
            && pod["metadata"]["deletionTimestamp"].is_null()
    };
    pods.iter().any(|pod| runs(pod))
}

async fn play(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, trace: bool) -> Outcome {
    let began = Instant::now();
    let server = Server::new(seed);
    for kind in types() {
        server.add(kind.clone());
    }
    let (watcher, orders) = Watcher::new(plan.clone(), trace);
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
    // Its successors have the other clock.
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
    // Several faults take as long as each, one after the other.
    let limit = began + if plan.is_compound() { LONGEST * 3 } else { LONGEST };
    let mut settled = steps(story, plan, &server, &watcher, limit).await;
    settled &= settle(&watcher, plan.quiet(), limit).await;
    let mut end = server.look(story.end);
    // What waits for a long time (a refusal, a lost watch) still comes to the same end.
    while settled && usual.is_some_and(|usual| usual.end != end) && Instant::now() < limit {
        sleep(Duration::from_secs(30)).await;
        settled &= settle(&watcher, plan.quiet(), limit).await;
        end = server.look(story.end);
    }
    if !settled {
        watcher.violate("it is never quiet".to_owned());
    }
    outcome.took = began.elapsed();
    end_processes(&mut *fleet.lock().await, &server, &watcher);
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
    let is_taken = matches!(plan.fault, Fault::Request(_, _, Trouble::Stranger));
    // Who changes his mind in haste needs the name no longer.
    if is_taken && !watcher.has_told_of_name() && !plan.scenario.ends_with("hastily") {
        watcher.violate("a stranger has the name, and nobody is told".to_owned());
    }
    (outcome.requests, outcome.events) = watcher.recorded();
    (outcome.created, outcome.deleted) = watcher.counts();
    if let Some(usual) = usual.filter(|_| plan.fault != Fault::None) {
        count(&watcher, plan, usual, &outcome);
    }
    outcome.hit = watcher.has_hit();
    outcome.violations.extend(watcher.violations());
    outcome.excused = watcher.excused();
    outcome.trace = watcher.trace();
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

/// Plays the steps that follow the start. Returns whether the managers were quiet before each step that waits for it.
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
    }
    settled
}

/// Ends the managers, and reports tasks that ended before and objects that are remembered although they are gone.
fn end_processes(fleet: &mut Fleet, server: &Server, watcher: &Watcher) {
    for process in &mut fleet.processes {
        if process.has_ended() {
            watcher.violate(format!("a task of {} ended unexpectedly", process.who));
        }
        for what in process.remembers_gone(&custom_resources(server)) {
            watcher.violate(what);
        }
    }
    fleet.processes.clear();
    for printer in fleet.printers.drain(..) {
        let _ = printer.flush();
    }
}

/// No line is said twice.
fn twice(watcher: &Watcher, lines: &[String]) {
    for (index, line) in lines.iter().enumerate() {
        if lines[..index].contains(line) {
            watcher.violate(format!("said twice: {line}"));
        }
    }
}

/// The end is the usual one, and what was said is what is usually said.
fn compare(watcher: &Watcher, plan: &Plan, usual: &Outcome, outcome: &Outcome) {
    if outcome.end != usual.end {
        let lacks = usual.end.iter().filter(|line| !outcome.end.contains(line));
        let has = outcome.end.iter().filter(|line| !usual.end.contains(line));
        // A deletion that arrives late finds the pod by its UID, though the pod has succeeded meanwhile. Its line in the ledger
        // must be the usual one.
        let is_spent = |line: &str| {
            plan.is_late() && line.starts_with("pod of DaemonJob/") && line.contains(" Succeeded finalizers")
        };
        let lacks: Vec<&str> = lacks.map(String::as_str).filter(|line| !is_spent(line)).collect();
        let has: Vec<&str> = has.map(String::as_str).collect();
        if !(lacks.is_empty() && has.is_empty()) {
            let what = format!(
                "the end is another than without the fault:\n  without: {}\n  with:    {}",
                lacks.join("\n           "),
                has.join("\n           ")
            );
            watcher.violate(what);
        }
    }
    if plan.fault == Fault::None {
        return;
    }
    twice(watcher, &outcome.lines);
    // Whoever dies between claim and line takes the line along: at most once is promised, not at least once. A change that
    // nobody saw before the next one is not said either.
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
        watcher.violate(format!("said {:?}; usually {:?}", outcome.lines, usual.lines));
    }
}

/// No more is made than usual, but where the fault explains it.
fn count(watcher: &Watcher, plan: &Plan, usual: &Outcome, outcome: &Outcome) {
    let made = |of: &Outcome, kind: &str| of.created.get(kind).copied().unwrap_or_default();
    // A write that comes late makes what somebody else has made meanwhile, under another number. Changes that come in haste
    // meet more or fewer pods of the step before.
    let spare = |usually: usize| match &plan.fault {
        // Where nothing else happens meanwhile, whoever makes it makes it under the same name.
        _ if plan.scenario.ends_with("-create") => 0,
        // A deletion is of one object: it comes too late for another one of its name.
        Fault::Request(name, _, Trouble::Late) if name.starts_with("delete-") => 0,
        // All that was on its way.
        Fault::Request(_, _, Trouble::Paused) => usually,
        _ => usize::from(plan.is_late()),
    };
    // Nor does anybody know of a node that is gone whom nothing is shown.
    let is_blind = plan.has_event(Event::Silence);
    if plan.is_compound()
        || plan.scenario.ends_with("hastily")
        || plan.scenario.ends_with("delete")
        || is_blind
    {
        return;
    }
    // Who has not seen the owner go makes its pods once more, and is told so by the answer to the status.
    let usually = usual.created.values().copied().max().unwrap_or_default();
    if watcher.for_the_dead() > usually {
        watcher.violate(format!("{} objects were made for owners that were gone", watcher.for_the_dead()));
    }
    for kind in ["pods", "deployments"] {
        let (usually, now) = (made(usual, kind), made(outcome, kind));
        if now > usually + spare(usually) {
            watcher.violate(format!("{now} {kind} were made; usually {usually}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Fault;
    use crate::scenarios::ALL;

    /// The requests of the manager in a story without a fault, in their order: Leases, Events and watches left out.
    fn requests(name: &str) -> Vec<String> {
        let scenario = ALL.iter().find(|scenario| scenario.name == name).unwrap();
        let plan = Plan { scenario: name.to_owned(), fault: Fault::None };
        let outcome = run(&scenario.story(), &plan, 1, None, true);
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

    /// Nothing stands before the pods of a PodSet that was just made, and of each thing there is no more than is needed: a
    /// status when there is something to say, a Greeting's two lines claimed one after the other.
    #[test]
    fn new_objects_cost_these_requests_and_no_others() {
        let status = |of: &str| format!("apply-{of}-status");
        let of_podset = ["create-pods", "create-pods", "create-pods", "list-pods"].map(str::to_owned);
        let of_podset = [&of_podset[..], &[status("podsets"), status("podsets")]].concat();
        let of_greeting = vec!["patch-greetings".to_owned(), status("greetings"), status("greetings")];
        for (story, expected) in [
            ("podset-create", of_podset),
            ("greeting-interval", of_greeting),
            // One is changed meanwhile.
            ("book-life", vec![status("books"); 2]),
        ] {
            assert_eq!(requests(story), expected, "{story}");
        }
    }

    /// The pods of the post's operator are found before anything is made, labelled and counted; then one more is wanted.
    #[test]
    fn pods_of_the_posts_operator_are_counted_and_not_made_again() {
        let asked = requests("podset-older-pods");
        let count = |request: &str| asked.iter().filter(|asked| *asked == request).count();
        assert_eq!(asked[0], "list-pods", "{asked:?}");
        assert_eq!(
            ["merge-pods", "create-pods", "delete-pods"].map(count),
            [2, 1, 0],
            "labelled, made and deleted: {asked:?}"
        );
    }
}
