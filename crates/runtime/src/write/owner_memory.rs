//! The memory of this process about each owner: refusals, and writes that the caches must still show. Plans read
//! everything else again each time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::cache::tracked::TrackedCache;
use crate::lock;
use crate::model::clock::{Clock, FIRST_BACKOFF, LONGEST_BACKOFF, doubled};
use crate::model::conditions::shorten;
use crate::model::object::{Key, Meta};
use crate::model::plan::Plan;
use crate::model::progress::Progress;
use crate::model::refusals::{Refusal, RefusalReason, Refusals, Verb};
use crate::model::resource::{PODS, Resource};
use crate::model::status_pace::StatusTimes;

/// How long a namespace counts as being deleted without a new check; it may have been created again.
const TERMINATING: SignedDuration = LONGEST_BACKOFF;
/// The first pause of creations after several refusals in a row; it doubles until a creation succeeds.
const FIRST_STOP: SignedDuration = SignedDuration::from_secs(1);

/// Type, namespace and name of an object.
pub(super) type Place = (Resource, Arc<str>, String);

/// Writes that the caches must still show.
#[derive(Clone, Debug, Default)]
struct Written {
    /// The highest written resourceVersion and the time of the answer, by type and namespace.
    versions: HashMap<(Resource, Arc<str>), (u64, Instant)>,
    deletes: Vec<(Resource, Key, Instant)>,
    /// Writes with an unknown outcome; for a deletion, with the UID in its preconditions.
    ambiguous: HashMap<Place, Option<Arc<str>>>,
}

impl Written {
    /// Drops the writes that the caches show; deletions only when the caches show all of them. Returns whether no write
    /// to a type of these caches is left.
    fn is_shown(&mut self, caches: &[Arc<dyn TrackedCache>]) -> bool {
        let follows = |cache: &Arc<dyn TrackedCache>, of: &Resource, namespace: &str| {
            cache.resource() == *of && cache.covers(namespace)
        };
        let listed_since =
            |progress: Progress, answered: Instant| progress.listed.is_some_and(|began| began > answered);
        for cache in caches {
            let progress = cache.progress();
            self.versions.retain(|(of, namespace), (version, answered)| {
                let is_shown = progress.position >= *version || listed_since(progress, *answered);
                !(is_shown && follows(cache, of, namespace))
            });
        }
        let is_unshown = |(of, key, answered): &(Resource, Key, Instant)| {
            caches.iter().any(|cache| {
                follows(cache, of, &key.namespace)
                    && !cache.shows_deletion(key)
                    && !listed_since(cache.progress(), *answered)
            })
        };
        // A cache shows the last deletion about last, so most checks end at the first one.
        if self.deletes.iter().rev().any(is_unshown) {
            return false;
        }
        let is_followed =
            |of: &Resource, namespace: &str| caches.iter().any(|cache| follows(cache, of, namespace));
        self.deletes.retain(|(of, key, _)| !is_followed(of, &key.namespace));
        !self.versions.keys().any(|(of, namespace)| is_followed(of, namespace))
    }

    /// Keeps only writes to types of these caches. Requests a list, which shows the writes with an unknown outcome.
    fn await_lists(&mut self, caches: &[Arc<dyn TrackedCache>]) {
        let now = Instant::now();
        // A simulated clock may not advance before the list begins.
        let before = now.checked_sub(Duration::from_nanos(1)).unwrap_or(now);
        let covering = |of: &Resource, namespace: &str| {
            let is_it = |cache: &&Arc<dyn TrackedCache>| cache.resource() == *of && cache.covers(namespace);
            caches.iter().find(is_it)
        };
        for (resource, namespace, _) in std::mem::take(&mut self.ambiguous).into_keys() {
            if let Some(cache) = covering(&resource, &namespace) {
                cache.relist(now);
                self.versions.insert((resource, namespace), (u64::MAX, before));
            }
        }
        self.versions.retain(|(of, namespace), _| covering(of, namespace).is_some());
        self.deletes.retain(|(of, key, _)| covering(of, &key.namespace).is_some());
    }

    /// The types with a write that is not shown yet.
    fn resources(&self) -> impl Iterator<Item = Resource> {
        let deleted = self.deletes.iter().map(|(resource, ..)| *resource);
        let ambiguous = self.ambiguous.keys().map(|(resource, ..)| *resource);
        self.versions.keys().map(|(resource, _)| *resource).chain(deleted).chain(ambiguous)
    }
}

