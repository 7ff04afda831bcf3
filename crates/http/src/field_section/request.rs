//! The field sections of requests: required fields, and conversion to a request head (RFC 9113 §8.3.1, RFC 9114 §4.3.1).

use super::{
    DecodedField, FieldError, FieldName, Flaws, MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT,
    Pseudo, SectionError,
};
use crate::priority::PriorityField;
use crate::{
    BodyLength, Known, Method, Name, RequestHead, Scheme, Span, StatusCode, Version, authority,
    is_visible, parse_content_length, path,
};

/// The reason to answer a request with an error before any handler runs. The stream is not reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More than [`MAX_FIELDS`] fields, or more text than [`MAX_TABLE_TEXT`] allows.
    TooManyFields,
    /// A field name with bytes that are not allowed in names.
    NameInvalid,
    /// A field value with bytes that are not allowed in values.
    ValueInvalid,
    /// `expect` is not `100-continue`.
    Expectation,
    /// CONNECT with `content-length`, or without a stream to tunnel.
    Connect,
    /// `:authority`, or `host` in its place, is not `host` or `host:port`.
    AuthorityInvalid,
    /// `:path` is neither `*` nor begins with a slash.
    PathInvalid,
    /// `content-length` is more than the server takes. Engines find this.
    ContentTooLarge,
}

impl Refusal {
    /// Status, reason phrase (for logs and error documents) and text of the answer. H2O compatibility: H2O answers the
    /// same.
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
            // As over HTTP/1. H2O accepts both.
            Self::AuthorityInvalid | Self::PathInvalid => (bad, "Bad Request", "Bad Request"),
            Self::ContentTooLarge => (
                StatusCode::CONTENT_TOO_LARGE,
                "Payload Too Large",
                "request entity is too large",
            ),
        }
    }
}

/// The result of a request's field section, besides the head.
#[derive(Clone, Copy, Debug)]
pub struct RequestSection {
    /// Whether it ended the stream: the request has no content.
    pub end_stream: bool,
    /// The error to answer the request with.
    pub refusal: Option<Refusal>,
    /// `content-length`.
    pub content_length: Option<u64>,
    /// Whether the request asks for a tunnel (CONNECT, extended CONNECT).
    pub is_tunnel: bool,
    /// The `priority` field (RFC 9218).
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
    /// How many more bytes of decoded names and values may be kept.
    room: usize,
    crumbs: u32,
    content_length: Option<u64>,
    refusal: Option<Refusal>,
    priority: Option<PriorityField>,
    is_trailers: bool,
}

impl<'h> RequestFields<'h> {
    /// Collects the section that opens a stream. `len`: its length on the wire; `head` is empty except for its version.
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

    /// Collects trailers. `len`: length of the section on the wire; `head` is empty.
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

    /// Counts decoded bytes against the limit. Returns whether they may be kept.
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

    /// Adds one field.
    ///
    /// # Errors
    /// The flaw that makes the message malformed. Flaws that only make us refuse the request are returned by
    /// [`RequestFields::finish`].
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
            // Its flaws were checked above.
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
            // This field names a tunnel in datagrams, which only HTTP/3 has (draft 03 of RFC 9298).
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
            // Fields that frame a message have no meaning in trailers (RFC 9110 §6.5.1).
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
        // Two different lengths are an attempt to make us and a backend disagree (RFC 9110 §8.6).
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

    /// The section is complete; `end_stream` tells whether it ends the stream.
    ///
    /// # Errors
    /// What makes the message malformed.
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
            self.refuse(Refusal::Connect);
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

    /// Ends the trailers. Returns the reason to refuse the request, if they have one.
    #[must_use]
    pub const fn finish_trailers(self) -> Option<Refusal> {
        self.refusal
    }

    /// Checks the pseudo fields, which depend on the method (RFC 9113 §8.3.1, §8.5, RFC 8441 §4). Returns whether the
    /// request asks for a tunnel; `None`: malformed.
    fn check_pseudo_fields(&self) -> Option<bool> {
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
        // The handler checks the target of a CONNECT: it can explain an error in `proxy-status` (RFC 9209).
        if names_peer || span.is_empty() || authority::is_valid(self.head.headers.text(span)) {
            self.head.set_authority(span);
        } else {
            self.refuse(Refusal::AuthorityInvalid);
        }
    }

    fn set_target(&mut self) {
        let target = if self.seen & seen::PATH == 0 {
            // Plain CONNECT: the authority is the target (RFC 9110 §7.1).
            self.authority
        } else {
            self.path
        };
        let text = self.head.headers.text(target);
        let scanned = path::scan_target(text);
        let is_path = self.seen & seen::PATH == 0 || is_path(text);
        if scanned.len == text.len() && !is_path {
            // Such a path would make an HTTP/1 backend see another request (RFC 9113 §8.3.1).
            self.refuse(Refusal::PathInvalid);
            self.head.set_target(target);
        } else if scanned.len == text.len() {
            self.head.set_scanned_target(target, &scanned);
        } else {
            // A blank or a control character: an HTTP/1 backend would see another request.
            self.refuse(Refusal::ValueInvalid);
            self.head.set_target(target);
        }
        if self.seen & seen::PROTOCOL != 0 {
            self.head.set_upgrade(self.protocol);
        }
    }
}

/// A scheme in any letter case (RFC 3986 §3.1). H2O compatibility: H2O takes unknown schemes for `http`.
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

/// Sets another path in a head. Returns whether [`RequestFields`] would accept that path unchanged; if not, the head is
/// unchanged.
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

/// Joins the crumbs of a `cookie` field (RFC 9113 §8.2.3). Empty crumbs are left out: they would leave a blank at an end of
/// the value, which is not allowed (§8.2.1).
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
