//! Polls the backlog of each PulsarConsumer that has an `adminURL`, and creates and deletes its subscription.
//!
//! Each object has its own task, so that an admin API that does not answer delays no other object. A task polls only while
//! this process leads, at intervals with jitter, and wakes its object when the answer changes. The last answer is kept here
//! and goes with the object. The task of a deleted object deletes the subscription, when the plan allows it.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use quintet_pulsar_topic::Topic;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::waker::Waker;
use quintet_runtime::lock;
use quintet_runtime::model::object::{Key, Object as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::admin::{Access, Admin, BacklogQuery, Creation, Token};
use crate::api::{InitialPosition, PulsarConsumer, PulsarConsumerSpec};
use crate::backlog::{BacklogSample, Partitions, TopicSample, Unknown};
use crate::metrics::Metrics;
use crate::observe::DeletionAttempt;
use crate::secrets;
use crate::topic::Topics;

/// The default interval of the reads.
const POLL: Duration = Duration::from_secs(30);
/// How long the Secrets of an object are kept before they are read again, and the wait after a panic.
const SECRETS: Duration = Duration::from_mins(1);
/// The longest delay of the first read, so that a new leader spreads its requests.
const SPREAD: Duration = Duration::from_secs(1);

/// The work of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Polls the backlog, and creates a missing subscription at this position.
    Poll { create: Option<InitialPosition> },
    /// Deletes the subscription.
    Delete,
}

/// The settings of an object's task. A change restarts the task.
#[derive(Clone, Debug, PartialEq)]
struct Order {
    work: Work,
    asked: BacklogQuery,
    interval: Duration,
    spec: Arc<PulsarConsumerSpec>,
}

impl Order {
    /// The settings of an object's task; None without `adminURL` or topics, or if a deleted object keeps its subscription.
    fn of(consumer: &PulsarConsumer) -> Option<Self> {
        let spec = Some(&consumer.spec).filter(|spec| spec.has_topics())?;
        let work = if consumer.terminating() {
            spec.deletes_subscription().then_some(Work::Delete)?
        } else {
            let create = spec.subscription.as_ref().and_then(|subscription| subscription.create);
            // Another image may begin at a position that only it knows.
            let default = spec.image.is_none() || spec.initial_position.is_some();
            let position = spec.initial_position.unwrap_or(InitialPosition::Latest);
            Work::Poll { create: create.unwrap_or(default).then_some(position) }
        };
        let asked = BacklogQuery {
            url: spec.admin_url.clone()?,
            topics: Topics::of(spec),
            subscription: spec.subscription_name.clone(),
            is_replicated: spec.replicate_subscription_state.unwrap_or_default(),
        };
        let interval = spec.backlog_poll_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        // Of the other fields, only the Secrets matter.
        let spec = PulsarConsumerSpec {
            auth: spec.auth.clone(),
            tls: spec.tls.clone(),
            admin_url: spec.admin_url.clone(),
            admin_tls: spec.admin_tls.clone(),
            ..Default::default()
        };
        Some(Self { work, asked, interval: interval.map_or(POLL, Duration::from_secs), spec: spec.into() })
    }
}

struct Running {
    order: Order,
    task: JoinHandle<()>,
    /// The last answer; None before the first.
    reading: Option<BacklogSample>,
    /// The last attempt to delete the subscription.
    deletion: Option<DeletionAttempt>,
    /// The permission to delete the subscription.
    may_delete: Arc<Notify>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The tasks, by the UIDs of their objects.
#[derive(Default)]
pub struct Poller {
    running: Mutex<HashMap<Arc<str>, Running>>,
}

/// The shared parts of all tasks.
struct Tools {
    context: Context,
    admin: Admin,
    metrics: Metrics,
    waker: Waker,
}

impl Poller {
    /// Subscribes to the PulsarConsumers.
    pub fn follow(
        self: Arc<Self>,
        context: &Context,
        objects: &Informer<PulsarConsumer>,
        metrics: Metrics,
        waker: Waker,
        admin: Admin,
    ) {
        let tools = Arc::new(Tools { context: context.clone(), admin, metrics, waker });
        objects.subscribe(move |change| match change {
            Change::Applied { new, .. } => self.order(new, &tools),
            Change::Deleted { old } => self.end(&old.key(), &tools),
            // The spec is unreadable.
            Change::Undecodable { key, .. } | Change::Vanished { key } => self.end(key, &tools),
        });
    }

