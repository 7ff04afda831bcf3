//! The field sections of requests: required fields, and conversion to a request head (RFC 9113 §8.3.1, RFC 9114 §4.3.1).

use super::{
    DecodedField, FieldError, FieldName, Flaws, MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT,
    Pseudo, SectionError,
};
use crate::priority::PriorityField;
use crate::{
    BodyLength, Known, Method, Name, RequestHead, Scheme, Span, StatusCode, Version, authority,
    is_token, is_visible, parse_content_length, path,
};

/// The reason to answer a request with an error before any handler runs. The request is answered with a status; its stream
/// is not reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request has more than [`MAX_FIELDS`] fields, or more text than [`MAX_TABLE_TEXT`] allows.
    TooManyFields,
    /// A field name has a byte that is not allowed in names.
    NameInvalid,
    /// A field value has a byte that is not allowed in values.
    ValueInvalid,
    /// The value of `expect` is not `100-continue`.
    Expectation,
    /// A CONNECT request has `content-length` (over HTTP/2), or its section ends the stream, so that no tunnel is possible.
    Connect,
    /// A CONNECT request over HTTP/3 has `content-length`.
    ConnectContent,
    /// `:authority`, or `host` in its place, is not of the form `host` or `host:port`.
    AuthorityInvalid,
    /// `:path` is not `*` and does not begin with a slash.
    PathInvalid,
    /// `content-length` exceeds the server's limit. The engines check this, not this module.
    ContentTooLarge,
}

impl Refusal {
    /// The status, reason phrase (for logs and error documents) and text of the answer to the refused request. H2O
    /// compatibility: H2O answers with the same texts.
    #[must_use]
    pub const fn answer(self) -> (StatusCode, &'static str, &'static str) {
        let bad = StatusCode::BAD_REQUEST;
        match self {
            Self::TooManyFields => (bad, "Invalid Request", "headers too long"),
            Self::NameInvalid => (
                bad,
                "Invalid Request",
                "found an invalid character in header name",
            ),
            Self::ValueInvalid => (
                bad,
                "Invalid Request",
                "found an invalid character in header value",
            ),
            Self::Expectation => (
                StatusCode::EXPECTATION_FAILED,
                "Expectation Failed",
                "unknown expectation",
            ),
            Self::Connect => (bad, "Invalid Request", "Invalid CONNECT request"),
            Self::ConnectContent => (
                bad,
                "Invalid Request",
                "CONNECT request cannot have request body",
            ),
            // HTTP/1 requests with an invalid authority or path get the same answer. H2O accepts such requests.
            Self::AuthorityInvalid | Self::PathInvalid => (bad, "Bad Request", "Bad Request"),
            Self::ContentTooLarge => (
                StatusCode::CONTENT_TOO_LARGE,
                "Payload Too Large",
                "request entity is too large",
            ),
        }
    }
}

/// What a request's field section says, besides the request head.
#[derive(Clone, Copy, Debug)]
pub struct RequestSection {
    /// Whether the section ended the stream: the request has no content.
    pub end_stream: bool,
    /// The error to answer the request with, if it is refused.
    pub refusal: Option<Refusal>,
    /// The value of `content-length`.
    pub content_length: Option<u64>,
    /// Whether the request asks for a tunnel (CONNECT, extended CONNECT).
    pub is_tunnel: bool,
    /// The parameters of the `priority` field (RFC 9218).
    pub priority: Option<PriorityField>,
}

mod seen {
    pub(super) const METHOD: u8 = 1;
    pub(super) const SCHEME: u8 = 2;
    pub(super) const AUTHORITY: u8 = 4;
    pub(super) const PATH: u8 = 8;
    pub(super) const PROTOCOL: u8 = 16;
}

/// Collects the fields of a request's head or trailers as they are decoded.
pub struct RequestFields<'h> {
    head: &'h mut RequestHead,
    seen: u8,
    is_method_valid: bool,
    path: Span,
    authority: Span,
    protocol: Span,
    host: Option<Span>,
    expect: Option<Span>,
    count: u32,
    /// How many more bytes of decoded names and values the section may have.
    room: usize,
    crumbs: u32,
    content_length: Option<u64>,
    refusal: Option<Refusal>,
    priority: Option<PriorityField>,
    is_trailers: bool,
}

