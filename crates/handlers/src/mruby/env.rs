//! The Hash that describes a request to a script. Most scripts read few of its entries, so each entry is made when it
//! is read.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use h2o_exchange::{Address, Exchange, LocalSite, Reroutes, Route, ServerSoftware};
use h2o_http::{Known, Name, RequestHead, Version};
use h2o_mruby::{Kind, LazyHash, Leave, Rooted, Value, Vm};
use rustc_hash::FxHashMap;

use super::objects::{ClassCell, Classes, RequestState};

/// Most Strings that a VM keeps as keys of the Hashes that describe requests.
const KEPT_KEYS: usize = 512;

/// Frozen Strings that are keys of the Hashes that describe requests, by their text.
#[derive(Default)]
struct Keys(RefCell<FxHashMap<Box<[u8]>, Rooted>>);

impl Keys {
    fn get(&self, vm: &Vm, text: &[u8]) -> Result<Value, Value> {
        if let Some(key) = self.0.borrow().get(text) {
            return Ok(key.value());
        }
        let key = vm.frozen_string(text)?;
        let mut keys = self.0.borrow_mut();
        if keys.len() < KEPT_KEYS {
            keys.insert(text.into(), vm.root(key)?);
        }
        Ok(key)
    }
}

/// Most [`Facts`] of past requests whose memory a VM keeps for later requests. Facts with a request head that takes
/// more than [`LARGEST_KEPT_HEAD`] bytes of memory are not kept.
const KEPT_FACTS: usize = 256;
const LARGEST_KEPT_HEAD: usize = 2048;

/// Makes the sources of the Hashes that describe requests. A source makes the entries of its Hash when they are read.
pub(super) struct EnvMaker {
    /// The Ruby classes of the Hashes and of their sources.
    pub(super) hash: LazyHash,
    spare: Rc<SpareFacts>,
}

/// Facts whose Hashes the garbage collector has freed: the next requests use their memory.
#[derive(Default)]
struct SpareFacts(RefCell<Vec<Rc<Facts>>>);

impl EnvMaker {
    /// Returns `None` if [`super::objects::define`] has not defined the classes of these Hashes in the VM.
    pub(super) fn new(vm: &Vm) -> Option<Self> {
        let cell = vm.local::<ClassCell>();
        let classes = cell.0.get()?;
        Some(Self {
            hash: LazyHash {
                class: classes.env.value(),
                source_class: classes.source.value(),
            },
            spare: Rc::default(),
        })
    }

    /// The source of the Hash that describes a request: it makes the entries of the Hash when they are read.
    pub(super) fn source(&self, exchange: &Exchange, state: &Rc<RequestState>) -> Request {
        let spare = self.spare.0.borrow_mut().pop();
        let mut facts = spare.unwrap_or_default();
        if let Some(facts) = Rc::get_mut(&mut facts) {
            facts.head.copy_from(&exchange.request);
            facts.peer = exchange.client_address();
            facts.site = Rc::downgrade(&exchange.site);
            facts.route = exchange.route;
            facts.variables.clone_from(&exchange.env);
            facts.reroutes = exchange.reroutes;
            facts.is_early = exchange.is_early;
            facts.is_sub_request = exchange.sub_request.is_some();
        }
        Request {
            facts,
            state: Rc::clone(state),
            spare: Rc::clone(&self.spare),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut spare = self.spare.0.borrow_mut();
        if spare.len() < KEPT_FACTS
            && self.facts.head.headers.retained() <= LARGEST_KEPT_HEAD
            && let Some(facts) = Rc::get_mut(&mut self.facts)
        {
            facts.variables.clear();
            spare.push(Rc::clone(&self.facts));
        }
    }
}

fn classes<'a>(vm: &Vm, cell: &'a ClassCell) -> Result<&'a Classes, Value> {
    let classes = cell.0.get();
    classes.ok_or_else(|| {
        vm.exception(
            "RuntimeError",
            "the Ruby classes of requests are not defined",
        )
    })
}

/// Defines methods of `class`, to which [lazy Hashes](LazyHash) belong, in Rust; the others are defined in
/// `prelude.rb`.
pub(super) fn define(vm: &Vm, class: Value) -> Result<(), Value> {
    // Ruby calls this method for a key whose entry does not exist yet; it makes the entry.
    vm.define(class, "default", |vm, call| {
        let source = vm.source_of(call.receiver)?;
        let name = call.arguments.get(0);
        let text = (name.kind() == Kind::String).then(|| vm.bytes(name));
        let Some(text) = text.flatten() else {
            return Ok(Value::nil());
        };
        // The Hash refers to its source meanwhile, so the garbage collector does not free the source.
        let value = vm.with_object(source, |request: &Request| request.value(vm, &text))??;
        let Some(value) = value else {
            return Ok(Value::nil());
        };
        let key = vm.local::<Keys>().get(vm, &text)?;
        vm.hash_set(call.receiver, key, value)?;
        Ok(value)
    })?;
    vm.define(class, "__fill", |vm, call| {
        fill(vm, call.receiver)?;
        Ok(Value::nil())
    })
}

