//! The server's state: objects, their versions and the log of changes, and the effect of a request.
//! Everything is synchronous and happens at one moment.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::ownership::{Manager, Owners};
use crate::select::Selection;
use crate::types::Type;
use crate::{Commit, Script, patch};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub who: String,
    pub method: Method,
    pub target: Target,
    pub query: BTreeMap<String, String>,
    pub content_type: String,
    pub accept: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub plural: String,
    pub name: String,
    pub subresource: String,
}

impl Target {
    /// Returns `None` for a path that is not of the API.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let mut target = Self::default();
        let rest = match parts.first().map(String::as_str) {
            Some("api") if parts.len() > 2 => {
                target.version.clone_from(&parts[1]);
                &parts[2..]
            }
            Some("apis") if parts.len() > 3 => {
                target.group.clone_from(&parts[1]);
                target.version.clone_from(&parts[2]);
                &parts[3..]
            }
            _ => return None,
        };
        let rest = if rest[0] == "namespaces" && rest.len() > 2 {
            target.namespace.clone_from(&rest[1]);
            &rest[2..]
        } else {
            rest
        };
        let mut rest = rest.iter();
        target.plural.clone_from(rest.next()?);
        target.name = rest.next().cloned().unwrap_or_default();
        target.subresource = rest.next().cloned().unwrap_or_default();
        rest.next().is_none().then_some(target)
    }
}

/// Decodes percent-encoding.
pub(crate) fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next(), rest.next()].map(|digit| digit.map_or('0', char::from));
            let code = digits.iter().collect::<String>();
            bytes.push(u8::from_str_radix(&code, 16).unwrap_or(b'?'));
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) enum Reply {
    Object(u16, Value),
    /// The answer to an unknown path, which is not an object of the API.
    Text(u16, &'static str),
    Watch(Watching),
}

pub(crate) struct Watching {
    pub kind: usize,
    pub namespace: String,
    pub selection: Selection,
    /// The watch sends the changes after this revision.
    pub from: u64,
    /// The initial state.
    pub initial: Vec<Arc<Value>>,
    /// Whether a bookmark marks the end of the initial state.
    pub marks_initial: bool,
    pub bookmarks: bool,
    pub seconds: u64,
    pub is_expired: bool,
}

/// A change, as watches see it.
#[derive(Clone)]
pub(crate) struct Logged {
    pub revision: u64,
    pub kind: usize,
    pub old: Option<Arc<Value>>,
    pub new: Option<Arc<Value>>,
    /// The stored object before the change. For a deletion, `old` is instead the last state.
    pub before: Option<Arc<Value>>,
}

#[derive(Clone)]
struct Stored {
    object: Arc<Value>,
    owners: Owners,
}

type Place = (usize, String, String);

/// The stored objects and their revision, as in a backup of etcd.
#[derive(Clone)]
pub struct Snapshot {
    revision: u64,
    objects: BTreeMap<Place, Stored>,
}

/// The state of the server.
pub struct State {
    pub(crate) types: Vec<Arc<Type>>,
    pub(crate) revision: u64,
    pub(crate) compacted: u64,
    objects: BTreeMap<Place, Stored>,
    pub(crate) log: VecDeque<Logged>,
    /// The number of UIDs for each client, so that the writes of a client do not change the UIDs of another.
    uids: BTreeMap<String, u64>,
    tokens: u64,
    seed: u64,
    pages: BTreeMap<u64, (u64, Vec<Arc<Value>>)>,
}

fn failure(code: u16, reason: &str, message: impl Into<String>) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message.into(), "reason": reason, "code": code })
}

pub(crate) fn failure_of(kind: &Type, name: &str, code: u16, reason: &str, message: &str) -> Value {
    let mut status = failure(code, reason, message);
    status["details"] = json!({ "kind": kind.plural });
    if !name.is_empty() {
        status["details"]["name"] = json!(name);
    }
    if !kind.group.is_empty() {
        status["details"]["group"] = json!(kind.group);
    }
    status
}

