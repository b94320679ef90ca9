//! Reads and watches objects as `kubectl get -o json` does, without a process for each read.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::StreamExt as _;
use http::header;
use kube::api::{GetParams, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Client, Config};
use quintet_localcluster::run;
use quintet_runtime::lock;
use serde_json::Value;
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;
use tokio::time;

use crate::{PATIENCE, PAUSE, answered};

/// The limit of one request.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs all requests, because tests are not asynchronous.
static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
});

/// Waits for an answer.
fn block_on<T: Send + 'static>(request: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let (answer, answers) = mpsc::channel();
    RUNTIME.spawn(async move {
        let limited = time::timeout(LIMIT, request).await;
        let _ = answer.send(limited.unwrap_or_else(|_| Err(anyhow!("no answer within {LIMIT:?}"))));
    });
    answers.recv()?
}

/// A client that does not retry.
pub async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// The objects of a cluster, with the administrator's rights.
#[derive(Clone)]
pub struct Objects {
    kubeconfig: PathBuf,
    client: Arc<OnceLock<Client>>,
    resources: Arc<Mutex<Vec<Resource>>>,
}

/// A resource that the API server serves.
#[derive(Clone)]
struct Resource {
    /// Plural, singular and short names.
    names: Vec<String>,
    group: String,
    /// The path of the preferred version.
    path: String,
    plural: String,
    api_version: String,
    kind: String,
    is_namespaced: bool,
}

impl Resource {
    /// The path of all objects in the namespace; in all namespaces if it is empty.
    fn path(&self, namespace: &str) -> String {
        let Self { path, plural, .. } = self;
        if self.is_namespaced && !namespace.is_empty() {
            format!("{path}/namespaces/{namespace}/{plural}")
        } else {
            format!("{path}/{plural}")
        }
    }

    /// The object as kubectl prints it.
    fn printed(&self, mut object: Value) -> Value {
        if let Some(members) = object.as_object_mut() {
            members.entry("apiVersion").or_insert_with(|| self.api_version.clone().into());
            members.entry("kind").or_insert_with(|| self.kind.clone().into());
        }
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        object
    }
}