/// Makes all entries in their order. After that the Hash is an ordinary Hash.
fn fill(vm: &Vm, hash: Value) -> Result<(), Leave> {
    let source = vm.source_of(hash)?;
    // The Hash is about to drop its reference to the source, which the garbage collector must not free yet.
    let _kept = vm.root(source)?;
    // The entries that the script has read already, and may have changed: these values are kept.
    let before = vm.make_plain(hash)?;
    let [made_keys, made] = [0, 1].map(|index| {
        let part = vm
            .elements(before)
            .and_then(|parts| parts.get(index).copied());
        part.and_then(|part| vm.elements(part)).unwrap_or_default()
    });
    let made_before = |name: &[u8]| {
        let is_name = |key: &Value| vm.with_bytes(*key, |key| key == name) == Some(true);
        made.get(made_keys.iter().position(is_name)?).copied()
    };
    vm.with_object(source, |request: &Request| {
        make_entries(vm, hash, request, made_before)?;
        // Entries that are not from the request come last: the literal `{**env, a: 1}` copies the Hash, and adds `a` to the copy, without
        // calling a method, if it was compiled after the request had begun.
        for (key, value) in made_keys.iter().zip(&made) {
            vm.hash_set(hash, *key, *value)?;
        }
        Ok(())
    })?
}

/// The Hash with all entries, for scripts that may copy it in a way that [makes no entries](Vm::copies_hashes).
pub(super) fn whole(vm: &Vm, request: &Request) -> Result<Value, Value> {
    let hash = vm.hash(0)?;
    make_entries(vm, hash, request, |_| None)?;
    Ok(hash)
}

/// Adds the entries of a request in their order; `made` returns the value of an entry that exists already.
fn make_entries(
    vm: &Vm,
    hash: Value,
    request: &Request,
    made: impl Fn(&[u8]) -> Option<Value>,
) -> Result<(), Value> {
    let keys = vm.local::<Keys>();
    for name in request.keys() {
        let value = match made(&name) {
            Some(value) => Some(value),
            None => request.value(vm, &name)?,
        };
        if let Some(value) = value {
            vm.hash_set(hash, keys.get(vm, &name)?, value)?;
        }
    }
    Ok(())
}

/// The source of a Hash that describes a request: it makes the entries. It has a copy of the facts about the request,
/// because scripts may keep the Hash longer than the request lasts.
pub(super) struct Request {
    facts: Rc<Facts>,
    state: Rc<RequestState>,
    spare: Rc<SpareFacts>,
}

/// The facts about a request from which the entries are made.
struct Facts {
    head: RequestHead,
    peer: Address,
    /// A strong reference would keep the configuration in use: scripts may keep the Hash, and the VM frees it only when
    /// it collects garbage.
    site: Weak<LocalSite>,
    route: Route,
    variables: Vec<(Arc<str>, Arc<[u8]>)>,
    reroutes: Reroutes,
    is_early: bool,
    is_sub_request: bool,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            head: RequestHead::default(),
            peer: Address::Unix,
            site: Weak::new(),
            route: Route::default(),
            variables: Vec::new(),
            reroutes: Reroutes::default(),
            is_early: false,
            is_sub_request: false,
        }
    }
}

/// The keys before those of request variables. The method `value` tells which of them a request has.
const FIRST: [&str; 14] = [
    "REQUEST_METHOD",
    "SCRIPT_NAME",
    "PATH_INFO",
    "QUERY_STRING",
    "SERVER_NAME",
    "SERVER_PROTOCOL",
    "SERVER_ADDR",
    "SERVER_PORT",
    "HTTP_HOST",
    "CONTENT_LENGTH",
    "rack.input",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "h2o.get_rtt",
];

/// The keys after those of header fields.
const LAST: [&str; 11] = [
    "HTTP_EARLY_DATA",
    "rack.url_scheme",
    "rack.multithread",
    "rack.multiprocess",
    "rack.run_once",
    "rack.hijack?",
    "rack.errors",
    "rack.early_hints",
    "SERVER_SOFTWARE",
    "h2o.remaining_delegations",
    "h2o.remaining_reprocesses",
];

