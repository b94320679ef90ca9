//! Any events in a simulated cluster, while the manager's caches lag behind and its writes fail.

use super::*;
use proptest::prelude::*;
use quintet_runtime::model::refusals::Refusals;

use crate::adoption::{self, Orphans};
use crate::revision::{CONTROLLER_REVISIONS, Revision, StoredRevision};

/// The limits of a plan whose cache may be behind the manager's own writes.
const NO_LIMITS: (usize, usize) = (usize::MAX, 0);

/// An API server, a kubelet and other clients.
#[derive(Clone, Debug)]
struct Cluster {
    podset: PodSet,
    pods: Vec<Pod>,
    /// Pods without an owner.
    orphans: Vec<Pod>,
    revisions: Vec<Revision>,
    /// The content of each revision.
    stored: BTreeMap<String, StoredRevision>,
    now: Timestamp,
    /// The history of the watch, one entry for each change. A cache has a position in it.
    views: Vec<(Vec<Pod>, Vec<Revision>)>,
    /// The position of the manager's last write; its cache is never behind it.
    written: usize,
    /// Names of released pods.
    released: BTreeSet<String>,
    refusals: Refusals,
}

#[derive(Clone, Debug)]
enum Event {
    /// A reconcile with a cache that lags that number of changes behind. Writes whose bit is 0 fail.
    Pass {
        lag: usize,
        writes: u32,
    },
    /// A reconcile of another process, whose cache may be behind the last write.
    Stale(usize),
    Crash,
    Spec(Value),
    Becomes(usize, Phase),
    Deleted(usize),
    Gone(usize),
    Unlabelled(usize),
    /// A user deletes a revision.
    Forgotten(usize),
    /// A pod without an owner, which may have the labels of a deleted PodSet.
    Orphan(u8),
    /// The status is lost, e.g. because the PodSet was restored without it.
    NoStatus,
    Later(i64),
}

/// Whether the spec demands to keep pods of older templates.
fn keeps_pods(podset: &PodSet) -> bool {
    let partition = podset.spec.update_strategy.as_ref().and_then(|strategy| strategy.partition.clone());
    is_paused(podset) || partition.is_some_and(|partition| partition != IntOrString::Int(0))
}

fn is_paused(podset: &PodSet) -> bool {
    podset.spec.update_strategy.as_ref().is_some_and(|strategy| strategy.paused == Some(true))
}

impl Cluster {
    fn new(podset: PodSet, pods: Vec<Pod>) -> Self {
        Self {
            podset,
            views: vec![(pods.clone(), Vec::new())],
            pods,
            orphans: Vec::new(),
            revisions: Vec::new(),
            stored: BTreeMap::new(),
            now: after(0),
            written: 0,
            released: BTreeSet::new(),
            refusals: Refusals::default(),
        }
    }

    /// A plan from the cache at this position.
    fn plan_at(&self, position: usize, now: Timestamp) -> Plan<PodSetStatus> {
        let (mut pods, revisions) = self.views[position].clone();
        pods.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        let revisions = revisions.into_iter().map(Arc::new).collect();
        let mut world = World { refusals: self.refusals.clone(), revisions, ..world(pods) };
        // The manager reads orphans from the API server.
        let counted =
            world.pods.iter().filter(|pod| pod.is_counted() && has_label(&self.podset, pod)).count();
        if adoption::selector(&self.podset, counted).is_some() {
            world.orphans = Orphans::Found(self.orphans.iter().cloned().map(Arc::new).collect());
        }
        if let Some(name) = revision_to_read(&self.podset, &world) {
            let found = self.stored.get(&name);
            world.current_template = found
                .map_or(CurrentTemplate::Missing, |stored| CurrentTemplate::of(&self.podset, &name, stored));
        }
        plan(&self.podset, &world, now)
    }

    fn plan(&self) -> Plan<PodSetStatus> {
        self.plan_at(self.views.len() - 1, self.now)
    }

