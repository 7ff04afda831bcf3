//! Reads the Hash by which a script describes a sub-request, and makes a request of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use h2o_exchange::RequestBody;
use h2o_http::{BodyLength, Headers, Method, Name, RequestHead, Scheme, Version};
use h2o_mruby::{Kind, Leave, Value, Vm};

use super::{answer, input};

/// A sub-request as the script's Hash describes it.
pub(super) struct Description {
    pub(super) head: RequestHead,
    pub(super) body: RequestBody,
    /// The value of `SCRIPT_NAME`.
    pub(super) script_name: Vec<u8>,
    pub(super) variables: Vec<(Arc<str>, Arc<[u8]>)>,
    /// The address of the sub-request's client.
    pub(super) remote: Option<SocketAddr>,
    /// The address of the server.
    pub(super) local: Option<SocketAddr>,
    /// The value of `rack.errors`; `nil` if the Hash has none.
    pub(super) errors: Value,
    /// The value of `h2o.remaining_delegations`.
    pub(super) delegations: Option<u32>,
    /// The value of `h2o.remaining_reprocesses`.
    pub(super) reprocesses: Option<u32>,
}

/// Keys of the script's Hash that are ignored, since they do not describe the new request.
const IGNORED: &[&str] = &[
    "SERVER_SOFTWARE",
    "rack.early_hints",
    "rack.hijack?",
    "rack.multiprocess",
    "rack.multithread",
    "rack.run_once",
];

/// Header fields that are not taken over from the Hash: those that concern the connection, and those that other keys of
/// the Hash give.
const DROPPED_FIELDS: &[&str] = &[
    "content-length",
    "content-type",
    "expect",
    "transfer-encoding",
    "upgrade",
];

/// The values of those keys of the Hash that are texts.
#[derive(Default)]
struct Texts {
    method: Option<Vec<u8>>,
    scheme: Option<Vec<u8>>,
    script_name: Option<Vec<u8>>,
    path_info: Option<Vec<u8>>,
    query: Option<Vec<u8>>,
    host: Option<Vec<u8>>,
    protocol: Option<Vec<u8>>,
    content_type: Option<Vec<u8>>,
    content_length: Option<Vec<u8>>,
    server_name: Option<Vec<u8>>,
    server: Address,
    remote: Address,
}

/// The texts that the Hash has for an address and its port.
#[derive(Default)]
struct Address {
    host: Option<Vec<u8>>,
    port: Option<Vec<u8>>,
}

impl Address {
    /// The address with its port, if both texts are numeric.
    fn parse(&self) -> Option<SocketAddr> {
        let text = |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone()?).ok();
        let address: IpAddr = text(&self.host)?.parse().ok()?;
        Some(SocketAddr::new(address, text(&self.port)?.parse().ok()?))
    }
}

impl Texts {
    /// The place for the value of this key; `None` for keys that are no texts.
    fn place(&mut self, key: &str) -> Option<&mut Option<Vec<u8>>> {
        Some(match key {
            "REQUEST_METHOD" => &mut self.method,
            "rack.url_scheme" => &mut self.scheme,
            "SCRIPT_NAME" => &mut self.script_name,
            "PATH_INFO" => &mut self.path_info,
            "QUERY_STRING" => &mut self.query,
            "HTTP_HOST" => &mut self.host,
            "SERVER_PROTOCOL" => &mut self.protocol,
            "CONTENT_TYPE" => &mut self.content_type,
            "CONTENT_LENGTH" => &mut self.content_length,
            "SERVER_NAME" => &mut self.server_name,
            "SERVER_ADDR" => &mut self.server.host,
            "SERVER_PORT" => &mut self.server.port,
            "REMOTE_ADDR" => &mut self.remote.host,
            "REMOTE_PORT" => &mut self.remote.port,
            _ => return None,
        })
    }

    /// The path and query of the sub-request.
    fn target(&self) -> Result<Vec<u8>, Leave> {
        let script_name = required("SCRIPT_NAME", self.script_name.as_deref())?;
        let path_info = required("PATH_INFO", self.path_info.as_deref())?;
        let query = required("QUERY_STRING", self.query.as_deref())?;
        for (key, path) in [("SCRIPT_NAME", script_name), ("PATH_INFO", path_info)] {
            if !path.is_empty() && !path.starts_with(b"/") {
                return Err(Leave::runtime(format!("{key} must start with `/`")));
            }
        }
        let mut target = [script_name, path_info].concat();
        if target.is_empty() {
            target.push(b'/');
        }
        if !query.is_empty() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        Ok(target)
    }

    fn authority(&self) -> Result<Vec<u8>, Leave> {
        if let Some(host) = self.host.as_ref().filter(|host| !host.is_empty()) {
            return if h2o_http::authority::is_valid(host) {
                Ok(host.clone())
            } else {
                Err(invalid())
            };
        }
        match (&self.server_name, &self.server.port) {
            (Some(name), Some(port)) => Ok([name.as_slice(), b":", port].concat()),
            _ => Err(Leave::runtime(
                "HTTP_HOST or (SERVER_NAME and SERVER_PORT) is required",
            )),
        }
    }
}

fn required<'a>(key: &str, value: Option<&'a [u8]>) -> Result<&'a [u8], Leave> {
    value.ok_or_else(|| Leave::runtime(format!("missing required environment key: {key}")))
}

fn not_empty<'a>(key: &str, value: Option<&'a [u8]>) -> Result<&'a [u8], Leave> {
    let value = required(key, value)?;
    if value.is_empty() {
        return Err(Leave::runtime(format!("{key} must be not empty")));
    }
    Ok(value)
}