impl Request {
    /// The keys in the order of the Hash. A key may be there twice, or have no value.
    fn keys(&self) -> Vec<Cow<'_, [u8]>> {
        let mut keys: Vec<Cow<'_, [u8]>> = Vec::with_capacity(32 + self.facts.head.headers.len());
        keys.extend(FIRST.map(|key| Cow::Borrowed(key.as_bytes())));
        keys.push(Cow::Borrowed(b"h2o.is_ech"));
        let variables = self.facts.variables.iter();
        keys.extend(variables.map(|(name, _)| Cow::Borrowed(name.as_bytes())));
        let fields = self.facts.head.headers.iter();
        let names = fields.map(|field| field.name.as_str());
        let mut names: Vec<&str> = names
            .filter(|name| !self.facts.head.headers.is_look_alike(name))
            .collect();
        names.sort_unstable_by_key(|name| (name.len(), *name));
        names.dedup();
        keys.extend(names.into_iter().map(|name| Cow::Owned(key_of(name))));
        keys.extend(LAST.map(|key| Cow::Borrowed(key.as_bytes())));
        keys
    }

    /// The value of a key, if the request has one. If a key has several meanings, the last one counts.
    fn value(&self, vm: &Vm, key: &[u8]) -> Result<Option<Value>, Value> {
        let found = self.of_server(vm, key)?;
        if found.is_some() {
            return Ok(found);
        }
        if key == b"HTTP_EARLY_DATA" && self.facts.is_early && !self.has_early_data() {
            return vm.string("1").map(Some);
        }
        if let Some(value) = self.field(key) {
            return vm.string(&*value).map(Some);
        }
        let mut variables = self.facts.variables.iter().rev();
        if let Some((_, value)) = variables.find(|(name, _)| name.as_bytes() == key) {
            return vm.string(&**value).map(Some);
        }
        self.of_request(vm, key)
    }

    fn has_early_data(&self) -> bool {
        self.facts.head.headers.get(Known::EarlyData).is_some()
    }

    /// The values of entries that no field and no variable of the same name replaces.
    fn of_server(&self, vm: &Vm, key: &[u8]) -> Result<Option<Value>, Value> {
        let value = match key {
            b"rack.url_scheme" => vm.string(self.facts.head.scheme.as_str())?,
            b"rack.multithread" | b"rack.run_once" | b"rack.hijack?" => Value::boolean(false),
            b"rack.multiprocess" => Value::boolean(true),
            b"rack.errors" => self.object(vm, |classes| &classes.errors)?,
            b"rack.early_hints" => {
                if self.facts.head.headers.get(Known::NoEarlyHints) == Some(b"1") {
                    self.state.refuse_hints();
                }
                self.procedure(vm, |classes| &classes.hints)?
            }
            b"SERVER_SOFTWARE" => {
                let software = self.site(vm)?.settings.peek::<ServerSoftware>();
                let software = software
                    .as_ref()
                    .and_then(|software| software.name.as_deref());
                vm.string(software.unwrap_or(concat!("h2o/", env!("CARGO_PKG_VERSION"))))?
            }
            b"h2o.remaining_delegations" => {
                let limit = self.site(vm)?.reroute_limits.delegations;
                let left = limit.saturating_sub(self.facts.reroutes.delegations);
                vm.integer(left.into())?
            }
            b"h2o.remaining_reprocesses" => {
                let limit = self.site(vm)?.reroute_limits.reprocesses;
                let left = limit.saturating_sub(self.facts.reroutes.reprocesses);
                vm.integer(left.into())?
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    /// The values of entries that a request variable or a field of the same name replaces.
    fn of_request(&self, vm: &Vm, key: &[u8]) -> Result<Option<Value>, Value> {
        let text = |text: &[u8]| vm.string(text).map(Some);
        let address = |of: Option<Address>, part: fn(SocketAddr) -> String| match of {
            Some(Address::Ip(of)) => vm.string(part(of)).map(Some),
            Some(Address::Unix) | None => Ok(None),
        };
        match key {
            b"REQUEST_METHOD" => text(self.facts.head.method.as_str().as_bytes()),
            b"SCRIPT_NAME" => text(self.script_name(&*self.site(vm)?)),
            b"PATH_INFO" => text(self.path_info(&*self.site(vm)?)),
            b"QUERY_STRING" => {
                let query = self.facts.head.query();
                text(query.strip_prefix(b"?").unwrap_or(query))
            }
            b"SERVER_NAME" => text(self.site(vm)?.host(self.facts.route).name.name.as_bytes()),
            b"SERVER_PROTOCOL" => text(self.facts.head.version.as_str().as_bytes()),
            b"SERVER_ADDR" => address(self.state.local_address(), |of| of.ip().to_string()),
            b"SERVER_PORT" => address(self.state.local_address(), |of| of.port().to_string()),
            b"HTTP_HOST" => text(self.facts.head.authority()),
            b"CONTENT_LENGTH" => match self.state.body_len() {
                Some(len) => text(len.to_string().as_bytes()),
                None => Ok(None),
            },
            b"rack.input" => self.input(vm),
            b"REMOTE_ADDR" => address(Some(self.facts.peer), |of| of.ip().to_string()),
            b"REMOTE_PORT" => address(Some(self.facts.peer), |of| of.port().to_string()),
            b"h2o.get_rtt"
                if self.facts.head.version == Version::Http2 && !self.facts.is_sub_request =>
            {
                self.procedure(vm, |classes| &classes.get_rtt).map(Some)
            }
            b"h2o.is_ech" => self.procedure(vm, |classes| &classes.is_ech).map(Some),
            _ => Ok(None),
        }
    }

    fn input(&self, vm: &Vm) -> Result<Option<Value>, Value> {
        if self.state.body_len().is_none() {
            return Ok(None);
        }
        let object = self.object(vm, |classes| &classes.request)?;
        let class = vm.constant(None, "InputStream")?;
        vm.call(class, "__of", &[object]).map(Some)
    }

    /// Creates an object by which the script acts on the request.
    fn object(&self, vm: &Vm, class: fn(&Classes) -> &Rooted) -> Result<Value, Value> {
        let cell = vm.local::<ClassCell>();
        let class = class(classes(vm, &cell)?).value();
        vm.object(class, Rc::clone(&self.state))
    }

    /// Creates an object by which the script acts on the request, and returns it as a Proc.
    fn procedure(&self, vm: &Vm, class: fn(&Classes) -> &Rooted) -> Result<Value, Value> {
        let object = self.object(vm, class)?;
        vm.call(object, "to_proc", &[])
    }

    fn site(&self, vm: &Vm) -> Result<Rc<LocalSite>, Value> {
        let replaced = || {
            vm.exception(
                "RuntimeError",
                "the configuration of this script was replaced",
            )
        };
        self.facts.site.upgrade().ok_or_else(replaced)
    }

    fn script_name<'a>(&self, site: &'a LocalSite) -> &'a [u8] {
        let key = &site.path(self.facts.route).path;
        key.strip_suffix('/').unwrap_or(key).as_bytes()
    }

    /// The part of the path after the configured path, as the client wrote it.
    fn path_info(&self, site: &LocalSite) -> &[u8] {
        let (raw, len) = (self.facts.head.raw_path(), self.script_name(site).len());
        let len = if self.facts.head.is_path_plain() {
            len
        } else {
            h2o_http::path::raw_len(raw, len)
        };
        raw.get(len..).unwrap_or_default()
    }

    /// The joined values of the header field with this key.
    fn field(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let len = match key.strip_prefix(b"HTTP_") {
            Some(name) => name.len(),
            None if key == b"CONTENT_TYPE" => key.len(),
            None => return None,
        };
        let headers = &self.facts.head.headers;
        let fields = headers.iter().map(|field| field.name);
        let names = fields.filter(|name| name.as_str().len() == len);
        // Header fields of different names can have the same key: `a-b_c` and `a_b-c`.
        let name = names
            .map(|name| name.as_str())
            .filter(|name| is_key_of(key, name) && !headers.is_look_alike(name))
            .max()?;
        let mut values = self.facts.head.headers.get_all(Name::from_lower(name));
        let first = values.next()?;
        let Some(second) = values.next() else {
            return Some(Cow::Borrowed(first));
        };
        let between: &[u8] = if name == "cookie" { b"; " } else { b", " };
        let mut joined = first.to_vec();
        for other in std::iter::once(second).chain(values) {
            joined.extend_from_slice(between);
            joined.extend_from_slice(other);
        }
        Some(Cow::Owned(joined))
    }
}

/// The key of a header field: `HTTP_NAME`, or `CONTENT_TYPE`.
fn key_of(name: &str) -> Vec<u8> {
    let prefix: &[u8] = if name == "content-type" {
        b""
    } else {
        b"HTTP_"
    };
    prefix
        .iter()
        .copied()
        .chain(name.bytes().map(in_key))
        .collect()
}

/// Whether `key` is the key of the header field `name`.
fn is_key_of(key: &[u8], name: &str) -> bool {
    match key.strip_prefix(b"HTTP_") {
        Some(rest) => name != "content-type" && rest.iter().copied().eq(name.bytes().map(in_key)),
        None => name == "content-type",
    }
}

/// The form that a character of a field's name has in the key.
const fn in_key(byte: u8) -> u8 {
    match byte {
        b'-' => b'_',
        byte => byte.to_ascii_uppercase(),
    }
}