    /// The counted and the available pods.
    fn figures(&self) -> (usize, usize) {
        let counted = || self.pods.iter().filter(|pod| pod.is_counted() && has_label(&self.podset, pod));
        (counted().count(), counted().filter(|pod| pod.ready_since.is_some()).count())
    }

    /// Executes a plan. Writes whose bit is 0 fail, and end the plan after their step. No creation may exceed `most`
    /// counted pods, and no deletion leave fewer than `least` available ones. Returns whether every write was sent.
    fn carry_out(
        &mut self,
        plan: &Plan<PodSetStatus>,
        mut writes: u32,
        (most, least): (usize, usize),
    ) -> Result<bool, TestCaseError> {
        let mut is_sent = true;
        for step in &plan.steps {
            let mut is_complete = true;
            for action in step {
                writes = writes.rotate_left(1);
                let sends = writes & 1 == 1;
                let before = self.figures();
                is_complete &= sends && self.act(action);
                is_sent &= sends;
                let after = self.figures();
                prop_assert!(after.0 <= before.0.max(most), "too many: {after:?}, at most {most}");
                let is_release = matches!(action, Action::JsonPatch { .. });
                prop_assert!(
                    is_release || after.1 >= before.1.min(least),
                    "too few: {after:?}, at least {least}"
                );
            }
            if !is_complete {
                break;
            }
        }
        Ok(is_sent)
    }

    /// Executes an action. Returns whether the API server accepts it.
    fn act(&mut self, action: &Action<PodSetStatus>) -> bool {
        match action {
            Action::Create { name, .. } if self.released.contains(name) => {
                let refusal = refusal_until(Verb::Create, RefusalReason::NameTaken, Timestamp::MAX);
                self.refusals.insert(&PODS, name.clone(), refusal);
                return false;
            }
            Action::Apply { resource: PODS, body, .. } => {
                let at =
                    self.orphans.iter().position(|pod| body["metadata"]["uid"] == *pod.meta.uid).unwrap();
                let mut pod = self.orphans.remove(at);
                let applied: Pod = serde_json::from_value(body.clone()).unwrap();
                pod.meta.labels = applied.meta.labels;
                pod.meta.owner = applied.meta.owner;
                self.pods.push(pod);
            }
            Action::Apply { name, body, .. } => {
                self.revisions.retain(|one| *one.meta.name != **name);
                self.revisions.push(serde_json::from_value(body.clone()).unwrap());
                self.stored.insert(name.clone(), serde_json::from_value(body.clone()).unwrap());
            }
            Action::MergePatch { resource: CONTROLLER_REVISIONS, name, body, .. } => {
                for one in self.revisions.iter_mut().filter(|one| one.meta.name == *name) {
                    one.number = body["revision"].as_i64().unwrap();
                }
            }
            Action::Delete { resource: CONTROLLER_REVISIONS, name, .. } => self.forget(name),
            Action::Create { name, body, .. } if self.pods.iter().all(|pod| *pod.meta.name != **name) => {
                let mut pod: Pod = serde_json::from_value(body.value()).unwrap();
                let template = RawTemplate(json!({"spec": body.value()["spec"].clone()}));
                let hash =
                    if template == *DEFAULT_TEMPLATE { BUILT_IN_HASH.to_owned() } else { template.hash() };
                assert_eq!(pod.label(HASH_LABEL), Some(&*hash), "a pod has the template of its label");
                pod.meta.uid = self.views.len().to_string().into();
                pod.meta.created = Some(self.now);
                self.pods.push(pod);
            }
            Action::Delete { uid, .. } => {
                for pod in self.pods.iter_mut().filter(|pod| pod.meta.uid == *uid) {
                    pod.meta.deleted = Some(self.now);
                }
                self.pods.retain(|pod| pod.meta.deleted.is_none() || pod.is_running());
            }
            Action::JsonPatch { name, .. } => {
                self.released.insert(name.to_string());
                let at = self.pods.iter().position(|pod| pod.meta.name == *name);
                if let Some(mut pod) = at.map(|at| self.pods.remove(at)) {
                    pod.meta.owner = None;
                    pod.meta.labels = [(RELEASED_LABEL, "true")].into();
                    self.orphans.push(pod);
                }
            }
            _ => {}
        }
        self.views.push((self.pods.clone(), self.revisions.clone()));
        self.written = self.views.len() - 1;
        true
    }

