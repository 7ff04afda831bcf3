//! The Hash that describes a request to a script.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use h2o_exchange::{Address, Exchange, ServerSoftware};
use h2o_http::{Headers, Known, Version};
use h2o_mruby::{Rooted, Value, Vm};
use rustc_hash::FxHashMap;

use super::objects::{ClassCell, RequestState};

/// Most names of keys that a VM keeps.
const KEPT_KEYS: usize = 512;

/// Frozen Strings that are keys, by their text.
#[derive(Default)]
struct Keys(RefCell<FxHashMap<Box<[u8]>, Rooted>>);

/// The Hash being filled.
struct Env<'a> {
    vm: &'a Vm,
    keys: Rc<Keys>,
    hash: Value,
}

impl Env<'_> {
    fn key(&self, text: &[u8]) -> Result<Value, Value> {
        if let Some(key) = self.keys.0.borrow().get(text) {
            return Ok(key.value());
        }
        let key = self.vm.frozen_string(text)?;
        let mut keys = self.keys.0.borrow_mut();
        if keys.len() < KEPT_KEYS {
            keys.insert(text.into(), self.vm.root(key)?);
        }
        Ok(key)
    }

    fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Value> {
        let value = self.vm.string(value)?;
        self.set_value(key.as_bytes(), value)
    }

    fn set_value(&self, key: &[u8], value: Value) -> Result<(), Value> {
        let key = self.key(key)?;
        self.vm.hash_set(self.hash, key, value)
    }

    fn set_address(&self, address: &str, port: &str, of: SocketAddr) -> Result<(), Value> {
        self.set(address, of.ip().to_string())?;
        self.set(port, of.port().to_string())
    }
}

/// The Hash for a request.
pub(super) fn build(
    vm: &Vm,
    exchange: &Exchange,
    state: &Rc<RequestState>,
) -> Result<Value, Value> {
    let request = &exchange.request;
    let env = Env {
        vm,
        keys: vm.local(),
        hash: vm.hash(24 + request.headers.len())?,
    };
    let cell = vm.local::<ClassCell>();
    let classes = cell
        .0
        .get()
        .ok_or_else(|| vm.exception("RuntimeError", "the classes of requests are missing"))?;

    env.set("REQUEST_METHOD", request.method.as_str())?;
    let key = &exchange.site.path(exchange.route).path;
    let script = key.strip_suffix('/').unwrap_or(key).as_bytes();
    env.set("SCRIPT_NAME", script)?;
    env.set("PATH_INFO", path_info(exchange, script.len()))?;
    let query = request.query();
    env.set("QUERY_STRING", query.strip_prefix(b"?").unwrap_or(query))?;
    let host = exchange.site.host(exchange.route);
    env.set("SERVER_NAME", &*host.name.name)?;
    env.set("SERVER_PROTOCOL", request.version.as_str())?;
    if let Some(Address::Ip(address)) = exchange.connection.transport.local_address() {
        env.set_address("SERVER_ADDR", "SERVER_PORT", address)?;
    }
    env.set("HTTP_HOST", request.authority())?;
    if let Some(len) = state.body_len() {
        env.set("CONTENT_LENGTH", len.to_string())?;
        let object = vm.object(classes.request.value(), Rc::clone(state))?;
        let class = vm.constant(None, "InputStream")?;
        let input = vm.call(class, "__of", &[object])?;
        env.set_value(b"rack.input", input)?;
    }
    if let Address::Ip(address) = exchange.connection.peer {
        env.set_address("REMOTE_ADDR", "REMOTE_PORT", address)?;
    }
    if request.version == Version::Http2 && exchange.sub_request.is_none() {
        let object = vm.object(classes.get_rtt.value(), Rc::clone(state))?;
        env.set_value(b"h2o.get_rtt", object)?;
    }
    let object = vm.object(classes.is_ech.value(), Rc::clone(state))?;
    env.set_value(b"h2o.is_ech", object)?;
    for (name, value) in &exchange.env {
        let value = vm.string(&**value)?;
        env.set_value(name.as_bytes(), value)?;
    }
    set_fields(&env, &request.headers)?;
    if exchange.is_early && request.headers.get(Known::EarlyData).is_none() {
        env.set("HTTP_EARLY_DATA", "1")?;
    }
    env.set("rack.url_scheme", request.scheme.as_str())?;
    for (key, value) in [
        ("rack.multithread", false),
        ("rack.multiprocess", true),
        ("rack.run_once", false),
        ("rack.hijack?", false),
    ] {
        env.set_value(key.as_bytes(), Value::boolean(value))?;
    }
    let errors = vm.object(classes.errors.value(), Rc::clone(state))?;
    env.set_value(b"rack.errors", errors)?;
    let hints = vm.object(classes.hints.value(), Rc::clone(state))?;
    env.set_value(b"rack.early_hints", hints)?;
    let software = exchange.site.settings.peek::<ServerSoftware>();
    let software = software.as_ref().and_then(|software| software.0.as_deref());
    env.set(
        "SERVER_SOFTWARE",
        software.unwrap_or(concat!("h2o/", env!("CARGO_PKG_VERSION"))),
    )?;
    let limits = exchange.site.reroute_limits;
    let done = exchange.reroutes;
    for (key, limit, count) in [
        (
            "h2o.remaining_delegations",
            limits.delegations,
            done.delegations,
        ),
        (
            "h2o.remaining_reprocesses",
            limits.reprocesses,
            done.reprocesses,
        ),
    ] {
        let left = vm.integer(limit.saturating_sub(count).into())?;
        env.set_value(key.as_bytes(), left)?;
    }
    Ok(env.hash)
}

/// The path below the entry, as the client wrote it.
fn path_info(exchange: &Exchange, script_len: usize) -> &[u8] {
    let request = &exchange.request;
    let raw = request.raw_path();
    let len = if request.is_path_plain() {
        script_len
    } else {
        h2o_http::path::raw_len(raw, script_len)
    };
    raw.get(len..).unwrap_or_default()
}

/// `HTTP_*`: one entry per name, by the length of the name and then its bytes.
fn set_fields(env: &Env<'_>, headers: &Headers) -> Result<(), Value> {
    let mut names: Vec<&str> = headers.iter().map(|field| field.name.as_str()).collect();
    names.sort_unstable_by_key(|name| (name.len(), *name));
    names.dedup();
    let mut key = Vec::with_capacity(32);
    let mut joined = Vec::new();
    for name in names {
        let field = h2o_http::Name::from_lower(name);
        let mut values = headers.get_all(field);
        let Some(first) = values.next() else {
            continue;
        };
        let mut value = first;
        if let Some(second) = values.next() {
            let between: &[u8] = if name == "cookie" { b"; " } else { b", " };
            joined.clear();
            joined.extend_from_slice(first);
            for other in std::iter::once(second).chain(values) {
                joined.extend_from_slice(between);
                joined.extend_from_slice(other);
            }
            value = &joined;
        }
        key.clear();
        if name != "content-type" {
            key.extend_from_slice(b"HTTP_");
        }
        key.extend(name.bytes().map(|byte| match byte {
            b'-' => b'_',
            byte => byte.to_ascii_uppercase(),
        }));
        let value = env.vm.string(value)?;
        env.set_value(&key, value)?;
    }
    Ok(())
}