/// The memory about one owner.
#[derive(Default)]
struct Memory {
    written: Written,
    refusals: Refusals,
    /// The namespace of the owner counts as being deleted until this time.
    terminating: Option<Timestamp>,
    /// The last observed generation; a changed spec clears the refusals.
    generation: Option<i64>,
    /// How often creations were paused since the last successful one.
    stops: u32,
    status: StatusTimes<Instant>,
}

/// The memory about every owner.
pub struct OwnerMemory {
    clock: Clock,
    owners: Mutex<HashMap<Arc<str>, Memory>>,
    /// The writes for deleted owners. An owner that is created again must see them.
    gone: Mutex<Vec<(Key, Written)>>,
}

impl OwnerMemory {
    /// Starts empty.
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, owners: Mutex::default(), gone: Mutex::default() }
    }

    /// Changes the memory about an owner.
    fn change<T>(&self, owner: &Key, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(lock(&self.owners).entry(owner.uid.clone()).or_default())
    }

    /// Drops everything about a deleted owner but the writes that these caches do not show yet. No write for it may
    /// be in flight.
    pub fn forget(&self, owner: &Key, resource: &Resource, caches: &[Arc<dyn TrackedCache>]) {
        let mut owners = lock(&self.owners);
        let Some(Memory { mut written, .. }) = owners.remove(&owner.uid) else { return };
        // Its own status went with it.
        written.ambiguous.retain(|(of, _, name), _| of != resource || **name != *owner.name);
        written.await_lists(caches);
        if !written.is_shown(caches) {
            lock(&self.gone).push((owner.clone(), written));
        }
    }

    /// The UIDs of the owners in this store.
    pub fn remembered(&self) -> Vec<Arc<str>> {
        lock(&self.owners).keys().cloned().collect()
    }

    /// The refusals of this owner.
    pub fn refusals(&self, owner: &Key) -> Refusals {
        let now = self.clock.now();
        let latest = now.checked_add(LONGEST_BACKOFF).unwrap_or(Timestamp::MAX);
        let mut memory = lock(&self.owners);
        let Some(memory) = memory.get_mut(&owner.uid) else { return Refusals::default() };
        memory.refusals.wait_until_at_most(latest);
        memory.terminating = memory.terminating.filter(|until| *until > now).map(|until| until.min(latest));
        memory.refusals.namespace_terminating = memory.terminating.is_some();
        memory.refusals.clone()
    }

    /// Removes the actions with a waiting refusal from a plan; see [`Plan::withhold`].
    pub fn withhold<S, E>(&self, owner: &Key, plan: &mut Plan<S, E>) {
        plan.withhold(&self.refusals(owner), self.clock.now());
    }

    /// When to check again whether the owner's namespace is being deleted.
    pub fn terminating_until(&self, owner: &Key) -> Option<Timestamp> {
        lock(&self.owners).get(&owner.uid)?.terminating
    }

    /// The API server's message for a refusal of this owner that waits for a retry.
    pub fn refused_now(&self, owner: &Key) -> Option<String> {
        let memory = lock(&self.owners);
        Some(memory.get(&owner.uid)?.refusals.waiting(self.clock.now())?.message.clone())
    }

    /// Drops the refusals if the owner's spec has changed.
    pub fn observe_generation(&self, owner: &Key, generation: i64) {
        if let Some(memory) = lock(&self.owners).get_mut(&owner.uid)
            && let Some(refused) = memory.generation.replace(generation)
            && refused != generation
        {
            memory.refusals.clear();
            (memory.terminating, memory.stops) = (None, 0);
        }
    }

    /// Whether the caches show all writes for `owner`, and for deleted owners with its name.
    pub fn caught_up(&self, owner: &Key, caches: &[Arc<dyn TrackedCache>]) -> bool {
        let mut shown = lock(&self.owners).get_mut(&owner.uid).is_none_or(|one| one.written.is_shown(caches));
        lock(&self.gone).retain_mut(|(key, written)| {
            let is_shown = written.is_shown(caches);
            shown &= is_shown || (&key.namespace, &key.name) != (&owner.namespace, &owner.name);
            // Other caches may have to show the rest.
            written.resources().next().is_some()
        });
        shown
    }

    /// Whether the caches show all writes for all owners.
    pub fn all_caught_up(&self, caches: &[Arc<dyn TrackedCache>]) -> bool {
        // Call `is_shown` for every owner: it drops the shown writes, and the hand-over record lists only the rest.
        let (mut memory, mut gone) = (lock(&self.owners), lock(&self.gone));
        let writes = memory.values_mut().map(|memory| &mut memory.written);
        let writes = writes.chain(gone.iter_mut().map(|(_, written)| written));
        let mut shown = true;
        for written in writes {
            shown &= written.is_shown(caches);
        }
        shown
    }

    /// The types with a write, or a possible write, that no cache has shown yet.
    pub fn unshown(&self) -> HashSet<Resource> {
        let (memory, gone) = (lock(&self.owners), lock(&self.gone));
        let written = memory.values().map(|memory| &memory.written);
        written.chain(gone.iter().map(|(_, written)| written)).flat_map(Written::resources).collect()
    }

    /// Records the answer to a write; the caches must show its resourceVersion.
    pub(super) fn wrote(&self, owner: &Key, resource: Resource, meta: &Meta) {
        if let Ok(version) = meta.resource_version.parse::<u64>() {
            self.change(owner, |memory| {
                let place = (resource, owner.namespace.clone());
                let (highest, answered) = memory.written.versions.entry(place).or_insert((0, Instant::now()));
                (*highest, *answered) = (version.max(*highest), Instant::now());
            });
        }
    }

    /// Whether this process has sent a deletion of an object that the caches do not show yet.
    pub fn deletes(&self, owner: &str, uid: &str) -> bool {
        let memory = lock(&self.owners);
        let Some(Memory { written, .. }) = memory.get(owner) else { return false };
        written.deletes.iter().any(|(_, key, _)| *key.uid == *uid)
            || written.ambiguous.values().flatten().any(|sent| **sent == *uid)
    }

    /// Records a deletion that the caches must show.
    pub(super) fn deleted(&self, owner: &Key, resource: Resource, key: Key) {
        self.change(owner, |memory| memory.written.deletes.push((resource, key, Instant::now())));
    }

    /// The writes with an unknown outcome; for a deletion, with the UID in its preconditions.
    pub(super) fn unanswered(&self, owner: &Key) -> Vec<(Place, Option<Arc<str>>)> {
        let memory = lock(&self.owners);
        let ambiguous = memory.get(&owner.uid).map(|memory| memory.written.ambiguous.clone());
        ambiguous.unwrap_or_default().into_iter().collect()
    }

    /// Changes the record of writes with an unknown outcome.
    pub(super) fn ambiguous<T>(
        &self,
        owner: &Key,
        change: impl FnOnce(&mut HashMap<Place, Option<Arc<str>>>) -> T,
    ) -> T {
        self.change(owner, |memory| change(&mut memory.written.ambiguous))
    }

    /// Records that the owner's namespace is being deleted. Returns whether this is new.
    pub(super) fn namespace_terminates(&self, owner: &Key) -> bool {
        let until = self.clock.now().checked_add(TERMINATING).unwrap_or(Timestamp::MAX);
        self.change(owner, |memory| memory.terminating.replace(until).is_none())
    }

    /// Records a refusal and its backoff. Returns whether the action had no refusal before.
    pub(super) fn refused(
        &self,
        owner: &Key,
        (verb, resource, name): (Verb, &Resource, &str),
        reason: RefusalReason,
        message: &str,
        stops_creations: bool,
    ) -> bool {
        let now = self.clock.now();
        self.change(owner, |Memory { refusals, .. }| {
            let is_new = refusals.of(verb, resource, name).is_none();
            // Drop refusals of actions that plans no longer contain, e.g. after a change of the template.
            refusals.retain(|refusal| {
                refusal.until.checked_add(LONGEST_BACKOFF).is_ok_and(|forgotten| forgotten > now)
            });
            let times = refusals.of(verb, resource, name).map_or(0, |refusal| refusal.times);
            // The next creation may have another name. Requests that were sent together count once.
            let of_all = refusals.creations.as_ref().filter(|_| stops_creations);
            let of_all = of_all.map_or(0, |stop| stop.times - u32::from(stop.until > now));
            let times = times.max(of_all);
            let until = now.checked_add(doubled(FIRST_BACKOFF, times, LONGEST_BACKOFF));
            let (until, message) = (until.unwrap_or(Timestamp::MAX), shorten(message.to_owned(), 512));
            let refusal = Refusal { verb, reason, message, times: times + 1, until };
            if stops_creations {
                refusals.creations = Some(refusal.clone());
            }
            refusals.insert(resource, name, refusal);
            is_new
        })
    }

    /// Pauses the creations of this owner. Otherwise a rejected template would be tried on thousands of nodes at
    /// once.
    pub(super) fn pause_creations(&self, owner: &Key, name: &str) {
        self.change(owner, |memory| {
            let until = self.clock.now().checked_add(doubled(FIRST_STOP, memory.stops, LONGEST_BACKOFF));
            let last = memory.refusals.of(Verb::Create, &PODS, name).cloned();
            memory.refusals.creations =
                last.map(|last| Refusal { until: until.unwrap_or(Timestamp::MAX), ..last });
            memory.stops += 1;
        });
    }

    /// Records an object that was created without a label and may stay; None drops the record.
    pub fn leave(&self, owner: &Key, name: &str, uid: Option<&Arc<str>>) {
        self.change(owner, |Memory { refusals, .. }| match uid {
            Some(uid) => refusals.left.insert(name.to_owned(), uid.clone()),
            None => refusals.left.remove(name),
        });
    }

    /// Drops the refusal of a creation, because its obstacle has changed.
    pub(super) fn forget_creation(&self, owner: &Key, resource: &Resource, name: &str) {
        if let Some(memory) = lock(&self.owners).get_mut(&owner.uid) {
            memory.refusals.forget(Verb::Create, resource, name);
        }
    }

    /// Records a successful write.
    pub(super) fn accepted(&self, owner: &Key, verb: Verb, resource: &Resource, name: &str) {
        if let Some(memory) = lock(&self.owners).get_mut(&owner.uid) {
            memory.refusals.forget(verb, resource, name);
            if verb == Verb::Create {
                memory.terminating = None;
            }
            // A creation that was sent before the rejections does not end the pause.
            if verb == Verb::Create
                && *resource == PODS
                && memory.refusals.creations.as_ref().is_some_and(|stop| stop.until <= self.clock.now())
            {
                (memory.refusals.creations, memory.stops) = (None, 0);
            }
        }
    }

    /// When this process wrote the status of `owner`.
    pub fn status_times(&self, owner: &Key) -> StatusTimes<Instant> {
        lock(&self.owners).get(&owner.uid).map(|memory| memory.status).unwrap_or_default()
    }

    /// Records a status write.
    pub(super) fn wrote_status(&self, owner: &Key) {
        self.change(owner, |memory| memory.status.written = Some(Instant::now()));
    }

    /// Records that the last status write settled the owner.
    pub fn settled(&self, owner: &Key) {
        self.change(owner, |memory| memory.status.settled = memory.status.written);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;
    use crate::lock;

    /// A cache that shows the deletions of the pods with these numbers, and counts the checks of a pod.
    #[derive(Default)]
    struct Counting {
        shown: Mutex<Range<usize>>,
        checks: AtomicUsize,
    }

    impl TrackedCache for Counting {
        fn resource(&self) -> Resource {
            PODS
        }

        fn covers(&self, _namespace: &str) -> bool {
            true
        }

        fn scope(&self) -> &'static str {
            "pods."
        }

        fn progress(&self) -> Progress {
            Progress::default()
        }

        fn watch_progress(&self) -> watch::Receiver<Progress> {
            watch::Sender::new(Progress::default()).subscribe()
        }

        fn shows_deletion(&self, key: &Key) -> bool {
            self.checks.fetch_add(1, Ordering::Relaxed);
            key.name.parse::<usize>().is_ok_and(|number| lock(&self.shown).contains(&number))
        }

        fn relist(&self, _since: Instant) {}
    }

    /// Every event of a type causes a check, so a check must not read thousands of deleted pods.
    #[test]
    fn checks_few_deletions_at_each_event() {
        const DELETED: usize = 2_000;
        let key = |name: &str| Key { namespace: "ns".into(), name: name.into(), uid: name.into() };
        let (memory, owner) = (OwnerMemory::new(Clock::System), key("owner"));
        for number in 0..DELETED {
            memory.deleted(&owner, PODS, key(&number.to_string()));
        }
        let cache = Arc::new(Counting::default());
        let caches: [Arc<dyn TrackedCache>; 1] = [cache.clone()];
        for shown in 0..DELETED {
            *lock(&cache.shown) = 0..shown;
            assert!(!memory.caught_up(&owner, &caches), "{shown} of {DELETED}");
        }
        let checks = cache.checks.load(Ordering::Relaxed);
        assert!(checks <= 3 * DELETED, "{checks} checks of a pod");
        // The last answer may belong to an earlier event.
        *lock(&cache.shown) = 1..DELETED;
        assert!(!memory.caught_up(&owner, &caches));
        *lock(&cache.shown) = 0..DELETED;
        assert!(memory.caught_up(&owner, &caches));
        assert!(memory.unshown().is_empty());
    }
}
