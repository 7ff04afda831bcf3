//! Turns the value that a script returns into a response.

use std::borrow::Cow;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::{Body, Exchange, LinkHeaderUse, Outcome, Response};
use h2o_http::{Headers, Known, Method, Name, StatusCode};
use h2o_mruby::{Kind, Leave, PlainResponse, Value, Vm};

use super::body::{self, ScriptBody};
use super::content;
use super::handler::failure;
use super::objects::RequestState;

/// The result of a call of a script's app, the object that the script evaluates to.
pub(super) enum Answer {
    /// A response. If its status is 399, its headers are added to the response of the later handlers.
    Response(ScriptResponse),
    /// An exception, as the text `MESSAGE (CLASS)`.
    Raised(String),
}

impl Answer {
    /// Drops a result that no request waits for any more, which closes its body.
    pub(super) fn abandon(self) {
        drop(self);
    }
}

/// The status, fields and body that a script has returned.
pub(super) struct ScriptResponse {
    status: StatusCode,
    fields: Fields,
    body: Body,
    /// The chunks of the body, if the script yields them.
    sink: Option<body::Sink>,
    kind: BodyKind,
    /// The reason phrase; `None` for `OK` (H2O compatibility: H2O sends `OK` with every status).
    reason: Option<Cow<'static, str>>,
}

/// The origin of a body that a script has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    /// The script returned an Array of Strings, or nil.
    Array,
    /// The script's body object yields the content by its method `each`. The request lasts until `each` returns.
    Script,
    /// The script returned the body of another server's response, or of a sub-request's response.
    HandedOn,
}

/// The header fields that a script has returned, without those that are instructions for the server.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) headers: Headers,
    /// The value of `content-length`.
    length: Option<u64>,
    /// The request variables that fields `x-fallthru-set-NAME` set.
    variables: Vec<(Arc<str>, Arc<[u8]>)>,
}

/// The status by which a script lets the next handler answer the request.
const DELEGATES: u16 = 399;

/// A function that gets a field: the name in lower case, the name as the script has written it, and the value.
type AddField<'a> = dyn FnMut(&str, &[u8], &[u8]) + 'a;

/// Reads the value that an app has returned.
///
/// # Errors
/// The exception that the script gets if the value is no valid response.
pub(super) fn read(vm: &Vm, value: Value, request: &Weak<RequestState>) -> Result<Answer, Leave> {
    // Most scripts return a status, a few Strings as fields and a few as body, which can be read without asking Ruby for each part.
    if let Some(answer) = vm.with_plain_response(value, read_plain) {
        return answer;
    }
    let parts = vm.with_elements(value, |parts| {
        [0, 1, 2].map(|index: usize| parts.get(index).copied().unwrap_or_else(Value::nil))
    });
    let [status, list, body] =
        parts.ok_or_else(|| Leave::runtime("rack app did not return an array"))?;
    let status = read_status(vm, status)?;
    let mut fields = Fields::default();
    read_fields(vm, list, |name, value| fields.add(name, value))?;
    let mut sink = None;
    let (kind, body) = match body {
        _ if status.as_u16() == DELEGATES => (BodyKind::Array, Body::Empty),
        body if body.is_nil() => (BodyKind::Array, Body::Empty),
        body if body.kind() == Kind::Array => (BodyKind::Array, read_array(vm, body)?),
        body => match content::take_body(vm, body)? {
            Some(body) => (BodyKind::HandedOn, body),
            None => {
                let request = request.upgrade();
                let request = request.ok_or_else(|| Leave::runtime("the request has ended"))?;
                let source = body::start(vm, body, &request)?;
                sink = Some(source.sink.clone());
                (BodyKind::Script, Body::Stream(Box::new(source)))
            }
        },
    };
    Ok(Answer::Response(ScriptResponse {
        status,
        fields,
        body,
        sink,
        kind,
        reason: None,
    }))
}

fn read_plain(response: &PlainResponse<'_>) -> Result<Answer, Leave> {
    let status = status_of(response.status())?;
    let lens = response
        .fields()
        .map(|(name, value)| name.len() + value.len());
    let mut fields = Fields {
        headers: Headers::with_room(lens.clone().count(), lens.sum()),
        ..Fields::default()
    };
    for (name, value) in response.fields() {
        read_text(name, value, &mut |name, _, value| fields.add(name, value))?;
    }
    let body = if status.as_u16() == DELEGATES {
        Body::Empty
    } else {
        let mut content = Vec::with_capacity(response.pieces().map(<[u8]>::len).sum());
        for piece in response.pieces() {
            content.extend_from_slice(piece);
        }
        body_of(content)
    };
    Ok(Answer::Response(ScriptResponse {
        status,
        fields,
        body,
        sink: None,
        kind: BodyKind::Array,
        reason: None,
    }))
}

/// The final status of a response. Statuses below 200 are refused: a client takes them for an interim response and waits for another, or
/// closes the connection.
fn status_of(number: i64) -> Result<StatusCode, Leave> {
    let status = u16::try_from(number).ok().and_then(StatusCode::new);
    let status = status.filter(|status| status.as_u16() >= 200);
    status.ok_or_else(|| Leave::runtime("status returned from rack app is out of range"))
}