    fn order(self: &Arc<Self>, consumer: &PulsarConsumer, tools: &Arc<Tools>) {
        let key = consumer.key();
        let Some(order) = Order::of(consumer) else { return self.end(&key, tools) };
        let mut running = lock(&self.running);
        if running.get(&key.uid).is_some_and(|running| running.order == order) {
            return;
        }
        let mut reading = None;
        if let Some(before) = running.get(&key.uid) {
            if before.order.asked == order.asked && order.work != Work::Delete {
                reading.clone_from(&before.reading);
            } else {
                tools.metrics.forget(&key);
            }
        }
        let may_delete = Arc::<Notify>::default();
        let work = keep_working(self.clone(), key.clone(), order.clone(), tools.clone(), may_delete.clone());
        let task = tokio::spawn(work);
        running.insert(key.uid, Running { order, task, reading, deletion: None, may_delete });
    }

    fn end(&self, key: &Key, tools: &Tools) {
        if lock(&self.running).remove(&key.uid).is_some() {
            tools.metrics.forget(key);
        }
    }

    /// The last reading for an object; None before the first.
    pub fn reading(&self, key: &Key) -> Option<BacklogSample> {
        lock(&self.running).get(&key.uid)?.reading.clone()
    }

    /// The last attempt to delete the subscription of a deleted object; None before the first.
    pub fn deletion(&self, key: &Key) -> Option<DeletionAttempt> {
        lock(&self.running).get(&key.uid)?.deletion.clone()
    }

    /// Lets the task of a deleted object try once to delete the subscription.
    pub fn allow_deletion(&self, key: &Key) {
        if let Some(running) = lock(&self.running).get(&key.uid) {
            running.may_delete.notify_one();
        }
    }