fn invalid() -> Leave {
    Leave::argument("env variable contains invalid values")
}

/// Reads the Hash that describes a sub-request.
///
/// # Errors
/// The exception that tells which entry is missing or wrong.
pub(super) fn read(vm: &Vm, env: Value) -> Result<Description, Leave> {
    let mut texts = Texts::default();
    let mut described = Description {
        head: RequestHead::default(),
        body: RequestBody::None,
        script_name: Vec::new(),
        variables: Vec::new(),
        remote: None,
        local: None,
        errors: Value::nil(),
        delegations: None,
        reprocesses: None,
    };
    let mut input = Value::nil();
    for key in vm.elements(vm.hash_keys(env)?).unwrap_or_default() {
        let value = vm.hash_get(env, key)?;
        let name = vm.text_of(key)?;
        let name = String::from_utf8(name).map_err(|_| invalid())?;
        if value.is_nil() || name.is_empty() || IGNORED.contains(&name.as_str()) {
            continue;
        }
        if let Some(place) = texts.place(&name) {
            *place = Some(vm.text_of(value)?);
            continue;
        }
        match name.as_str() {
            "rack.input" => input = value,
            "rack.errors" => described.errors = value,
            "h2o.remaining_delegations" => described.delegations = Some(count(value)),
            "h2o.remaining_reprocesses" => described.reprocesses = Some(count(value)),
            // Keys that begin with `h2o.` are ignored: they hold objects of the client's request from which the script
            // copied them.
            _ if name.starts_with("h2o.") => {}
            _ => match name.strip_prefix("HTTP_") {
                Some(field) => add_fields(vm, &mut described.head.headers, field, value)?,
                None => {
                    let value = vm.text_of(value)?;
                    described.variables.push((name.into(), value.into()));
                }
            },
        }
    }
    described.body = read_input(vm, input, texts.content_length.as_deref())?;
    finish(texts, described)
}

/// Reads a counter. A negative number, or a value that is no number, counts as 0.
fn count(value: Value) -> u32 {
    let number = value.as_integer().unwrap_or(0).max(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn add_fields(vm: &Vm, headers: &mut Headers, key: &str, value: Value) -> Result<(), Leave> {
    let name = key.to_ascii_lowercase().replace('_', "-");
    if DROPPED_FIELDS.contains(&name.as_str()) {
        return Ok(());
    }
    answer::read_field(vm, name.as_bytes(), value, &mut |name, value| {
        headers.push(Name::from_lower(name), value);
    })
}

/// Reads the whole request body from the Ruby object `input`.
fn read_input(vm: &Vm, input: Value, length: Option<&[u8]>) -> Result<RequestBody, Leave> {
    if input.is_nil() {
        return Ok(RequestBody::None);
    }
    if !vm.responds_to(input, "read") {
        return Err(Leave::runtime("'rack.input' must respond to 'read'"));
    }
    let mut body = match input::take(vm, input)? {
        Some(body) => body,
        None => {
            let content = vm.call(input, "read", &[])?;
            let content = (content.kind() == Kind::String)
                .then(|| vm.bytes(content))
                .flatten();
            let content =
                content.ok_or_else(|| Leave::runtime("return value of `read` must be a string"))?;
            RequestBody::Bytes(content.into())
        }
    };
    if let Some(length) = length {
        let length = h2o_http::parse_content_length(length).ok_or_else(invalid)?;
        match &mut body {
            RequestBody::Bytes(bytes) => {
                bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            }
            RequestBody::File(range) => range.len = range.len.min(length),
            RequestBody::Stream(_) | RequestBody::None => {}
        }
    }
    Ok(body)
}

/// Makes the request head of the sub-request.
fn finish(texts: Texts, mut described: Description) -> Result<Description, Leave> {
    let head = &mut described.head;
    let method = not_empty("REQUEST_METHOD", texts.method.as_deref())?;
    // CONNECT is refused: a tunnel needs a client's connection, and a sub-request has none.
    head.method = Method::from_token(method)
        .filter(|method| *method != Method::Connect)
        .ok_or_else(invalid)?;
    head.scheme = match not_empty("rack.url_scheme", texts.scheme.as_deref())? {
        b"http" => Scheme::Http,
        b"https" => Scheme::Https,
        _ => return Err(invalid()),
    };
    head.version = match texts.protocol.as_deref() {
        Some(b"HTTP/1.0") => Version::Http10,
        Some(b"HTTP/2" | b"HTTP/2.0") => Version::Http2,
        Some(b"HTTP/3" | b"HTTP/3.0") => Version::Http3,
        _ => Version::Http11,
    };
    let length = described.body.complete_len();
    head.body = length.map_or(BodyLength::None, BodyLength::Known);
    let (target, authority) = (texts.target()?, texts.authority()?);
    // A blank or a line end would end the request line or the header field that a backend gets.
    if !h2o_http::is_visible(&target) || !h2o_http::is_visible(&authority) {
        return Err(invalid());
    }
    if let Some(value) = &texts.content_type {
        if !h2o_http::is_printable(value) {
            return Err(invalid());
        }
        head.headers.push(h2o_http::Known::ContentType, value);
    }
    let authority = head.headers.store(&authority);
    head.set_authority(authority);
    let target = head.headers.store(&target);
    head.set_target(target);
    described.remote = texts.remote.parse();
    described.local = texts.server.parse();
    described.script_name = texts.script_name.unwrap_or_default();
    Ok(described)
}