    fn forget(&mut self, name: &str) {
        self.revisions.retain(|one| *one.meta.name != *name);
        self.stored.remove(name);
    }

    /// The number of counted pods of the updated template.
    fn updated(&self) -> usize {
        let hash = template_hash(&self.podset);
        let counted = self.pods.iter().filter(|pod| pod.is_counted() && has_label(&self.podset, pod));
        counted.filter(|pod| pod.label(HASH_LABEL) == Some(&*hash)).count()
    }

    /// How many counted pods of older templates a plan deletes.
    fn older_deletes(&self, plan: &Plan<PodSetStatus>) -> usize {
        let hash = template_hash(&self.podset);
        let deleted = plan.steps.iter().flatten().filter_map(|action| match action {
            Action::Delete { resource: PODS, uid, .. } => self.pods.iter().find(|pod| pod.meta.uid == *uid),
            _ => None,
        });
        deleted.filter(|pod| pod.is_counted() && pod.label(HASH_LABEL).is_some_and(|of| *of != *hash)).count()
    }

    /// Whether this plan may lose or spread a template: the current one must stay, and the partition hold.
    fn keeps_the_current_template(&self, plan: &Plan<PodSetStatus>) -> Result<(), TestCaseError> {
        let revision = |status: &Option<PodSetStatus>| status.as_ref()?.current_revision.clone();
        let (before, after) = (revision(&self.podset.status), revision(&plan.status));
        let update = plan.status.as_ref().and_then(|status| status.update_revision.clone());
        let are_done =
            self.updated() == self.figures().0 && self.figures().1 >= Limits::of(&self.podset).wanted;
        if keeps_pods(&self.podset) && !are_done {
            prop_assert!(
                before.is_none() || before == after || after != update,
                "a partition or a pause accepts a template only if all pods have it"
            );
        }
        let forgotten = plan.steps.iter().flatten().filter_map(|action| match action {
            Action::Delete { resource: CONTROLLER_REVISIONS, name, .. } => Some(name.to_string()),
            _ => None,
        });
        for name in forgotten {
            prop_assert!(Some(&name) != after.as_ref(), "the current template stays stored");
            let hash = name.rsplit_once("-v1-").unwrap().1;
            let has_it = |pod: &Pod| pod.label(HASH_LABEL).is_some_and(|of| of.ends_with(hash));
            prop_assert!(!self.pods.iter().any(|pod| pod.is_counted() && has_it(pod)), "pods have {name}");
        }
        Ok(())
    }

