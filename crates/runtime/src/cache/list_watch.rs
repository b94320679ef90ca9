//! Fills a cache: lists, follows the watch from there, and backs off after errors.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::AsyncBufRead;
use http::{Request, header};
use kube::Client;
use kube_runtime::utils::Backoff as _;
use kube_runtime::watcher::DefaultBackoff;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::cache::response::{self, Events, Interrupted, text};
use crate::cache::state::{Listing, SILENCE, State};
use crate::log_repeated;
use crate::model::object::{Key, MetaOnly};
use crate::model::progress::revision;
use crate::model::resource::{Resource, escape};
use crate::server::client::CALL;
use crate::server::connectivity::Link;
use crate::server::gate::Gate;

/// The page size if the API server cannot stream lists; small, because a decoded page determines the peak memory.
const PAGE: usize = 100;
/// How long the API server may keep one watch open; the next one continues there. client-go takes 5 to 10 minutes.
const WATCH: Duration = Duration::from_secs(590);
/// A watch that lasted this long resets the backoff and the count of interruptions.
const LASTED: Duration = Duration::from_mins(2);
/// After an outage of this length, a recovery is reported to the other tasks, and a list replaces the watch. A cut connection is
/// not an outage.
const OUTAGE: Duration = Duration::from_secs(3);
/// The pause between requests for an absent type, and the longest pause for a busy API server.
const ABSENT: Duration = Duration::from_secs(2);
/// The pause between requests for a type that may stay absent.
const PATIENTLY: Duration = Duration::from_secs(75);
/// A list or watch that lasted this long resets the backoff.
const GOOD: Duration = Duration::from_secs(5);
/// The longest pause if the API server does not answer at all: such a request costs it nothing.
const GONE: Duration = Duration::from_secs(1);
/// The longest pause before the list that replaces an expired watch.
const EXPIRED: Duration = Duration::from_secs(1);
/// The pause after a list that followed a lost watch, if the next watch is lost too. It doubles with each further list.
const RELIST: Duration = Duration::from_secs(4);
/// The longest pause between such lists.
const LONGEST_RELIST: Duration = Duration::from_mins(5);

/// The pause after a number of complete lists since the loss of the watch. The list of a large type costs the API server much
/// more than an attempt to watch.
fn pause_after(lists: u32) -> Duration {
    if lists == 0 {
        return Duration::ZERO;
    }
    RELIST.saturating_mul(1 << (lists - 1).min(16)).min(LONGEST_RELIST)
}