impl<'h> RequestFields<'h> {
    /// Begins to collect the section that opens a stream. `len` is the length of the section on the wire; `head` is empty
    /// except for its version.
    #[must_use]
    pub fn of_request(head: &'h mut RequestHead, len: usize) -> Self {
        Self {
            head,
            seen: 0,
            is_method_valid: true,
            path: Span::default(),
            authority: Span::default(),
            protocol: Span::default(),
            host: None,
            expect: None,
            count: 0,
            room: MAX_TABLE_TEXT + 2 * len,
            crumbs: 0,
            content_length: None,
            refusal: None,
            priority: None,
            is_trailers: false,
        }
    }

    /// Begins to collect trailers. `len` is the length of the section on the wire; `head` is empty.
    #[must_use]
    pub fn of_trailers(head: &'h mut RequestHead, len: usize) -> Self {
        Self {
            is_trailers: true,
            ..Self::of_request(head, len)
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }

    /// Counts `len` decoded bytes against the section's limit. Returns whether the limit allows them.
    #[inline]
    fn has_room(&mut self, len: usize) -> bool {
        let Some(room) = self.room.checked_sub(len) else {
            self.room = 0;
            self.refuse(Refusal::TooManyFields);
            return false;
        };
        self.room = room;
        true
    }

    /// Adds one decoded field.
    ///
    /// # Errors
    /// Returns a [`FieldError`] if the field makes the message malformed. A flaw that only makes the server refuse the
    /// request is returned by [`RequestFields::finish`].
    #[inline]
    pub fn field(&mut self, field: &DecodedField<'_>) -> Result<(), FieldError> {
        if let FieldName::Pseudo(pseudo) = field.name {
            return self.pseudo(pseudo, field);
        }
        self.count += 1;
        if self.count > MAX_FIELDS {
            self.refuse(Refusal::TooManyFields);
            return if self.count > MAX_DECODED_FIELDS {
                Err(FieldError::Flood)
            } else {
                Ok(())
            };
        }
        if !field.flaws.is_none() {
            if field.flaws.has(Flaws::NAME_UPPER_CASE) {
                return Err(FieldError::UpperCaseName);
            }
            self.refuse(if field.flaws.has(Flaws::NAME_INVALID) {
                Refusal::NameInvalid
            } else {
                Refusal::ValueInvalid
            });
            return Ok(());
        }
        match field.name {
            FieldName::Known(known) => self.known(known, field.value),
            FieldName::Other(name) => {
                if self.has_room(name.len() + field.value.len()) {
                    self.head.headers.push(Name::Other(name), field.value);
                }
                Ok(())
            }
            // `field` has handled pseudo-header fields and fields with invalid names before this `match`.
            FieldName::Pseudo(_) | FieldName::Invalid(_) => Ok(()),
        }
    }

    #[inline]
    fn known(&mut self, known: Known, value: &[u8]) -> Result<(), FieldError> {
        match known {
            Known::Connection | Known::Http2Settings | Known::TransferEncoding | Known::Upgrade => {
                return Err(FieldError::ConnectionSpecific);
            }
            Known::Te if value != b"trailers" => return Err(FieldError::ConnectionSpecific),
            // `datagram-flow-id` identifies a tunnel in HTTP datagrams (draft 03 of RFC 9298), which only HTTP/3 has. Over
            // HTTP/2 the field is dropped.
            Known::DatagramFlowId if self.head.version != Version::Http3 => return Ok(()),
            Known::Host if !self.is_trailers => {
                if self.host.is_none() && self.has_room(value.len()) {
                    self.host = Some(self.head.headers.store(value));
                }
                return Ok(());
            }
            Known::Expect if !self.is_trailers => {
                if self.has_room(value.len()) {
                    self.expect = Some(self.head.headers.store(value));
                }
                return Ok(());
            }
            // Fields that describe the request's framing or routing have no meaning in trailers (RFC 9110 §6.5.1).
            Known::ContentLength | Known::Host | Known::Expect if self.is_trailers => return Ok(()),
            Known::ContentLength => return self.content_length(value),
            Known::Cookie => self.crumbs += 1,
            Known::Priority => self.priority = Some(PriorityField::parse(value)),
            _ => {}
        }
        if self.has_room(known.as_str().len() + value.len()) {
            self.head.headers.push(known, value);
        }
        Ok(())
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), FieldError> {
        let error = FieldError::ContentLength;
        let length = parse_content_length(value).ok_or(error)?;
        // Two different lengths are an attempt to make this server and a backend disagree about the end of the request (RFC
        // 9110 §8.6).
        if self.content_length.is_some_and(|other| other != length) {
            return Err(error);
        }
        self.content_length = Some(length);
        Ok(())
    }

    #[inline]
    fn pseudo(&mut self, pseudo: Pseudo, field: &DecodedField<'_>) -> Result<(), FieldError> {
        let value = field.value;
        let bit = match pseudo {
            Pseudo::Method => seen::METHOD,
            Pseudo::Scheme => seen::SCHEME,
            Pseudo::Authority => seen::AUTHORITY,
            Pseudo::Path => seen::PATH,
            Pseudo::Protocol => seen::PROTOCOL,
            Pseudo::Status | Pseudo::Unknown => return Err(FieldError::UnknownPseudoField),
        };
        if self.is_trailers || self.count > 0 || self.seen & bit != 0 {
            return Err(FieldError::PseudoField);
        }
        self.seen |= bit;
        if !field.flaws.is_none() {
            self.refuse(Refusal::ValueInvalid);
        }
        if !self.has_room(value.len()) {
            return Ok(());
        }
        match pseudo {
            Pseudo::Method if value == b"GET" => {}
            Pseudo::Method => match Method::from_token(value) {
                Some(method) => self.head.method = method,
                None => self.is_method_valid = false,
            },
            Pseudo::Scheme => {
                self.head.scheme = match value {
                    b"https" => Scheme::Https,
                    b"http" => Scheme::Http,
                    value => scheme_of(value),
                }
            }
            Pseudo::Authority => {
                if !is_visible(value) {
                    self.refuse(Refusal::ValueInvalid);
                }
                self.authority = self.head.headers.store(value);
            }
            Pseudo::Path if value.is_empty() => return Err(FieldError::PseudoField),
            Pseudo::Path => self.path = self.head.headers.store(value),
            Pseudo::Protocol => self.protocol = self.head.headers.store(value),
            Pseudo::Status | Pseudo::Unknown => {}
        }
        Ok(())
    }

    /// Ends the section and completes the head; `end_stream` tells whether the section ends the stream.
    ///
    /// # Errors
    /// Returns a [`SectionError`] if the section as a whole makes the message malformed.
    pub fn finish(mut self, end_stream: bool) -> Result<RequestSection, SectionError> {
        if !self.is_method_valid {
            return Err(SectionError::Method);
        }
        let is_tunnel = self
            .check_pseudo_fields()
            .ok_or(SectionError::PseudoFields)?;
        self.set_target();
        self.set_authority();
        if is_tunnel && (end_stream || self.content_length.is_some()) {
            // H2O compatibility: over HTTP/3, H2O answers a CONNECT that has `content-length` with a text of its own.
            let is_http3 = self.head.version == Version::Http3;
            self.refuse(match self.content_length {
                Some(_) if is_http3 => Refusal::ConnectContent,
                Some(_) | None => Refusal::Connect,
            });
        }
        if let Some(expect) = self.expect {
            if self
                .head
                .headers
                .text(expect)
                .eq_ignore_ascii_case(b"100-continue")
            {
                self.head.set_expect(expect);
            } else {
                self.refuse(Refusal::Expectation);
            }
        }
        if self.crumbs > 1 {
            join_crumbs(self.head);
        }
        self.head.body = match self.content_length {
            _ if is_tunnel => BodyLength::Tunnel,
            Some(length) => BodyLength::Known(length),
            None if end_stream => BodyLength::None,
            None => BodyLength::Unknown,
        };
        if end_stream && self.content_length.is_some_and(|length| length > 0) && !is_tunnel {
            return Err(SectionError::ContentLength);
        }
        Ok(RequestSection {
            end_stream,
            refusal: self.refusal,
            content_length: self.content_length,
            is_tunnel,
            priority: self.priority,
        })
    }

    /// Ends the trailers. Returns the reason to refuse the request, if the trailers give one.
    #[must_use]
    pub const fn finish_trailers(self) -> Option<Refusal> {
        self.refusal
    }

    /// Checks that the pseudo-header fields are those that the method needs (RFC 9113 §8.3.1, §8.5, RFC 8441 §4). Returns
    /// whether the request asks for a tunnel; `None` if the message is malformed.
    fn check_pseudo_fields(&self) -> Option<bool> {
        // The server accepts the scheme `masque` of CONNECT-UDP drafts on any connection. With another method it would evade
        // the check that the request's scheme is the connection's.
        if self.head.scheme == Scheme::Masque && self.head.method != Method::ConnectUdp {
            return None;
        }
        const USUAL: u8 = seen::METHOD | seen::SCHEME | seen::PATH;
        let usual = self.seen & USUAL == USUAL;
        let protocol = self.seen & seen::PROTOCOL != 0;
        match self.head.method {
            Method::Connect if protocol => {
                (usual && self.seen & seen::AUTHORITY != 0).then_some(true)
            }
            Method::Connect => (self.seen == seen::METHOD | seen::AUTHORITY).then_some(true),
            Method::ConnectUdp => {
                (usual && !protocol && self.head.headers.text(self.path) == b"/").then_some(true)
            }
            _ => (usual && !protocol).then_some(false),
        }
    }

    fn set_authority(&mut self) {
        let span = if self.seen & seen::AUTHORITY == 0 {
            self.host.unwrap_or_default()
        } else {
            self.authority
        };
        let names_peer = match self.head.method {
            Method::Connect => self.seen & seen::PROTOCOL == 0,
            Method::ConnectUdp => true,
            _ => false,
        };
        // The target of a CONNECT is not checked here but by the handler, which can explain an error in `proxy-status` (RFC
        // 9209).
        if names_peer || span.is_empty() || authority::is_valid(self.head.headers.text(span)) {
            self.head.set_authority(span);
        } else {
            self.refuse(Refusal::AuthorityInvalid);
        }
    }

    fn set_target(&mut self) {
        let target = if self.seen & seen::PATH == 0 {
            // A CONNECT without `:protocol` has no `:path`: its authority is its target (RFC 9110 §7.1).
            self.authority
        } else {
            self.path
        };
        let text = self.head.headers.text(target);
        let scanned = path::scan_target(text);
        let is_path = self.seen & seen::PATH == 0 || is_path(text);
        if scanned.len == text.len() && !is_path {
            // A `:path` that does not begin with a slash, forwarded over HTTP/1, would make a backend see another request
            // (RFC 9113 §8.3.1).
            self.refuse(Refusal::PathInvalid);
            self.head.set_target(target);
        } else if scanned.len == text.len() {
            self.head.set_scanned_target(target, &scanned);
        } else {
            // The path has a blank or a control character: forwarded over HTTP/1, it would make a backend see another
            // request.
            self.refuse(Refusal::ValueInvalid);
            self.head.set_target(target);
        }
        if self.seen & seen::PROTOCOL != 0 {
            // It becomes the `upgrade` field for a backend over HTTP/1: a token, and perhaps a version (RFC 9110 §7.8).
            let protocol = self.head.headers.text(self.protocol);
            if !protocol.split(|&byte| byte == b'/').all(is_token) {
                self.refuse(Refusal::ValueInvalid);
            }
            self.head.set_upgrade(self.protocol);
        }
    }
}

/// The scheme that `text` names in any letter case (RFC 3986 §3.1). H2O compatibility: H2O takes an unknown scheme for
/// `http`.
#[cold]
fn scheme_of(text: &[u8]) -> Scheme {
    let is_it = |scheme: &Scheme| text.eq_ignore_ascii_case(scheme.as_str().as_bytes());
    let known = [Scheme::Https, Scheme::Masque];
    known.into_iter().find(is_it).unwrap_or(Scheme::Http)
}

/// Whether `text` is allowed as `:path` (RFC 9113 §8.3.1).
fn is_path(text: &[u8]) -> bool {
    text.first() == Some(&b'/') || text == b"*"
}

/// Replaces the path and query of a request head. Returns whether [`RequestFields`] would accept `text` as `:path`; if not,
/// the head is unchanged.
#[inline]
#[must_use]
pub fn set_path(head: &mut RequestHead, text: &[u8]) -> bool {
    let scanned = path::scan_target(text);
    if !is_path(text) || scanned.len != text.len() {
        return false;
    }
    let target = head.headers.store(text);
    head.set_scanned_target(target, &scanned);
    true
}

/// Joins the `cookie` fields of a head to one (RFC 9113 §8.2.3). Empty ones are left out: they would leave a blank at an
/// end of the value, which is not allowed (§8.2.1).
fn join_crumbs(head: &mut RequestHead) {
    let mut joined = Vec::new();
    let crumbs = head.headers.get_all(Known::Cookie);
    for crumb in crumbs.filter(|crumb| !crumb.is_empty()) {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(crumb);
    }
    head.headers.set(Known::Cookie, &joined);
}