    /// Reconciles. The caches lag that number of changes behind. Returns whether the plan writes no pod.
    fn pass(&mut self, lag: usize, writes: u32) -> Result<bool, TestCaseError> {
        let last = self.views.len() - 1;
        let position = self.written.max(last.saturating_sub(lag));
        let plan = self.plan_at(position, self.now);
        let limits = Limits::of(&self.podset);
        if position == last {
            self.keeps_the_current_template(&plan)?;
        }
        let current =
            plan.status.as_ref().and_then(|status| status.current_revision.clone()).unwrap_or_default();
        let is_kept = current != *plan.status.as_ref().unwrap().update_revision.as_ref().unwrap()
            && self.stored.contains_key(&current);
        let kept = if is_paused(&self.podset) { limits.wanted } else { limits.partition.min(limits.wanted) };
        let before = self.updated();
        if position == last {
            let older = self.figures().0 - before;
            let kept = if is_kept { kept } else { 0 };
            let replaced = if limits.rolls { older.saturating_sub(kept) } else { 0 };
            let surplus = self.figures().0.saturating_sub(limits.wanted);
            prop_assert!(
                self.older_deletes(&plan) <= replaced + surplus,
                "deletes pods that the partition keeps"
            );
        }
        // Only a fresh cache shows which pods are available.
        let least = if position == last { limits.wanted.saturating_sub(limits.unavailable) } else { 0 };
        let adopts = |action: &&Action<PodSetStatus>| matches!(action, Action::Apply { resource: PODS, .. });
        let adopted = plan.steps.iter().flatten().filter(adopts).count();
        prop_assert!(
            adopted == 0 || position < last || self.figures().0 + adopted <= limits.wanted,
            "an adopted pod replaces a missing one"
        );
        let is_sent = self.carry_out(&plan, writes, (limits.wanted + limits.surge, least))?;
        prop_assert!(
            !is_kept || position < last || self.updated() <= (before + adopted).max(limits.wanted - kept),
            "the partition holds"
        );
        if is_sent {
            self.podset.status = plan.status;
        }
        Ok(plan.steps.is_empty())
    }

    /// Everything succeeds, and all pods become ready. Returns whether the last plan writes no pod.
    fn settle(&mut self, passes: usize) -> Result<bool, TestCaseError> {
        let mut is_quiet = false;
        for _ in 0..passes {
            is_quiet = self.pass(0, u32::MAX)?;
            self.pods.retain(|pod| pod.meta.deleted.is_none());
            for at in 0..self.pods.len() {
                self.becomes(at, Phase::Running);
            }
            self.happens(Event::Later(LONGEST_BACKOFF.as_secs()))?;
        }
        Ok(is_quiet)
    }

    fn becomes(&mut self, at: usize, phase: Phase) {
        if let Some(pod) = self.pods.get_mut(at).filter(|pod| pod.is_running()) {
            pod.phase = phase;
            pod.ready_since = (phase == Phase::Running).then_some(self.now);
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Pass { lag, writes } => {
                self.pass(lag, writes)?;
            }
            Event::Stale(ago) => {
                let plan = self.plan_at(self.views.len().saturating_sub(ago), self.now);
                self.carry_out(&plan, u32::MAX, NO_LIMITS)?;
            }
            // A new process lists everything.
            Event::Crash => {
                self.written = self.views.len() - 1;
                self.refusals = Refusals::default();
            }
            Event::Spec(spec) => {
                self.podset = PodSet { status: self.podset.status.take(), ..podset(&spec) };
            }
            Event::Becomes(at, phase) => self.becomes(at, phase),
            Event::Deleted(at) => {
                if let Some(pod) = self.pods.get_mut(at) {
                    pod.meta.deleted = Some(self.now);
                }
            }
            Event::Gone(at) => {
                if self.pods.get(at).is_some_and(|pod| pod.meta.deleted.is_some()) {
                    self.pods.remove(at);
                }
            }
            Event::Unlabelled(at) => {
                if let Some(pod) = self.pods.get_mut(at) {
                    pod.meta.labels = [(NAME_LABEL, "p")].into();
                }
            }
            Event::Forgotten(at) => {
                if let Some(revision) = self.revisions.get(at) {
                    self.forget(&revision.meta.name.clone());
                }
            }
            Event::Orphan(image) => {
                let mut orphan = pod(&of_image(&image.to_string()), 0, "Running");
                orphan.meta.uid = format!("orphan-{}", self.views.len()).into();
                orphan.meta.name = format!("orphan-{}", self.views.len()).into();
                orphan.meta.owner = None;
                orphan.meta.created = Some(after(-60));
                self.orphans.push(orphan);
            }
            Event::NoStatus => self.podset.status = None,
            Event::Later(seconds) => self.now += SignedDuration::from_secs(seconds),
        }
        self.views.push((self.pods.clone(), self.revisions.clone()));
        Ok(())
    }
}