/// Logs ordinary interruptions, less and less often.
fn tell(times: u64, resource: Resource, interrupted: &Interrupted, next: &str) {
    let (resource, reason) = (resource.plural, interrupted);
    log_repeated!(info, times, resource, %reason, "{next}");
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    type_: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The next step of the loop.
enum Next {
    List,
    /// Follow the watch from this resourceVersion of a list.
    Follow(String),
    /// Continue a watch that ended at this resourceVersion.
    Resume(String),
    /// Wait, then continue from this resourceVersion, or list if there is none.
    Wait {
        pause: Duration,
        /// Whether a recovery of the API server or a request for a list ends the pause.
        until_news: bool,
        from: Option<String>,
    },
}

/// The namespaces and names of the objects in one list.
pub(super) type Seen = HashSet<(Arc<str>, Arc<str>)>;

/// A cache of any type, as its list and watch see it.
pub(super) trait Part: Send + Sync {
    fn state(&self) -> &State;
    /// The number of objects.
    fn count(&self) -> usize;
    /// Stores one object as the API server sent it, and passes `came` to the subscribers. Returns its resourceVersion too.
    fn apply(&self, raw: &RawValue, came: bool) -> Result<(Key, String), serde_json::Error>;
    /// Drops the object with this name.
    fn delete(&self, key: &Key);
    /// The objects that a list did not show.
    fn missing(&self, seen: &Seen) -> Vec<Key>;
}

/// Lists and watches until the future is dropped.
pub(super) async fn run(part: Arc<dyn Part>, client: Client, link: Link, gate: Gate) {
    let mut keeper = Keeper {
        backoff: DefaultBackoff::default(),
        doubts: link.doubts(),
        returns: link.recoveries(),
        relists: part.state().relist.subscribe(),
        part,
        client,
        link,
        gate,
        failing: None,
        lost: None,
        interruptions: 0,
        lists: 0,
        next_list: Instant::now(),
    };
    let mut next = Next::List;
    loop {
        next = match next {
            Next::List => keeper.list().await,
            Next::Follow(from) => keeper.follow(from).await,
            Next::Resume(from) => keeper.resume(from).await,
            Next::Wait { pause, until_news, from } => {
                keeper.wait(pause, until_news).await;
                from.map_or(Next::List, Next::Resume)
            }
        };
    }
}

/// The state of the loop of one cache.
struct Keeper {
    part: Arc<dyn Part>,
    client: Client,
    link: Link,
    gate: Gate,
    backoff: DefaultBackoff,
    doubts: watch::Receiver<u64>,
    returns: watch::Receiver<Option<Instant>>,
    relists: watch::Receiver<Option<Instant>>,
    /// The time of the first failure in a row.
    failing: Option<Instant>,
    /// The time of the first interruption since the last complete list or open watch.
    lost: Option<Instant>,
    /// The number of interruptions since a watch last lasted.
    interruptions: u64,
    /// The number of complete lists since a watch last lasted, without those during a watch.
    lists: u32,
    /// When the pause after the last list ends.
    next_list: Instant,
}

/// Reports a recovery to the other tasks if the outage was long enough.
fn is_back(failing: &mut Option<Instant>, link: &Link) {
    if failing.take().is_some_and(|since| since.elapsed() >= OUTAGE) {
        link.is_back();
    }
}

impl Keeper {
    async fn list(&mut self) -> Next {
        let began = Instant::now();
        match self.part.list(&self.client).await {
            Ok(version) => {
                let (resource, objects) = (self.part.state().resource.plural, self.part.count());
                tracing::debug!(resource, objects, version, "listed");
                self.lists = if self.part.state().unwatched().is_some() { self.lists + 1 } else { 0 };
                self.next_list = Instant::now() + pause_after(self.lists);
                // Lists that no watch follows are not a recovery.
                if self.lists < 2 {
                    is_back(&mut self.failing, &self.link);
                } else {
                    let (times, next_in_s) = (u64::from(self.lists - 1), pause_after(self.lists).as_secs());
                    log_repeated!(
                        warn,
                        times,
                        resource,
                        next_in_s,
                        "lists succeed, but watches fail; plans wait, and lists become rarer"
                    );
                }
                self.lost = None;
                if began.elapsed() >= GOOD {
                    self.backoff.reset();
                }
                Next::Follow(version)
            }
            Err(interrupted) => self.interrupted(&interrupted, None),
        }
    }

    /// Continues a watch, unless the store is older than the cache: after a restore of etcd, the API server accepts a watch
    /// from a version that its store has not reached, and sends nothing. After an outage, the store may have been restored and
    /// may have passed the version since.
    async fn resume(&mut self, at: String) -> Next {
        // An API server that lost etcd also ends watches in an orderly way.
        self.part.state().expire();
        // Nor does an open watch prove that its events arrive. A complete list proves that the cache is up to date.
        if self.lost.is_some_and(|since| since.elapsed() >= OUTAGE) || self.part.state().is_silent() {
            return self.list_again(at).await;
        }
        let known = self.part.state().known();
        match self.part.newest(&self.client).await {
            Ok(newest) if newest > 0 && newest < known => {
                self.part.state().report_restore(&format!("the store in version {newest}"));
                self.list_again(at).await
            }
            Err(interrupted)
                if interrupted.is_silence()
                    || matches!(interrupted.code(), Some(404 | 410 | 429 | 500..)) =>
            {
                self.interrupted(&interrupted, Some(at))
            }
            // A watch may be possible where this list is not, e.g. without the selector.
            _ => self.follow(at).await,
        }
    }

    /// Lists again after an outage of the watch. During the pause between lists, only an attempt to watch that succeeds ends the
    /// pause. That watch is dropped, because the store may have passed its version.
    async fn list_again(&mut self, at: String) -> Next {
        if self.until_list().is_zero() {
            return Next::List;
        }
        let opened = self.part.open_watch(&self.client, &at).await.map(drop);
        opened.map_or_else(|interrupted| self.interrupted(&interrupted, Some(at)), |()| Next::List)
    }

    /// The rest of the pause between lists. A list for a new leader or after a restore of etcd has no pause.
    fn until_list(&self) -> Duration {
        let listed = self.part.state().progress.borrow().listed;
        let requested = (*self.part.state().relist.borrow()).max(*self.gate.restores().borrow());
        if requested > listed {
            return Duration::ZERO;
        }
        self.next_list.saturating_duration_since(Instant::now())
    }

    async fn follow(&mut self, mut at: String) -> Next {
        let Self { part, client, link, gate, doubts, failing, lost, .. } = self;
        let began = Instant::now();
        let listed = part.state().progress.borrow().listed;
        let (mut relist, mut restores) = (part.state().relist.subscribe(), gate.restores());
        doubts.mark_unchanged();
        let mut open_since = None;
        let opened = || {
            is_back(failing, link);
            part.state().connected();
            *lost = None;
            open_since = Some(Instant::now());
        };
        let ended = tokio::select! {
            ended = part.follow(client, &mut at, opened) => ended,
            _ = relist.wait_for(|since| *since > listed) => return Next::List,
            _ = restores.wait_for(|since| *since > listed) => return Next::List,
            // The peer of this connection may be gone: continue at the same position on another connection.
            _ = doubts.changed() => Ok(()),
        };
        if began.elapsed() >= LASTED {
            self.backoff.reset();
            self.interruptions = 0;
        }
        if open_since.is_some_and(|since| since.elapsed() >= GOOD) {
            (self.lists, self.next_list) = (0, Instant::now());
        }
        match ended {
            // Avoid a tight loop with an API server or proxy that ends watches at once. Plans do not wait for the pause, because
            // they would wait permanently if every watch ended at once.
            Ok(()) if began.elapsed() < Duration::from_secs(1) => {
                Next::Wait { pause: self.pause(ABSENT), until_news: false, from: Some(at) }
            }
            Ok(()) => {
                if began.elapsed() >= GOOD {
                    self.backoff.reset();
                }
                Next::Resume(at)
            }
            Err(interrupted) => self.interrupted(&interrupted, Some(at)),
        }
    }

    /// The next pause of the backoff, up to `longest`.
    fn pause(&mut self, longest: Duration) -> Duration {
        self.backoff.next().unwrap_or(longest).min(longest)
    }

    /// Waits before a list, for `pause` or for the rest of the pause between lists. A request for a list ends the latter.
    fn wait_for_list(&self, pause: Duration) -> Next {
        let rest = self.until_list();
        Next::Wait { pause: pause.max(rest), until_news: rest > pause, from: None }
    }

    fn interrupted(&mut self, interrupted: &Interrupted, from: Option<String>) -> Next {
        let from = from.filter(|_| !interrupted.needs_list());
        let (part, resource) = (&self.part, self.part.state().resource);
        // etcd may be restored meanwhile. Plans wait until the watch continues.
        part.state().expire();
        part.state().lost();
        self.lost.get_or_insert_with(Instant::now);
        if interrupted.is_misunderstanding() {
            part.state().ask_for_json();
        }
        if interrupted.code().is_some() && !interrupted.is_silence() {
            part.state().answered();
        }
        if resource.custom && interrupted.code() == Some(404) {
            part.state().absent();
            return self.wait_for_list(if part.state().is_patient() { PATIENTLY } else { ABSENT });
        }
        self.interruptions += 1;
        if interrupted.needs_list() {
            tell(self.interruptions, resource, interrupted, "listing again");
            let pause = self.pause(EXPIRED);
            return self.wait_for_list(pause);
        }
        if interrupted.code() == Some(429) {
            // Just defined types answer 429 for a moment; later the answer means that the API server is busy.
            tell(self.interruptions, resource, interrupted, "the API server is busy; retrying");
            return Next::Wait { pause: self.pause(ABSENT), until_news: false, from };
        }
        // Rejections after an outage are a new problem, so the first one gets a short pause.
        if interrupted.is_silence() {
            self.backoff.reset();
        }
        let pause = self.backoff.next().unwrap_or(Duration::from_secs(30));
        let pause = if interrupted.is_silence() { pause.min(GONE) } else { pause };
        self.failing.get_or_insert_with(Instant::now);
        let again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let (resource, error) = (resource.plural, interrupted.to_string());
        log_repeated!(
            warn,
            self.interruptions,
            resource,
            error,
            again_in_ms,
            "a list or watch was interrupted"
        );
        Next::Wait { pause, until_news: true, from }
    }

    async fn wait(&mut self, pause: Duration, until_news: bool) {
        self.returns.mark_unchanged();
        let mut restores = self.gate.restores();
        let known = *restores.borrow();
        tokio::select! {
            () = sleep(pause) => {}
            _ = self.returns.changed(), if until_news => {}
            _ = restores.wait_for(|last| *last != known), if until_news => {}
            // A new leader waits for this list.
            _ = self.relists.changed(), if until_news => {}
        }
    }
}

impl dyn Part {
    /// Fills the cache by a streaming list, or by pages if the API server cannot stream now. The next list streams again.
    async fn list(&self, client: &Client) -> Result<String, Interrupted> {
        let listing = self.state().begin_list();
        let query = format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
             &timeoutSeconds={}",
            WATCH.as_secs()
        );
        match self.open(client, &query).await {
            // API servers without streaming lists reject the parameters (422, or 400 from older ones).
            Err(refused) if matches!(refused.code(), Some(400 | 422)) => {}
            Err(interrupted) => return Err(interrupted),
            // An event may report that the watch cache cannot serve the list (500, 504). A proxy may cut a long answer.
            Ok(events) => match self.fill(events, &listing).await {
                Err(interrupted)
                    if !interrupted.is_misunderstanding()
                        && !matches!(interrupted, Interrupted::TooLarge) =>
                {
                    tell(1, self.state().resource, &interrupted, "listing by pages");
                }
                filled => return filled,
            },
        }
        self.list_by_pages(client).await
    }

    /// The newest resourceVersion of the store. Without a selector, the API server reads one object.
    async fn newest(&self, client: &Client) -> Result<u64, Interrupted> {
        let path = self.state().resource.path(&self.state().namespace);
        let request = Request::get(format!("{path}?limit=1")).body(Vec::new())?;
        let text = text(client, request).await?;
        let page: Page<'_> = serde_json::from_str(&text)?;
        Ok(revision(&page.metadata.resource_version))
    }

    async fn list_by_pages(&self, client: &Client) -> Result<String, Interrupted> {
        let listing = self.state().begin_list();
        let mut seen = Seen::new();
        let mut next = String::new();
        loop {
            let request = self.request(&format!("limit={PAGE}{next}"))?;
            let text = text(client, request).await?;
            let page: Page<'_> = serde_json::from_str(&text)?;
            for raw in page.items {
                let (key, _) = self.apply(raw, false)?;
                seen.insert((key.namespace, key.name));
            }
            self.state().listing(seen.len(), &listing);
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => next = format!("&continue={}", escape(&token)),
                _ => {
                    self.sweep(&seen, &page.metadata.resource_version, &listing);
                    return Ok(page.metadata.resource_version);
                }
            }
        }
    }

    /// Fills the cache with the events of a streaming list.
    async fn fill(
        &self,
        mut events: Events<impl AsyncBufRead + Unpin>,
        listing: &Listing,
    ) -> Result<String, Interrupted> {
        let mut seen = Seen::new();
        let mut line = Vec::new();
        while events.next(&mut line, CALL).await? {
            let event: Line<'_> = serde_json::from_slice(&line)?;
            match &*event.type_ {
                "BOOKMARK" => {
                    let MetaOnly { metadata: meta } = serde_json::from_str(event.object.get())?;
                    if meta.annotations.get("k8s.io/initial-events-end") == Some("true") {
                        self.sweep(&seen, &meta.resource_version, listing);
                        return Ok(meta.resource_version.0.into());
                    }
                }
                "ERROR" => return Err(Interrupted::Watch(serde_json::from_str(event.object.get())?)),
                "DELETED" => {
                    let MetaOnly { metadata: meta } = serde_json::from_str(event.object.get())?;
                    let key = meta.key();
                    seen.remove(&(key.namespace.clone(), key.name.clone()));
                    self.delete(&key);
                }
                _ => {
                    let (key, _) = self.apply(event.object, false)?;
                    seen.insert((key.namespace, key.name));
                    self.state().listing(seen.len(), listing);
                }
            }
        }
        Err(Interrupted::Read(std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Completes a list: drops the objects that it did not show, and sets the position to `version`.
    fn sweep(&self, seen: &Seen, version: &str, listing: &Listing) {
        let state = self.state();
        let version = Some(revision(version)).filter(|version| *version > 0);
        if version.is_some_and(|version| version < listing.known) {
            state.report_restore("a list");
        }
        let undecodable = state.undecodable().into_iter().map(|(key, _)| key);
        let undecodable =
            undecodable.filter(|key| !seen.contains(&(key.namespace.clone(), key.name.clone())));
        for key in self.missing(seen).into_iter().chain(undecodable) {
            self.delete(&key);
        }
        state.listed(version, listing);
    }

    /// Follows one watch from `position` until the API server ends it, and advances `position`.
    async fn follow(
        &self,
        client: &Client,
        position: &mut String,
        mut opened: impl FnMut(),
    ) -> Result<(), Interrupted> {
        let mut events = self.open_watch(client, position).await?;
        opened();
        let mut line = Vec::new();
        while events.next(&mut line, SILENCE).await? {
            let event: Line<'_> = serde_json::from_slice(&line)?;
            if &*event.type_ == "ERROR" {
                return Err(Interrupted::Watch(serde_json::from_str(event.object.get())?));
            }
            let happened = &*event.type_ != "BOOKMARK";
            *position = match &*event.type_ {
                added @ ("ADDED" | "MODIFIED") => self.apply(event.object, added == "ADDED")?.1,
                other => {
                    let meta = serde_json::from_str::<MetaOnly>(event.object.get())?.metadata;
                    if other == "DELETED" {
                        self.delete(&meta.key());
                    }
                    meta.resource_version.0.into()
                }
            };
            self.state().advance(position, happened);
            self.state().heard();
        }
        Ok(())
    }

    /// Opens a watch from `position`.
    async fn open_watch(
        &self,
        client: &Client,
        position: &str,
    ) -> Result<Events<impl AsyncBufRead + Unpin + use<>>, Interrupted> {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={}",
            WATCH.as_secs()
        );
        self.open(client, &query).await
    }

    fn request(&self, query: &str) -> Result<Request<Vec<u8>>, Interrupted> {
        let State { resource, namespace, selector, .. } = self.state();
        let path = resource.path(namespace);
        let selector =
            selector.map(|labels| format!("&labelSelector={}", escape(labels))).unwrap_or_default();
        Ok(Request::get(format!("{path}?{query}{selector}"))
            // The API server compresses each event on its own, which saves nothing on a local network.
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Vec::new())?)
    }

    /// Opens a watch, in protobuf if this process can read the type and the API server supports it.
    async fn open(
        &self,
        client: &Client,
        query: &str,
    ) -> Result<Events<impl AsyncBufRead + Unpin + use<>>, Interrupted> {
        response::open(client, self.request(query)?, self.state().protobuf()).await
    }
}

#[cfg(test)]
mod tests;