/// The answer if another client has changed an object meanwhile.
pub(crate) fn conflict(kind: &Type, name: &str, why: &str) -> Value {
    let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified());
    failure_of(kind, name, 409, "Conflict", &message)
}

const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(crate) fn not_found(kind: &Type, name: &str) -> Value {
    failure_of(kind, name, 404, "NotFound", &format!("{} \"{name}\" not found", kind.qualified()))
}

pub(crate) fn already_exists(kind: &Type, name: &str) -> Value {
    failure_of(kind, name, 409, "AlreadyExists", &format!("{} \"{name}\" already exists", kind.qualified()))
}

pub(crate) fn invalid(kind: &Type, name: &str, wrong: &str) -> Value {
    let of = if kind.group.is_empty() { kind.kind.clone() } else { format!("{}.{}", kind.kind, kind.group) };
    failure_of(kind, name, 422, "Invalid", &format!("{of} \"{name}\" is invalid: {wrong}"))
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn list<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object["metadata"][field].as_array().map_or(&[], Vec::as_slice)
}

/// A timestamp in the format of the API, in whole seconds.
fn stamp(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The circumstances of a request.
pub(crate) struct Moment<'a> {
    pub now: Timestamp,
    pub script: &'a dyn Script,
    pub who: &'a str,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            types: Type::built_in().into_iter().map(Arc::new).collect(),
            revision: 1_000,
            compacted: 0,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            uids: BTreeMap::new(),
            tokens: 0,
            seed,
            pages: BTreeMap::new(),
        }
    }

    /// The state at an older revision; `None` if the log does not reach back to it.
    pub(crate) fn as_of(&self, revision: u64) -> Option<Self> {
        if revision < self.compacted {
            return None;
        }
        let mut past = Self {
            types: self.types.clone(),
            revision,
            compacted: self.compacted,
            objects: self.objects.clone(),
            log: self.log.clone(),
            uids: self.uids.clone(),
            tokens: self.tokens,
            seed: self.seed,
            pages: BTreeMap::new(),
        };
        while let Some(undone) = past.log.pop_back_if(|logged| logged.revision > revision) {
            let object = undone.new.as_deref().or(undone.old.as_deref())?;
            let (namespace, name) = place_of(object);
            let place = (undone.kind, namespace, name);
            let owners = past.objects.remove(&place).map(|stored| stored.owners).unwrap_or_default();
            if let Some(object) = undone.before {
                past.objects.insert(place, Stored { object, owners });
            }
        }
        Some(past)
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The objects of a type, by namespace and name. `plural` is qualified: `leases.coordination.k8s.io`.
    pub fn objects(&self, plural: &str) -> impl Iterator<Item = &Arc<Value>> + use<'_> {
        let kind = self.types.iter().position(|kind| kind.is_called(plural)).unwrap_or(usize::MAX);
        let from: Place = (kind, String::new(), String::new());
        let of = self.objects.range(from..).take_while(move |(place, _)| place.0 == kind);
        of.map(|(_, stored)| &stored.object)
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.objects.values().map(|stored| &stored.object)
    }

    /// All objects with their qualified plurals.
    pub fn all(&self) -> impl Iterator<Item = (String, &Arc<Value>)> {
        self.objects.iter().map(|(place, stored)| (self.types[place.0].qualified(), &stored.object))
    }

    pub(crate) fn kind_of(&self, target: &Target) -> Option<usize> {
        self.types.iter().position(|kind| {
            kind.group == target.group && kind.version == target.version && kind.plural == target.plural
        })
    }

    fn uid(&mut self, who: &str) -> String {
        let count = self.uids.entry(who.to_owned()).or_default();
        *count += 1;
        let whose =
            who.bytes().fold(self.seed, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(byte.into()));
        // splitmix64: distinct UIDs that are the same in each run of a seed.
        let mut mixed = whose.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        format!("{:08x}-{:04x}-4000-8000-{count:012x}", mixed >> 32, (mixed >> 16) & 0xffff)
    }

    pub(crate) fn handle(&mut self, request: &Request, moment: &Moment<'_>) -> Reply {
        let Some(kind) = self.kind_of(&request.target) else {
            return Reply::Text(404, "404 page not found\n");
        };
        let of = self.types[kind].clone();
        let answered = match (&request.method, request.target.name.is_empty()) {
            (&Method::GET, true)
                if request.query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") =>
            {
                return self.watch(kind, &of, request);
            }
            (&Method::GET, true) => self.list(kind, &of, request),
            (&Method::GET, false) => self
                .objects
                .get(&place(kind, &of, &request.target))
                .map(|stored| (200, (*stored.object).clone()))
                .ok_or_else(|| not_found(&of, &request.target.name)),
            (&Method::POST, true) => self.create(kind, &of, request, moment),
            (&Method::PUT | &Method::PATCH, false) => self.update(kind, &of, request, moment),
            (&Method::DELETE, false) => self.delete(kind, &of, request, moment),
            (&Method::DELETE, true) => self.delete_collection(kind, &of, request, moment),
            _ => Err(failure(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )),
        };
        match answered {
            Ok((code, object)) => Reply::Object(code, as_accepted(&request.accept, object)),
            Err(status) => {
                let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                Reply::Object(code, status)
            }
        }
    }

    fn selected(&self, kind: usize, namespace: &str, selection: &Selection) -> Vec<Arc<Value>> {
        let here = |place: &Place| place.0 == kind && (namespace.is_empty() || place.1 == namespace);
        let there = self.objects.iter().filter(|(place, _)| here(place));
        there.map(|(_, stored)| &stored.object).filter(|object| selection.selects(object)).cloned().collect()
    }

    /// The answer to a request for a version that does not exist yet.
    fn too_new(&self, asked: &str) -> Option<Value> {
        let asked = asked.parse::<u64>().ok().filter(|asked| *asked > self.revision)?;
        let message = format!("Timeout: Too large resource version: {asked}, current: {}", self.revision);
        let mut status = failure(504, "Timeout", message);
        status["details"] = json!({ "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }], "retryAfterSeconds": 1 });
        Some(status)
    }

    fn selection(request: &Request) -> Result<Selection, Value> {
        let part = |name: &str| request.query.get(name).map(String::as_str).unwrap_or_default();
        Selection::parse(part("labelSelector"), part("fieldSelector"))
            .map_err(|error| failure(400, "BadRequest", error))
    }

    fn list(&mut self, kind: usize, of: &Type, request: &Request) -> Result<(u16, Value), Value> {
        let selection = Self::selection(request)?;
        let part = |name: &str| request.query.get(name).map(String::as_str).unwrap_or_default();
        if let Some(status) = self.too_new(part("resourceVersion")) {
            return Err(status);
        }
        let exact = part("resourceVersionMatch") == "Exact";
        if exact && part("resourceVersion").parse::<u64>().is_ok_and(|asked| asked < self.compacted) {
            return Err(expired());
        }
        let (revision, mut rest) = if part("continue").is_empty() {
            (self.revision, self.selected(kind, &request.target.namespace, &selection))
        } else {
            let token = part("continue").strip_prefix("token-").and_then(|token| token.parse::<u64>().ok());
            token.and_then(|token| self.pages.remove(&token)).ok_or_else(|| {
                failure(410, "Expired", "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
            })?
        };
        let limit = part("limit").parse::<usize>().unwrap_or(0);
        let mut meta = json!({ "resourceVersion": revision.to_string() });
        if limit > 0 && rest.len() > limit {
            let more = rest.split_off(limit);
            self.tokens += 1;
            meta["continue"] = json!(format!("token-{}", self.tokens));
            meta["remainingItemCount"] = json!(more.len());
            self.pages.insert(self.tokens, (revision, more));
        }
        let items: Vec<Value> = rest.iter().map(|object| item(of, object)).collect();
        let kind = format!("{}List", of.kind);
        Ok((200, json!({ "kind": kind, "apiVersion": of.api_version(), "metadata": meta, "items": items })))
    }

    fn watch(&mut self, kind: usize, of: &Type, request: &Request) -> Reply {
        let part = |name: &str| request.query.get(name).map(String::as_str).unwrap_or_default();
        let selection = match Self::selection(request) {
            Ok(selection) => selection,
            Err(status) => return Reply::Object(400, status),
        };
        let streams = part("sendInitialEvents") == "true";
        if streams && part("resourceVersionMatch") != "NotOlderThan" {
            let wrong = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return Reply::Object(422, invalid(of, "", wrong));
        }
        let asked = part("resourceVersion");
        let from = asked.parse::<u64>().unwrap_or(0);
        let begins = streams || from == 0;
        let mut selection_of_all =
            if begins { self.selected(kind, &request.target.namespace, &selection) } else { Vec::new() };
        selection_of_all.sort_by_key(|object| place_of(object));
        Reply::Watch(Watching {
            kind,
            namespace: request.target.namespace.clone(),
            selection,
            from: if begins { self.revision } else { from },
            initial: selection_of_all,
            marks_initial: streams,
            bookmarks: part("allowWatchBookmarks") == "true",
            seconds: part("timeoutSeconds").parse().unwrap_or(1_800),
            is_expired: !begins && from < self.compacted,
        })
    }

    fn create(
        &mut self,
        kind: usize,
        of: &Type,
        request: &Request,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let mut object = parse(&request.body)?;
        let name = text(&object["metadata"], "name").to_owned();
        self.admit_creation(of, &request.target.namespace, &object, &name)?;
        let target = Target { name: name.clone(), ..request.target.clone() };
        let place = place(kind, of, &target);
        if let Some(there) = self.objects.get(&place) {
            let mut status = already_exists(of, &name);
            if !there.object["metadata"]["deletionTimestamp"].is_null() {
                status["message"] = json!(format!("object is being deleted: {}", text(&status, "message")));
            }
            return Err(status);
        }
        self.dress(of, &place, &mut object, moment);
        if of.has_status
            && let (true, Some(fields)) = (of.is_custom(), object.as_object_mut())
        {
            fields.remove("status");
        }
        of.complete(&mut object);
        let wrong = of.validate(&object);
        if let Some(first) = wrong.first() {
            return Err(invalid(of, &name, first));
        }
        let mut owners = Owners::default();
        owners.update(of.schema.as_ref(), None, &object, &manager(request));
        Ok((201, self.put(&place, object, owners, moment)))
    }

    /// Checks the name and the namespace of a new object.
    fn admit_creation(&self, of: &Type, namespace: &str, object: &Value, name: &str) -> Result<(), Value> {
        if name.is_empty() {
            return Err(invalid(of, "", "metadata.name: Required value: name or generateName is required"));
        }
        if of.namespaced {
            let given = text(&object["metadata"], "namespace");
            if !given.is_empty() && given != namespace {
                return Err(failure(
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            let spaces = self.types.iter().position(|kind| kind.plural == "namespaces");
            let space =
                spaces.and_then(|kind| self.objects.get(&(kind, String::new(), namespace.to_owned())));
            let spaces =
                self.types.iter().find(|kind| kind.plural == "namespaces").map_or(of, |kind| &**kind);
            let Some(space) = space else { return Err(not_found(spaces, namespace)) };
            if !space.object["metadata"]["deletionTimestamp"].is_null() {
                let message = format!(
                    "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
                    of.qualified()
                );
                let mut status = failure_of(of, name, 403, "Forbidden", &message);
                status["details"]["causes"] = json!([{ "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace" }]);
                return Err(status);
            }
        }
        Ok(())
    }

    /// Sets the fields of a new object that only the server sets.
    fn dress(&mut self, of: &Type, place: &Place, object: &mut Value, moment: &Moment<'_>) {
        object["apiVersion"] = json!(of.api_version());
        object["kind"] = json!(of.kind);
        let uid = self.uid(moment.who);
        let meta = &mut object["metadata"];
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
            "managedFields",
        ] {
            if let Some(meta) = meta.as_object_mut() {
                meta.remove(field);
            }
        }
        meta["uid"] = json!(uid);
        meta["name"] = json!(place.2);
        if of.namespaced {
            meta["namespace"] = json!(place.1);
        }
        meta["creationTimestamp"] = json!(stamp(moment.now));
        if of.has_generation {
            meta["generation"] = json!(1);
        }
    }

    fn update(
        &mut self,
        kind: usize,
        of: &Type,
        request: &Request,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let name = request.target.name.clone();
        let place = place(kind, of, &request.target);
        let status_only = request.target.subresource == "status";
        if status_only && !of.has_status || !status_only && !request.target.subresource.is_empty() {
            return Err(failure(404, "NotFound", "the server could not find the requested resource"));
        }
        let is_apply = request.content_type.starts_with("application/apply-patch");
        let body = parse(&request.body)?;
        let Some(stored) = self.objects.get(&place).cloned() else {
            if !is_apply || status_only {
                return Err(not_found(of, &name));
            }
            return self.create_by_apply(of, &place, &body, request, moment);
        };
        let old = (*stored.object).clone();
        let (mut new, mut owners) = (old.clone(), stored.owners.clone());
        let schema = of.schema.as_ref();
        if is_apply {
            self.precondition(of, &old, &body, request)?;
            let mut config = body;
            if let Some(fields) = config.as_object_mut() {
                if status_only {
                    fields.retain(|field, _| field == "status");
                } else if of.has_status {
                    fields.remove("status");
                }
            }
            let force = request.query.get("force").is_some_and(|force| force == "true");
            owners
                .apply(schema, &mut new, &config, &applier(request), force)
                .map_err(|message| failure(409, "Conflict", message))?;
        } else {
            new = changed(&new, body, request)?;
            if of.kind == "Lease" && text(&new["metadata"], "resourceVersion").is_empty() {
                return Err(invalid(
                    of,
                    &name,
                    "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
                ));
            }
            self.precondition(of, &old, &new, request)?;
        }
        keep(of, &old, &mut new, status_only);
        of.complete(&mut new);
        let wrong = of.validate(&new);
        if let Some(first) = wrong.first() {
            return Err(invalid(of, &name, first));
        }
        let is_going = !old["metadata"]["deletionTimestamp"].is_null();
        let had = list(&old, "finalizers");
        if is_going && list(&new, "finalizers").iter().any(|finalizer| !had.contains(finalizer)) {
            return Err(invalid(
                of,
                &name,
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        // A change of the owners is a change.
        if new == old && (!is_apply || owners == stored.owners) {
            return Ok((200, old));
        }
        if !is_apply {
            owners.update(schema, Some(&old), &new, &manager(request));
        }
        if of.has_generation && without(&old) != without(&new) {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        let may_go = new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        let is_full = of.kind == "Namespace" && !new["spec"]["finalizers"].is_null();
        if is_going && may_go && !is_full && list(&new, "finalizers").is_empty() {
            // The answer has the version before the change.
            let version = old["metadata"]["resourceVersion"].clone();
            let mut last = self.remove(&place, Some(new), moment);
            last["metadata"]["resourceVersion"] = version;
            return Ok((200, last));
        }
        Ok((200, self.put(&place, new, owners, moment)))
    }

    fn create_by_apply(
        &mut self,
        of: &Type,
        place: &Place,
        body: &Value,
        request: &Request,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let name = place.2.clone();
        let uid = text(&body["metadata"], "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(conflict(of, &name, &why));
        }
        self.admit_creation(of, &place.1, body, &name)?;
        let (mut object, mut owners) = (json!({}), Owners::default());
        let mut config = body.clone();
        if of.has_status
            && let Some(fields) = config.as_object_mut()
        {
            fields.remove("status");
        }
        let _ = owners.apply(of.schema.as_ref(), &mut object, &config, &applier(request), true);
        self.dress(of, place, &mut object, moment);
        of.complete(&mut object);
        if let Some(first) = of.validate(&object).first() {
            return Err(invalid(of, &name, first));
        }
        Ok((201, self.put(place, object, owners, moment)))
    }

    /// Checks the UID and the version that a write requires. A write to the status may have any UID.
    #[allow(clippy::unused_self, reason = "a method like the other checks")]
    fn precondition(&self, of: &Type, old: &Value, new: &Value, by: &Request) -> Result<(), Value> {
        let name = text(&old["metadata"], "name");
        let of_old = |field: &str| text(&old["metadata"], field).to_owned();
        let given = |field: &str| text(&new["metadata"], field).to_owned();
        if by.target.subresource.is_empty() && !given("uid").is_empty() && given("uid") != of_old("uid") {
            let (given, is) = (given("uid"), of_old("uid"));
            if by.method == Method::PATCH {
                let wrong = format!("metadata.uid: Invalid value: \"{given}\": field is immutable");
                return Err(invalid(of, name, &wrong));
            }
            let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {is}");
            return Err(conflict(of, name, &why));
        }
        if !given("resourceVersion").is_empty() && given("resourceVersion") != of_old("resourceVersion") {
            return Err(conflict(of, name, MODIFIED));
        }
        Ok(())
    }

    fn delete(
        &mut self,
        kind: usize,
        of: &Type,
        request: &Request,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let place = place(kind, of, &request.target);
        let options = if request.body.is_empty() { Value::Null } else { parse(&request.body)? };
        self.delete_one(of, &place, &options, moment)
    }

    fn delete_collection(
        &mut self,
        kind: usize,
        of: &Type,
        request: &Request,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let options = if request.body.is_empty() { Value::Null } else { parse(&request.body)? };
        let selection = Self::selection(request)?;
        let found = self.selected(kind, &request.target.namespace, &selection);
        let listed = self.revision;
        for object in &found {
            let (namespace, name) = place_of(object);
            self.delete_one(of, &(kind, namespace, name), &options, moment)?;
        }
        let items: Vec<Value> = found.iter().map(|object| item(of, object)).collect();
        let kind = format!("{}List", of.kind);
        let meta = json!({ "resourceVersion": listed.to_string() });
        Ok((200, json!({ "kind": kind, "apiVersion": of.api_version(), "metadata": meta, "items": items })))
    }

    fn delete_one(
        &mut self,
        of: &Type,
        place: &Place,
        options: &Value,
        moment: &Moment<'_>,
    ) -> Result<(u16, Value), Value> {
        let name = &place.2;
        let Some(stored) = self.objects.get(place).cloned() else { return Err(not_found(of, name)) };
        let old = (*stored.object).clone();
        for (field, label, done) in
            [("uid", "UID", "deleted and then recreated"), ("resourceVersion", "ResourceVersion", "modified")]
        {
            let (given, is) = (text(&options["preconditions"], field), text(&old["metadata"], field));
            if !given.is_empty() && given != is {
                let message = format!(
                    "Operation cannot be fulfilled on {} \"{name}\": the {label} in the precondition ({given}) does not match \
                     the {label} in record ({is}). The object might have been {done}",
                    of.kind
                );
                return Err(failure_of(of, name, 409, "Conflict", &message));
            }
        }
        let uid = text(&old["metadata"], "uid").to_owned();
        let mut new = old.clone();
        let held = match text(options, "propagationPolicy") {
            "Orphan" => Some("orphan"),
            "Foreground" => Some("foregroundDeletion"),
            _ => None,
        };
        if let Some(held) = held
            && !list(&old, "finalizers").iter().any(|finalizer| finalizer == held)
        {
            let mut finalizers = list(&old, "finalizers").to_vec();
            finalizers.push(json!(held));
            new["metadata"]["finalizers"] = json!(finalizers);
        }
        let is_over = matches!(text(&old["status"], "phase"), "Succeeded" | "Failed");
        let is_bound = !text(&old["spec"], "nodeName").is_empty();
        let grace = if of.kind == "Pod" && is_bound && !is_over {
            let usual = old["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
            options["gracePeriodSeconds"].as_i64().unwrap_or(usual)
        } else {
            0
        };
        let already = !old["metadata"]["deletionTimestamp"].is_null();
        let granted = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // A later request may shorten the grace period, but not extend it.
        let grace = if already { grace.min(granted) } else { grace };
        // A namespace stays until its controller has emptied it.
        let is_full = of.kind == "Namespace" && !old["spec"]["finalizers"].is_null();
        if grace == 0 && !is_full && list(&new, "finalizers").is_empty() {
            if of.kind == "Pod" {
                new["metadata"]["deletionTimestamp"] = json!(stamp(moment.now));
                new["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            }
            let gone = self.remove(place, Some(new), moment);
            if of.kind == "Pod" {
                return Ok((200, gone));
            }
            let mut details = json!({ "name": name, "kind": of.plural, "uid": uid });
            if !of.group.is_empty() {
                details["group"] = json!(of.group);
            }
            let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
            return Ok((200, done));
        }
        if already && grace == granted && new == old {
            return Ok((200, old));
        }
        let asked = SignedDuration::from_secs(grace);
        let until = moment.now.checked_add(asked).unwrap_or(moment.now);
        new["metadata"]["deletionTimestamp"] = json!(stamp(until));
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if let Some(generation) = old["metadata"]["generation"].as_i64().filter(|_| !already) {
            new["metadata"]["generation"] = json!(generation + 1);
        }
        if of.kind == "Namespace" {
            new["status"]["phase"] = json!("Terminating");
        }
        Ok((200, self.put(place, new, stored.owners, moment)))
    }

    fn put(&mut self, place: &Place, mut object: Value, owners: Owners, moment: &Moment<'_>) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let new = Arc::new(object);
        let before = self.objects.insert(place.clone(), Stored { object: new.clone(), owners });
        let logged = Logged {
            revision: self.revision,
            kind: place.0,
            old: before.as_ref().map(|stored| stored.object.clone()),
            new: Some(new.clone()),
            before: before.map(|stored| stored.object),
        };
        self.commit(&logged, moment);
        (*new).clone()
    }

    fn remove(&mut self, place: &Place, last: Option<Value>, moment: &Moment<'_>) -> Value {
        let Some(stored) = self.objects.remove(place) else { return Value::Null };
        self.revision += 1;
        let mut last = last.unwrap_or_else(|| (*stored.object).clone());
        last["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let logged = Logged {
            revision: self.revision,
            kind: place.0,
            old: Some(Arc::new(last.clone())),
            new: None,
            before: Some(stored.object),
        };
        self.commit(&logged, moment);
        last
    }

    fn commit(&mut self, logged: &Logged, moment: &Moment<'_>) {
        self.log.push_back(logged.clone());
        moment.script.committed(&Commit {
            now: moment.now,
            revision: logged.revision,
            who: moment.who,
            resource: self.types[logged.kind].qualified(),
            old: logged.old.as_deref(),
            new: logged.new.as_deref(),
            state: self,
        });
    }

    /// A backup of the store.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { revision: self.revision, objects: self.objects.clone() }
    }

    /// Replaces the objects by those of a snapshot, and adds `bump` to its revision. No later object gets an earlier UID.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot, bump: u64) {
        self.objects.clone_from(&snapshot.objects);
        self.revision = snapshot.revision + bump;
        self.compact();
    }

    /// Drops the log: older watches and continued lists must start again.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
        self.pages.clear();
    }

    pub(crate) fn undefine(&mut self, plural: &str) {
        if let Some(kind) = self.types.iter().position(|kind| kind.qualified() == plural && kind.is_custom())
        {
            self.objects.retain(|place, _| place.0 != kind);
            // The type keeps its index, so that the other types keep theirs.
            "removed".clone_into(&mut Arc::make_mut(&mut self.types[kind]).version);
        }
    }
}

/// An object as an item of a list: items of Kubernetes' types have no kind and version.
fn item(of: &Type, object: &Value) -> Value {
    let mut object = object.clone();
    if !of.is_custom()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// The answer for a version that the server has dropped.
pub(crate) fn expired() -> Value {
    failure(410, "Expired", "The resourceVersion for the provided watch is too old.")
}

fn place(kind: usize, of: &Type, target: &Target) -> Place {
    let namespace = if of.namespaced { target.namespace.clone() } else { String::new() };
    (kind, namespace, target.name.clone())
}

fn place_of(object: &Value) -> (String, String) {
    (text(&object["metadata"], "namespace").to_owned(), text(&object["metadata"], "name").to_owned())
}

fn parse(body: &[u8]) -> Result<Value, Value> {
    serde_json::from_slice(body)
        .map_err(|error| failure(400, "BadRequest", format!("the object provided is unrecognized: {error}")))
}

fn manager(request: &Request) -> Manager {
    let name = request.query.get("fieldManager").unwrap_or(&request.who);
    (name.clone(), "Update", request.target.subresource.clone())
}

fn applier(request: &Request) -> Manager {
    let (name, _, subresource) = manager(request);
    (name, "Apply", subresource)
}

fn changed(object: &Value, body: Value, request: &Request) -> Result<Value, Value> {
    let mut new = object.clone();
    match &*request.content_type {
        "application/merge-patch+json" => patch::merge(&mut new, &body),
        "application/json-patch+json" => patch::json(&mut new, &body).map_err(|error| match error {
            patch::Error::Unfit => {
                failure(422, "Invalid", "the server rejected our request due to an error in our request")
            }
            patch::Error::Malformed(message) => failure(400, "BadRequest", message),
        })?,
        _ if request.method == Method::PUT => return Ok(body),
        other => {
            let message = format!("the body of the request was in an unknown format: {other}");
            return Err(failure(415, "UnsupportedMediaType", message));
        }
    }
    Ok(new)
}

/// Restores the fields that a write cannot change: identity, deletion, and the status or all but the status.
fn keep(of: &Type, old: &Value, new: &mut Value, status_only: bool) {
    if status_only {
        let status = new.get("status").cloned();
        // Kubernetes' types accept labels and annotations.
        let meta = (!of.is_custom()).then(|| new["metadata"].clone());
        *new = old.clone();
        if let Some(fields) = new.as_object_mut() {
            match status {
                Some(status) => fields.insert("status".to_owned(), status),
                None => fields.remove("status"),
            };
        }
        for field in ["labels", "annotations"] {
            if let Some(value) = meta.as_ref().and_then(|meta| meta.get(field)) {
                new["metadata"][field] = value.clone();
            }
        }
    } else if of.has_status
        && let Some(fields) = new.as_object_mut()
    {
        match old.get("status") {
            Some(status) => fields.insert("status".to_owned(), status.clone()),
            None => fields.remove("status"),
        };
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    ] {
        let kept = old["metadata"].get(field).cloned();
        if let Some(meta) = new["metadata"].as_object_mut() {
            match kept {
                Some(value) => meta.insert(field.to_owned(), value),
                None => meta.remove(field),
            };
        }
    }
    // Metadata is stored without empty lists and maps.
    if let Some(meta) = new["metadata"].as_object_mut() {
        meta.retain(|_, value| {
            !(value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty))
        });
    }
}

/// The part of an object that counts for its generation.
fn without(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("metadata");
        fields.remove("status");
    }
    object
}

/// The whole answer or its metadata, as accepted by the client.
fn as_accepted(accept: &str, object: Value) -> Value {
    let only = |object: &Value| json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] });
    if accept.contains("as=PartialObjectMetadataList") && object["items"].is_array() {
        let items: Vec<Value> = object["items"].as_array().into_iter().flatten().map(only).collect();
        let meta = &object["metadata"];
        return json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items });
    }
    if accept.contains("as=PartialObjectMetadata;") && object["kind"] != "Status" {
        return only(&object);
    }
    object
}