fn body_of(content: Vec<u8>) -> Body {
    if content.is_empty() {
        Body::Empty
    } else {
        Body::Bytes(Bytes::from(content))
    }
}

/// Turns the response of a sub-request into the result of a script, as if the script had returned its parts.
pub(super) fn of_response(response: Response) -> Answer {
    let reason = response.reason().to_owned();
    let mut fields = Fields::default();
    for field in response.headers.iter() {
        fields.add(field.name.as_str(), field.value);
    }
    fields.length = response.length;
    Answer::Response(ScriptResponse {
        status: response.status,
        fields,
        body: response.body,
        sink: None,
        kind: BodyKind::HandedOn,
        reason: Some(reason.into()),
    })
}

fn read_status(vm: &Vm, value: Value) -> Result<StatusCode, Leave> {
    let number = match value.kind() {
        Kind::Integer => value.as_integer(),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the fraction is cut off, as Float#to_i does"
        )]
        Kind::Float => value.as_float().map(|number| number as i64),
        _ => {
            let shown = vm.name_in_messages(value);
            return Err(Leave::type_error(format!(
                "{shown} cannot be converted to Integer"
            )));
        }
    };
    // If no Integer is equal to the Float, the Float is out of range, which raises an exception.
    status_of(number.unwrap_or(-1))
}

/// Reads an Array as a body: its elements are joined.
fn read_array(vm: &Vm, array: Value) -> Result<Body, Leave> {
    let elements = vm.elements(array).unwrap_or_default();
    let lens = elements.iter();
    let lens = lens.filter_map(|element| vm.with_bytes(*element, <[u8]>::len));
    let mut content = Vec::with_capacity(lens.sum());
    for element in elements {
        if vm
            .with_bytes(element, |bytes| content.extend_from_slice(bytes))
            .is_none()
        {
            content.extend_from_slice(&vm.text_of(element).map_err(Leave::Raise)?);
        }
    }
    Ok(body_of(content))
}

/// Calls `add` with every field of a Hash, of an Array of pairs, or of another object with the method `each`. A value
/// with line feeds, and an Array, count as several values.
///
/// # Errors
/// The exception that an element raises.
pub(super) fn read_fields(
    vm: &Vm,
    value: Value,
    mut add: impl FnMut(&str, &[u8]),
) -> Result<(), Leave> {
    read_spelled_fields(vm, value, |name, _, value| add(name, value))
}

/// Reads header fields as [`read_fields`] does. `add` gets the name in lower case, the name as the script has written
/// it, and the value.
pub(super) fn read_spelled_fields(
    vm: &Vm,
    value: Value,
    mut add: impl FnMut(&str, &[u8], &[u8]),
) -> Result<(), Leave> {
    // Most scripts return a few Strings, which can be read without running Ruby code.
    let plain = vm.each_text(value, |name, value| read_text(name, value, &mut add));
    if let Some(read) = plain {
        return read;
    }
    let raised = Leave::Raise;
    let pairs: Vec<(Value, Value)> = match value.kind() {
        Kind::Hash => {
            let keys = vm
                .elements(vm.hash_keys(value).map_err(raised)?)
                .unwrap_or_default();
            let mut pairs = Vec::with_capacity(keys.len());
            for key in keys {
                pairs.push((key, vm.hash_get(value, key).map_err(raised)?));
            }
            pairs
        }
        kind => {
            let list = if kind == Kind::Array {
                value
            } else if vm.responds_to(value, "each") {
                let module = vm.constant(None, "H2O").map_err(raised)?;
                vm.call(module, "__collect", &[value]).map_err(raised)?
            } else {
                return Err(Leave::New(
                    "NoMethodError",
                    "undefined method 'each'".into(),
                ));
            };
            let mut pairs = Vec::new();
            for element in vm.elements(list).unwrap_or_default() {
                let pair = vm
                    .elements(element)
                    .ok_or_else(|| Leave::argument("array element of headers MUST by an array"))?;
                let part = |index: usize| pair.get(index).copied().unwrap_or_else(Value::nil);
                pairs.push((part(0), part(1)));
            }
            pairs
        }
    };
    for (name, value) in pairs {
        let name = vm.text_of(name).map_err(raised)?;
        read_values(vm, &name, value, &mut add)?;
    }
    Ok(())
}

/// Calls `add` with each value of one field.
///
/// # Errors
/// The exception `ArgumentError`, if the name or a value must not be sent.
pub(super) fn read_field(
    vm: &Vm,
    name: &[u8],
    value: Value,
    add: &mut dyn FnMut(&str, &[u8]),
) -> Result<(), Leave> {
    read_values(vm, name, value, &mut |name, _, value| add(name, value))
}

fn read_values(vm: &Vm, name: &[u8], value: Value, add: &mut AddField<'_>) -> Result<(), Leave> {
    let values = vm.elements(value).unwrap_or_else(|| vec![value]);
    for value in values {
        read_text(name, &vm.text_of(value)?, add)?;
    }
    Ok(())
}