    /// Stores a reading. Returns whether it differs from the last one.
    fn learn(&self, key: &Key, reading: Option<BacklogSample>) -> bool {
        let mut running = lock(&self.running);
        let Some(running) = running.get_mut(&key.uid) else { return false };
        let is_news = running.reading != reading;
        running.reading = reading;
        is_news
    }
}

/// Works permanently. After a panic it restarts within a minute.
async fn keep_working(
    poller: Arc<Poller>,
    key: Key,
    order: Order,
    tools: Arc<Tools>,
    may_delete: Arc<Notify>,
) {
    loop {
        let work = async {
            match order.work {
                Work::Poll { .. } => poll(&poller, &key, &order, &tools).await,
                Work::Delete => delete(&poller, &key, &order, &may_delete, &tools).await,
            }
        };
        if AssertUnwindSafe(work).catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!(object = %key, "the task of this object panicked; restarting in a minute");
        sleep(SECRETS).await;
    }
}

/// Tries to delete the subscription whenever the plan allows it.
async fn delete(poller: &Poller, key: &Key, order: &Order, may_delete: &Arc<Notify>, tools: &Tools) {
    let gate = &tools.context.gate;
    loop {
        may_delete.notified().await;
        let attempt = async {
            let (executor, namespace) = (&tools.context.executor, &key.namespace);
            let access = secrets::access(executor, &tools.admin, namespace, &order.spec).await;
            let result = match &access {
                Ok(access) => tools.admin.session(&order.asked, access).delete_subscription().await,
                Err(unknown) => Err(unknown.clone()),
            };
            reject_token(&access, result.as_ref().err()).await;
            result
        };
        // Without the Lease, the plan of the next leader decides.
        let Some(term) = gate.term() else { continue };
        let Some(result) = gate.while_held(term.since, attempt).await else { continue };
        let is_deleted = result.is_ok();
        // A permission from before the result is of an older plan.
        let _ = may_delete.notified().now_or_never();
        let mut running = lock(&poller.running);
        if let Some(running) =
            running.get_mut(&key.uid).filter(|running| Arc::ptr_eq(&running.may_delete, may_delete))
        {
            running.deletion = Some(DeletionAttempt { at: tools.context.clock.now(), result });
        }
        drop(running);
        tools.waker.wake(key.clone());
        if is_deleted {
            // A permission that is left must not delete the subscription of a later object.
            return;
        }
    }
}

async fn poll(poller: &Poller, key: &Key, order: &Order, tools: &Tools) {
    let jitter = |within: Duration| within.mul_f64(fastrand::f64());
    let mut gate = tools.context.gate.watch();
    let mut read: Option<(Instant, Result<Access, Unknown>)> = None;
    let mut failures = 0_u32;
    let mut past = PastCreations::default();
    sleep(jitter(SPREAD)).await;
    loop {
        let Some(term) = tools.context.gate.term() else {
            past = PastCreations::default();
            // The leader exports the figures, and this process's own are old when it leads again.
            tools.metrics.forget(key);
            poller.learn(key, None);
            read = None;
            if gate.wait_for(Option::is_some).await.is_err() {
                return;
            }
            sleep(jitter(SPREAD)).await;
            continue;
        };
        let now = Instant::now();
        let (read_at, access) = match read.take() {
            Some((at, access)) if now < at + SECRETS && !has_expired(&access) => (at, access),
            _ => {
                let (executor, namespace) = (&tools.context.executor, &key.namespace);
                (now, secrets::access(executor, &tools.admin, namespace, &order.spec).await)
            }
        };
        let before = poller.reading(key);
        let partitions = before.as_ref().map(|reading| reading.partitions.clone()).unwrap_or_default();
        let readings = match &access {
            Ok(access) => {
                let reading = read_and_create(tools, key, order, access, &partitions, &mut past);
                let Some(readings) = tools.context.gate.while_held(term.since, reading).await else {
                    continue;
                };
                readings
            }
            Err(unknown) => Err(unknown.clone()),
        };
        let reading = BacklogSample::sum(readings, partitions);
        // A rejected credential may have been renewed, so it is read again at the next poll.
        let is_refused = reject_token(&access, reading.figures.as_ref().err()).await;
        read = Some((read_at, access)).filter(|_| !is_refused);
        tools.metrics.read(key, &reading);
        failures = if reading.figures.is_err() { failures + 1 } else { 0 };
        // One failure after a success is not reported: the next poll may succeed.
        let is_first = failures == 1 && before.as_ref().is_some_and(|before| before.figures.is_ok());
        if !is_first && poller.learn(key, Some(next(before, reading))) {
            tools.waker.wake(key.clone());
        }
        tokio::select! {
            // A slow read must not be followed by the next one at once.
            () = sleep_until((now + order.interval).max(Instant::now() + order.interval / 2) - jitter(order.interval / 8)) => {}
            _ = gate.wait_for(Option::is_none) => {}
        }
    }
}

/// The creations of earlier polls.
#[derive(Debug, Default)]
struct PastCreations {
    /// Those that failed, and whether such a creation may have succeeded for some partitions.
    failed: Vec<(Creation, bool)>,
    /// Whether the topics were read before.
    has_read: bool,
}

/// Reads the topics, and creates the missing subscriptions.
async fn read_and_create(
    tools: &Tools,
    key: &Key,
    order: &Order,
    access: &Access,
    last: &Partitions,
    past: &mut PastCreations,
) -> Result<Vec<TopicSample>, Unknown> {
    let session = tools.admin.session(&order.asked, access);
    let mut samples = session.read(last).await?;
    let Work::Poll { create: Some(position) } = order.work else { return Ok(samples) };
    let due = creations(&order.asked.topics, &samples, position, past);
    // The subscription exists, perhaps not in all partitions. One attempt is enough, because nothing is known to lack.
    let is_repeated = |topic: &Topic| {
        samples.iter().any(|one| one.topic == *topic && one.figures.is_ok())
            && past.failed.iter().all(|((failed, _), _)| failed != topic)
    };
    let repeated: HashSet<Topic> =
        due.iter().map(|(topic, _)| topic).filter(|topic| is_repeated(topic)).cloned().collect();
    past.has_read = true;
    past.failed = due.iter().map(|creation| (creation.clone(), true)).collect();
    let results = session.create_subscriptions(&due).await;
    let created = results.iter().filter(|result| *result == &Ok(true)).count();
    let mut failed = Vec::new();
    let untried = past.failed.split_off(results.len());
    past.failed.clear();
    for (creation, result) in due.into_iter().zip(results) {
        if let Err(refusal) = result {
            // Without the permission, no partition has it, or a consumer has created it.
            if !repeated.contains(&creation.0) {
                past.failed.push((creation.clone(), refusal.reason != Unknown::ADMIN_REFUSED));
            }
            failed.push((creation, refusal));
        }
    }
    past.failed.extend(untried);
    if created > 0 {
        tracing::info!(object = %key, topics = created, "created the subscription");
        samples = session.read(last).await?;
    }
    for ((topic, _), refusal) in failed {
        match samples.iter_mut().find(|sample| sample.topic == topic).map(|sample| &mut sample.figures) {
            Some(Err(unknown)) => {
                // The credentials need attention, not the topic.
                let is_refused = refusal.reason == Unknown::ADMIN_REFUSED;
                let reason = if is_refused { refusal.reason } else { unknown.reason };
                let message =
                    format!("{} The manager cannot create it: {}", unknown.message, refusal.message);
                // The figures are those of a topic or subscription that is gone, whatever prevents a new one.
                *unknown = Unknown { is_none_yet: true, ..Unknown::new(reason, message) };
            }
            // Otherwise the status reports it.
            _ => {
                tracing::warn!(object = %key, %topic, why = refusal.message, "cannot complete the subscription");
            }
        }
    }
    Ok(samples)
}

/// The subscriptions to create: those that a topic lacks, and those that failed. A failed creation may have succeeded for
/// some partitions, and then the broker lists the subscription.
fn creations(
    topics: &Topics,
    samples: &[TopicSample],
    position: InitialPosition,
    past: &PastCreations,
) -> Vec<Creation> {
    let is_retry = |topic: &Topic| topics.retry_letters.as_ref() == Some(topic);
    // A matching topic is newer than the subscription if it came after a read, or lacks what others have. No message of
    // it may be lost.
    let is_newer = topics.pattern.is_some()
        && (past.has_read || samples.iter().any(|one| one.figures.is_ok() && !is_retry(&one.topic)));
    let due = samples.iter().filter_map(|TopicSample { topic, figures, partitions }| {
        let position = if is_newer || is_retry(topic) { InitialPosition::Earliest } else { position };
        let failed = past.failed.iter().find(|((other, _), _)| other == topic);
        let position = failed.map_or(position, |((_, position), _)| *position);
        // A subscription in some of the partitions looks like one in all.
        let may_be_partial = || !past.has_read && partitions.is_some_and(|count| count > 0);
        let is_due = match failed {
            Some((_, may_be_partial)) => figures.is_err() || *may_be_partial,
            None => figures.is_err() || may_be_partial(),
        };
        (is_due && topic.is_persistent()).then(|| (topic.clone(), position))
    });
    due.collect()
}

/// Rejects the token if the admin API has rejected the credentials. Returns whether it has.
async fn reject_token(access: &Result<Access, Unknown>, failure: Option<&Unknown>) -> bool {
    let is_refused = failure.is_some_and(|unknown| unknown.reason == Unknown::ADMIN_REFUSED);
    if let (true, Ok(Access { token: Some(token), .. })) = (is_refused, access) {
        token.reject().await;
    }
    is_refused
}

/// Whether the token has expired.
fn has_expired(access: &Result<Access, Unknown>) -> bool {
    access.as_ref().is_ok_and(|access| access.token.as_ref().is_some_and(Token::has_expired))
}

/// Returns the reading for the status after another read. It omits the rate, and keeps the message of a
/// failure while the reason is the same, because both would change with every read. The first sentence about a missing
/// topic or subscription names the topic.
fn next(before: Option<BacklogSample>, mut reading: BacklogSample) -> BacklogSample {
    match (&mut reading.figures, before.map(|before| before.figures)) {
        (Ok(figures), _) => figures.rate = 0.0,
        (Err(now), Some(Err(before))) if now.reason == before.reason && is_about_the_same(now, &before) => {
            *now = before;
        }
        (Err(_), _) => {}
    }
    reading
}

fn is_about_the_same(now: &Unknown, before: &Unknown) -> bool {
    let first = |unknown: &Unknown| unknown.message.split(" The manager").next().map(str::to_owned);
    !now.is_none_yet || first(now) == first(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Tls;
    use crate::backlog::Figures;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn unknown(reason: &'static str, message: &str) -> Unknown {
        Unknown::new(reason, message)
    }

    fn reading(figures: Result<Figures, Unknown>) -> BacklogSample {
        BacklogSample { figures, partitions: Partitions::new() }
    }

    #[test]
    fn ignores_changes_of_rate_and_message() {
        let busy = |rate: f64| reading(Ok(Figures { rate, ..Figures::default() }));
        assert_eq!(next(Some(next(None, busy(1.0))), busy(2.0)), next(None, busy(1.0)));
        let refused = reading(Err(unknown("AdminUnreachable", "connection refused")));
        let silent = reading(Err(unknown("AdminUnreachable", "no answer")));
        assert_eq!(next(Some(refused.clone()), silent), refused);
        let other = reading(Err(unknown("AdminFailed", "500")));
        assert_eq!(next(Some(refused), other.clone()), other);
        let [a, b] =
            ["no topic a", "no topic b"].map(|message| reading(Err(unknown("TopicNotFound", message))));
        assert_eq!(next(Some(a.clone()), b.clone()), b);
        let refused = |why: &str| {
            reading(Err(unknown("TopicNotFound", &format!("no topic a The manager cannot: {why}"))))
        };
        assert_eq!(next(Some(refused("1")), refused("2")), refused("1"));
    }

    #[test]
    fn only_polling_settings_restart_the_task() {
        let mut consumer = PulsarConsumer::default();
        consumer.spec.topic = Some("t".to_owned());
        assert!(Order::of(&consumer).is_none());
        consumer.spec.admin_url = Some("http://broker".to_owned());
        let before = Order::of(&consumer).unwrap();
        assert_eq!(before.interval, POLL);
        // A scale does not restart the task.
        consumer.spec.replicas = 5;
        assert_eq!(Order::of(&consumer).unwrap(), before);
        (consumer.spec.topic, consumer.spec.topics) = (None, Some(vec!["other".to_owned()]));
        assert_ne!(Order::of(&consumer).unwrap().asked, before.asked);
        consumer.spec.backlog_poll_seconds = Some(10);
        assert_ne!(Order::of(&consumer).unwrap(), before);
        consumer.spec.admin_tls = Some(Tls::default());
        assert_eq!(Order::of(&consumer).unwrap().spec.admin_tls, consumer.spec.admin_tls);
    }

    #[rstest]
    #[case::all(json!({"topics": ["a", "b"]}), &[], &[], &["a Latest", "b Latest"])]
    #[case::one_of_two(json!({"topics": ["a", "b"]}), &["a"], &[], &["b Latest"])]
    #[case::not_persistent(json!({"topics": ["a", "non-persistent://public/default/b"]}), &[], &[], &["a Latest"])]
    #[case::all_that_match(json!({"topicsPattern": ".*"}), &[], &[], &["a Latest", "b Latest"])]
    #[case::a_new_one(json!({"topicsPattern": ".*"}), &["a"], &[], &["b Earliest"])]
    #[case::again(json!({"topicsPattern": ".*"}), &["a"], &["a", "b"], &["a Latest", "b Latest"])]
    #[case::after_nothing(json!({"topicsPattern": ".*"}), &[], &["has read"], &["a Earliest", "b Earliest"])]
    #[case::not_a_deleted_one(json!({"topicsPattern": ".*"}), &["a", "b"], &["c"], &[])]
    #[case::perhaps_in_some_partitions(json!({"topic": "partitioned"}), &["partitioned"], &[], &["partitioned Latest"])]
    #[case::in_all_partitions(json!({"topic": "partitioned"}), &["partitioned"], &["has read"], &[])]
    #[case::retry_letters(with_retries("topic", "a"), &[], &[], &["a Latest", "r Earliest"])]
    #[case::only_retry_letters(with_retries("topicsPattern", "a"), &["r"], &[], &["a Latest", "b Latest"])]
    fn a_new_subscription_loses_no_message(
        #[case] fields: Value,
        #[case] existing: &[&str],
        #[case] failed: &[&str],
        #[case] expected: &[&str],
    ) {
        let mut spec = json!({"serverAddress": "", "subscriptionName": "s"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let topics = Topics::of(&serde_json::from_value(spec).unwrap());
        let matching = topics.pattern.iter().flat_map(|_| ["a", "b"].map(Topic::of));
        let samples = topics.names().cloned().chain(matching).map(|topic| {
            let exists = existing.iter().any(|name| Topic::of(name) == topic);
            let figures = exists.then(Figures::default).ok_or_else(|| unknown(Unknown::NO_SUBSCRIPTION, ""));
            let partitions = Some(if topic == Topic::of("partitioned") { 2 } else { 0 });
            TopicSample { topic, figures, partitions }
        });
        let has_read = failed == ["has read"];
        let failed = failed.iter().map(|name| ((Topic::of(name), InitialPosition::Latest), true)).collect();
        let past = PastCreations { failed, has_read };
        let samples: Vec<TopicSample> = samples.collect();
        let due = creations(&topics, &samples, InitialPosition::Latest, &past).into_iter();
        let mut due: Vec<_> = due
            .map(|(topic, position)| {
                format!("{topic} {position:?}").replace("persistent://public/default/", "")
            })
            .collect();
        due.sort();
        assert_eq!(due, expected);
    }

    fn with_retries(field: &str, topic: &str) -> Value {
        let letters = json!({"maxRedeliverCount": 1, "deadLetterTopic": "d", "retryLetterTopic": "r"});
        json!({field: topic, "deadLetterPolicy": letters})
    }
}