/// A cluster with fewer replicas than these, and any pods.
fn any_cluster(replicas: i32) -> impl Strategy<Value = Cluster> {
    let phase = prop::sample::select(vec!["Pending", "Running", "Unknown", "Failed", "Succeeded"]);
    let pods = prop::collection::btree_map(0..12_u64, (phase, any::<bool>(), 0..4_u32), 0..12);
    (0..replicas, pods).prop_map(|(replicas, pods)| {
        let podset = of(replicas);
        let pods = pods.iter().map(|(number, (phase, is_deleted, attempt))| {
            let mut pod = pod(&podset, *number, phase);
            pod.meta.deleted = is_deleted.then(|| after(0));
            pod.meta.annotations = [(ATTEMPT_ANNOTATION, &*attempt.to_string())].into();
            pod
        });
        Cluster::new(podset.clone(), pods.collect())
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    // A pod most often runs.
    prop::sample::select(vec![
        Phase::Running,
        Phase::Running,
        Phase::Failed,
        Phase::Unknown,
        Phase::Succeeded,
    ])
}

/// Events under any caches, for PodSets of the built-in template.
fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u32>().prop_map(|writes| Event::Pass { lag: 0, writes }),
        (1..12_usize).prop_map(Event::Stale),
        (0..8_i32).prop_map(|replicas| Event::Spec(json!({"replicas": replicas}))),
        (0..12_usize, phase()).prop_map(|(at, phase)| Event::Becomes(at, phase)),
        (0..12_usize).prop_map(Event::Deleted),
        (0..700_i64).prop_map(Event::Later),
    ]
}

/// Events during rollouts, while one process at a time writes.
fn rollout_event() -> impl Strategy<Value = Event> {
    let strategy = prop_oneof![
        1 => Just(json!({"type": "OnDelete"})),
        1 => Just(json!({"paused": true})),
        2 => (0..3_i32, 0..3_i32, 0..3_i32).prop_map(|(unavailable, surge, partition)| {
            json!({"maxUnavailable": unavailable, "maxSurge": surge, "partition": partition})
        }),
    ];
    let adopts = prop::sample::select(vec![json!({"selector": {"matchLabels": {"app": "p"}}}), Value::Null]);
    let spec = (0..7_i32, 0..4_u8, strategy, 0..2, adopts);
    let spec = spec.prop_map(|(replicas, image, strategy, limit, adopt)| {
        let template = json!({"spec": {"containers": [{"name": "c", "image": image.to_string()}]}});
        json!({"replicas": replicas, "template": template, "updateStrategy": strategy, "revisionHistoryLimit": limit, "adopt": adopt})
    });
    // All writes succeed, or only the first few.
    let writes = prop_oneof![2 => Just(u32::MAX), 1 => (0..4_u32).prop_map(|first| !(u32::MAX >> first))];
    prop_oneof![
        8 => (0..5_usize, writes).prop_map(|(lag, writes)| Event::Pass { lag, writes }),
        1 => Just(Event::Crash),
        2 => spec.prop_map(Event::Spec),
        8 => (0..12_usize, phase()).prop_map(|(at, phase)| Event::Becomes(at, phase)),
        1 => (0..12_usize).prop_map(Event::Deleted),
        2 => (0..12_usize).prop_map(Event::Gone),
        1 => (0..12_usize).prop_map(Event::Unlabelled),
        1 => (0..4_usize).prop_map(Event::Forgotten),
        1 => Just(Event::NoStatus),
        1 => (0..4_u8).prop_map(Event::Orphan),
        2 => (0..60_i64).prop_map(Event::Later),
    ]
}

/// Each test run has 1,000 cases. `PROPTEST_CASES` may set more.
fn at_least_1_000_cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(1_000), ..default }
}