impl Objects {
    /// Does not connect yet.
    pub fn new(kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, client: Arc::default(), resources: Arc::default() }
    }

    /// An object, or `None` if it does not exist.
    pub fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Option<Value>> {
        let (client, resource) = (self.client()?, self.resource(kind)?);
        let request = Request::new(resource.path(namespace)).get(name, &GetParams::default())?;
        block_on(async move {
            match client.request::<Value>(request).await {
                Ok(object) => Ok(Some(resource.printed(object))),
                // An API server that does not serve the resource gives another reason.
                Err(kube::Error::Api(status)) if status.reason == "NotFound" => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// The objects that match the selector, in all namespaces if `namespace` is empty.
    pub fn list(&self, namespace: &str, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let (client, resource) = (self.client()?, self.resource(kind)?);
        let path = resource.path(namespace);
        let selector = selector.to_owned();
        block_on(async move { Ok(list(&client, &resource, &path, &selector).await?.0) })
    }

    /// Watches the objects that match the selector, from now on.
    pub fn watch(&self, namespace: &str, kind: &str, selector: &str) -> Watch {
        let (client, resource) = answered(|| anyhow::Ok((self.client()?, self.resource(kind)?)));
        let path = resource.path(namespace);
        let (objects, last) = answered(|| {
            let (client, resource, path, selector) =
                (client.clone(), resource.clone(), path.clone(), selector.to_owned());
            block_on(async move { list(&client, &resource, &path, &selector).await })
        });
        let events = objects.into_iter().map(|object| ("ADDED".to_owned(), object)).collect();
        let seen = Arc::new(Mutex::new(Seen { events, ended: None }));
        let params = WatchParams::default().labels(selector);
        let follow = follow(client, resource, (path, params, last), Arc::clone(&seen));
        let [namespace, kind, selector] = [namespace, kind, selector].map(str::to_owned);
        Watch {
            objects: self.clone(),
            namespace,
            kind,
            selector,
            seen,
            task: RUNTIME.spawn(follow).abort_handle(),
        }
    }

    fn client(&self) -> Result<Client> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let kubeconfig = self.kubeconfig.clone();
        let client = block_on(async move { connect(&kubeconfig).await })?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    /// The resource with this name, as kubectl finds it: the first of the API server's order. The name is plural, singular
    /// or short, and the group may follow a dot.
    fn resource(&self, name: &str) -> Result<Resource> {
        let (name, group) = name.split_once('.').unwrap_or((name, ""));
        let name = name.to_lowercase();
        let find = |resources: &[Resource]| {
            let is_it =
                |one: &&Resource| one.names.contains(&name) && (group.is_empty() || one.group == group);
            resources.iter().find(is_it).cloned()
        };
        let mut resources = lock(&self.resources);
        if let Some(found) = find(&resources) {
            return Ok(found);
        }
        // A definition may be new.
        let client = self.client()?;
        *resources = block_on(async move { discover(&client).await })?;
        find(&resources).with_context(|| format!("the API server has no resource {name:?}"))
    }
}

/// All resources, from the two documents of aggregated discovery.
async fn discover(client: &Client) -> Result<Vec<Resource>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut resources = Vec::new();
    for root in ["/api", "/apis"] {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = http::Request::get(root).header(header::ACCEPT, accept).body(Vec::new())?;
        let groups: Value = client.request(request).await?;
        for group in items(&groups["items"]) {
            let name = text(&group["metadata"]["name"]);
            for version in items(&group["versions"]) {
                let api_version = [&*name, &*text(&version["version"])].join("/");
                let api_version = api_version.trim_start_matches('/').to_owned();
                for one in items(&version["resources"]) {
                    let mut names = vec![text(&one["resource"]), text(&one["singularResource"])];
                    names.extend(items(&one["shortNames"]).iter().map(text));
                    resources.push(Resource {
                        names,
                        group: name.clone(),
                        path: format!("{root}/{api_version}"),
                        plural: text(&one["resource"]),
                        api_version: api_version.clone(),
                        kind: text(&one["responseKind"]["kind"]),
                        is_namespaced: one["scope"] == "Namespaced",
                    });
                }
            }
        }
    }
    Ok(resources)
}

/// Objects, and the version of their list.
async fn list(
    client: &Client,
    resource: &Resource,
    path: &str,
    selector: &str,
) -> Result<(Vec<Value>, String)> {
    let request = Request::new(path).list(&ListParams::default().labels(selector))?;
    let mut list: Value = client.request(request).await?;
    let version = version(&list);
    let Value::Array(items) = list["items"].take() else { bail!("{path} has no items: {list}") };
    Ok((items.into_iter().map(|object| resource.printed(object)).collect(), version))
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// The events of a watch.
#[derive(Default)]
struct Seen {
    events: Vec<(String, Value)>,
    /// Why no event follows.
    ended: Option<String>,
}

/// Adds the events after a version until the task is aborted. A new watch begins with the last version that the old one
/// showed, so no change is lost.
async fn follow(
    client: Client,
    resource: Resource,
    (path, params, mut last): (String, WatchParams, String),
    seen: Arc<Mutex<Seen>>,
) {
    let end = |why: String| lock(&seen).ended = Some(why);
    loop {
        let request = match Request::new(&path).watch(&params, &last) {
            Ok(request) => request,
            Err(error) => return end(error.to_string()),
        };
        if let Ok(stream) = client.request_events::<Value>(request).await {
            let mut stream = pin!(stream);
            while let Some(Ok(event)) = stream.next().await {
                let (type_, object) = match event {
                    WatchEvent::Added(object) => ("ADDED", object),
                    WatchEvent::Modified(object) => ("MODIFIED", object),
                    WatchEvent::Deleted(object) => ("DELETED", object),
                    WatchEvent::Bookmark(bookmark) => {
                        last = bookmark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => return end(status.message),
                };
                last = version(&object);
                lock(&seen).events.push((type_.to_owned(), resource.printed(object)));
            }
        }
        time::sleep(PAUSE).await;
    }
}

/// Follows objects until it is dropped.
pub struct Watch {
    objects: Objects,
    namespace: String,
    kind: String,
    selector: String,
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
}

impl Watch {
    /// Every change so far, with the changes that led to the current objects: `ADDED`, `MODIFIED` or
    /// `DELETED`, and the object as it was then. Objects that existed before are reported as added.
    pub fn events(&self) -> Vec<(String, Value)> {
        let there = answered(|| self.objects.list(&self.namespace, &self.kind, &self.selector));
        run::poll("the watch shows the current objects", PATIENCE, PAUSE, || {
            let seen = lock(&self.seen);
            if let Some(why) = &seen.ended {
                bail!("the watch of {} has ended: {why}", self.kind);
            }
            let shows =
                |object: &Value| seen.events.iter().any(|(_, event)| version(event) == version(object));
            Ok(there.iter().all(shows).then(|| seen.events.clone()))
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until `was` is true for any past or present state of an object, and returns that state.
    pub fn wait_for(&self, what: &str, was: impl Fn(&Value) -> bool) -> Value {
        let seen = run::poll(what, PATIENCE, PAUSE, || {
            Ok(self.events().into_iter().map(|(_, object)| object).find(|object| was(object)))
        });
        seen.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