/// Calls `add` with each line of a value of one field.
fn read_text(spelling: &[u8], value: &[u8], add: &mut AddField<'_>) -> Result<(), Leave> {
    // Most names are well-known ones in lower case, which need no further look.
    let name = match Known::from_lower(spelling) {
        Some(known) => Cow::Borrowed(known.as_str()),
        None => lower_name(spelling)?,
    };
    // Most values have no line feed or other control character. This loop has no early exit, so that it compares many
    // bytes at once.
    let has_controls = |found, byte: &u8| found | (*byte < b' ') | (*byte == 0x7f);
    if !value.iter().fold(false, has_controls) {
        add(&name, spelling, value);
        return Ok(());
    }
    for line in value.split(|byte| *byte == b'\n') {
        // Clients of HTTP/2 and HTTP/3 reset a stream because of any control character (RFC 9113 section 8.2.1 and RFC 9110 section 5.5).
        if line
            .iter()
            .any(|byte| byte.is_ascii_control() && *byte != b'\t')
        {
            return Err(Leave::argument(format!("invalid value of header {name}")));
        }
        add(&name, spelling, line);
    }
    Ok(())
}

/// The name of a field in lower case.
fn lower_name(name: &[u8]) -> Result<Cow<'_, str>, Leave> {
    // An invalid field name, such as one with a line break, could end the response's head early or begin another field.
    if !h2o_http::is_token(name) {
        let shown = name.to_ascii_lowercase();
        let shown = shown.escape_ascii();
        return Err(Leave::argument(format!("invalid header name: {shown}")));
    }
    let name = std::str::from_utf8(name).map_err(|_| Leave::argument("invalid header name"))?;
    Ok(if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

impl Fields {
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        match name {
            "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
            | "datagram-flow-id" => {}
            "content-length" => {
                self.length = h2o_http::parse_content_length(value).or(self.length);
            }
            _ => match name
                .strip_prefix("x-fallthru-set-")
                .filter(|name| !name.is_empty())
            {
                Some(variable) => {
                    let name = variable.to_ascii_uppercase().replace('-', "_");
                    self.variables.push((name.into(), value.into()));
                }
                None => self.headers.push(Name::from_lower(name), value),
            },
        }
    }
}

/// Turns the result of a script into the outcome of its handler.
pub(super) fn deliver(exchange: &mut Exchange, request: &RequestState, answer: Answer) -> Outcome {
    request.pass_on(exchange);
    let answer = match answer {
        Answer::Raised(exception) => {
            request.end();
            let text = format!("mruby raised: {exception}\n");
            exchange.note_error("h2o_mruby", &text);
            return Outcome::Done(failure(exchange));
        }
        Answer::Response(response) => response,
    };
    for (name, value) in &answer.fields.variables {
        exchange.set_env(name, value);
    }
    if answer.kind != BodyKind::Script {
        request.end();
    }
    if answer.status.as_u16() == DELEGATES {
        return delegate(answer.fields);
    }
    Outcome::Done(respond(exchange, answer))
}

/// Lets the later handlers answer the request, and adds these fields to their response.
fn delegate(fields: Fields) -> Outcome {
    let Fields {
        headers, length, ..
    } = fields;
    if headers.is_empty() && length.is_none() {
        return Outcome::Declined;
    }
    Outcome::Next(Box::new(move |exchange, mut response| {
        // H2O compatibility: if the server itself generates an error response, the fields that the script collected are
        // dropped.
        if !response.is_plain_error {
            let links = headers.get(Known::Link).is_some();
            let mut all = headers;
            all.extend_from(&response.headers);
            response.headers = all;
            if links {
                response.links = LinkHeaderUse::PushAndFilter;
            }
            let is_head = exchange.request.method == Method::Head;
            match length {
                // The content was left out already, so its length is not known here.
                Some(limit) if is_head && matches!(response.body, Body::Empty) => {
                    response.length = Some(response.length.map_or(limit, |len| len.min(limit)));
                }
                Some(limit) => body::limit(&mut response, limit),
                None => {}
            }
        }
        Outcome::Done(response)
    }))
}

fn respond(exchange: &Exchange, answer: ScriptResponse) -> Response {
    let ScriptResponse {
        status,
        fields,
        body,
        sink,
        kind,
        reason,
    } = answer;
    let is_head = exchange.request.method == Method::Head;
    let has_link = fields.headers.get(Known::Link).is_some();
    let mut response = Response::new(status, fields.headers, body);
    response.reason = reason.or(Some("OK".into()));
    if has_link {
        response.links = LinkHeaderUse::PushAndFilter;
    }
    if is_head || status.is_bodyless() {
        response.length = fields.length;
        if kind == BodyKind::Array {
            response.body = Body::Empty;
        }
        if let Some(sink) = sink {
            sink.discard(&exchange.worker);
        }
    } else if let Some(length) = fields.length {
        if !matches!(response.body, Body::Stream(_)) {
            body::limit(&mut response, length);
        } else {
            response.length = Some(length);
            let sink = sink.map(|sink| (sink, Rc::clone(&exchange.worker)));
            response.body = ScriptBody::cut(response.body, length, sink);
        }
    }
    response
}