proptest! {
    #![proptest_config(at_least_1_000_cases())]

    /// With any pods, counted and new pods never exceed the desired number, and surplus pods are deleted.
    #[test]
    fn never_exceeds_the_desired_number(cluster in any_cluster(10), later in 0..1000_i64) {
        let (wanted, counted) = (Limits::of(&cluster.podset).wanted, cluster.figures().0);
        let plan = cluster.plan_at(0, after(later));
        let written = |verb| {
            let targets = plan.steps.iter().flatten().filter_map(Action::target);
            targets.filter(|target| target.0 == verb).map(|(.., name)| name.to_owned()).collect::<Vec<_>>()
        };
        let (made, gone) = (written(Verb::Create), written(Verb::Delete));
        prop_assert!(counted + made.len() <= wanted.max(counted));
        let going = |pod: &&Pod| gone.iter().any(|name| **name == *pod.meta.name);
        let live = cluster.pods.iter().filter(|pod| pod.is_counted()).filter(going).count();
        prop_assert_eq!(live, counted.saturating_sub(wanted));
        prop_assert!(cluster.pods.iter().filter(going).all(|pod| pod.meta.deleted.is_none()));
        prop_assert_eq!(made.iter().chain(&gone).collect::<BTreeSet<_>>().len(), made.len() + gone.len());
        prop_assert!(cluster.pods.iter().all(|pod| !made.iter().any(|name| **name == *pod.meta.name)));
    }

    /// A partly executed plan that is repeated from the same old cache creates nothing twice.
    #[test]
    fn a_stale_cache_creates_nothing_twice(mut cluster in any_cluster(10), writes in any::<[u32; 2]>()) {
        let limit = Limits::of(&cluster.podset).wanted.max(cluster.figures().0);
        let old = cluster.plan();
        for writes in writes {
            cluster.carry_out(&old, writes, NO_LIMITS)?;
            let halfway = cluster.clone();
            for plan in [cluster.plan(), old.clone()] {
                cluster.carry_out(&plan, u32::MAX, NO_LIMITS)?;
                prop_assert!(cluster.figures().0 <= limit);
            }
            cluster = halfway;
        }
    }

    /// After any events, with plans from caches of any age, the desired number of pods is ready in the end.
    /// No other pod of the PodSet is left, and the plan writes nothing more.
    #[test]
    fn converges(mut cluster in any_cluster(8), events in prop::collection::vec(event(), 0..24)) {
        for event in events {
            cluster.happens(event)?;
        }
        // The first plan creates or deletes all pods at once. Only pods that keep ending take longer.
        cluster.settle(3)?;
        let wanted = cluster.podset.spec.replicas;
        prop_assert_eq!(cluster.pods.len(), usize::try_from(wanted).unwrap());
        let last = cluster.plan();
        prop_assert!(last.steps.is_empty() && last.again.is_none());
        prop_assert_eq!(last.status.as_ref().unwrap().available_replicas, Some(wanted));
        cluster.podset.status.clone_from(&last.status);
        cluster.now += LONGEST_BACKOFF;
        prop_assert_eq!(cluster.plan(), last);
    }

    /// Other clients do anything, caches lag, and processes die between two writes. No creation exceeds
    /// replicas plus maxSurge, no deletion leaves too few available pods, and in the end the pods match the
    /// spec.
    #[test]
    fn keeps_its_promises(events in prop::collection::vec(rollout_event(), 0..60)) {
        let mut cluster = Cluster::new(of_image("0"), Vec::new());
        for event in events {
            cluster.happens(event)?;
        }
        cluster.happens(Event::Crash)?;
        prop_assert!(cluster.settle(25)?, "it converges");
        let limits = Limits::of(&cluster.podset);
        prop_assert_eq!(cluster.figures().0, limits.wanted);
        prop_assert_eq!(cluster.pods.len(), limits.wanted, "pods without the label are released");
        let hash = template_hash(&cluster.podset);
        let old = cluster.pods.iter().filter(|pod| pod.label(HASH_LABEL) != Some(&*hash)).count();
        prop_assert!(!limits.rolls || old <= limits.partition);
    }
}
