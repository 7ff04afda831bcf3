//! The values that the specifiers of an access-log format stand for.

use h2o_http::{Known, Name};

/// The value that one specifier of an access-log format stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// A value that does not exist: that of `%l`, and values of protocols that this server does not have.
    Null,
    /// A number of bytes sent to or received from a backend.
    Proxied(ProxyBytes),
    ProxyTls(TlsField),
    Address(ConnectionEnd),
    Port(ConnectionEnd),
    BodyBytes,
    Protocol,
    Method,
    Query,
    Path,
    RequestLine,
    Status(Stage),
    /// The time of `%t`, in the form of the Common Log Format.
    CommonTime,
    /// The time of `%{FORMAT}t`, in a `strftime` format.
    Time(Box<str>),
    /// The time of the request, counted since the Unix epoch in this unit.
    Epoch(Unit),
    /// The part of a second in the time of the request, in this unit.
    EpochFraction(Unit),
    User,
    Authority,
    HostName,
    Env(Box<str>),
    RequestHeader(FieldName),
    Upgrade,
    Expect,
    ResponseHeader(Stage, FieldName),
    Duration(Moment, Moment),
    Errors,
    ConnectionId,
    RequestId,
    Http1RequestIndex,
    Http2(Http2Field),
    Http3(Http3Field),
    RequestBodyBytes,
    ResponseHeaderBytes,
    Tls(TlsField),
    CongestionController,
    DeliveryRate,
}

/// One of the two ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    Local,
    Remote,
}

/// Whether a value of the response is taken before or after the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The value before filters changed it: as a handler generated it, or as received from upstream (`%<`).
    First,
    /// The value as sent to the client (`%>`).
    Final,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
}

/// A moment in the life of an exchange, from which or to which a duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Accepted,
    Begun,
    Head,
    Processed,
    ResponseStart,
    ResponseEnd,
    ProxyStarted,
    ProxyRequestBegun,
    ProxyRequestEnded,
    ProxyResponseBegun,
    ProxyResponseEnded,
}

/// Which bytes sent to or received from a backend a specifier counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyBytes {
    Request,
    RequestHeader,
    RequestBody,
    Response,
    ResponseHeader,
    ResponseBody,
}

/// A TLS parameter of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsField {
    Protocol,
    Resumed,
    SessionId,
    Cipher,
    CipherBits,
    ServerName,
    Alpn,
    Backend,
}

/// A value that only HTTP/3 streams and their connections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http3Field {
    StreamId,
    QuicVersion,
    WasBlocked,
    Received,
    Sent,
    RequestHeaderBytes,
    RequestHeaderTextBytes,
    RequestHeaderCount,
    ResponseHeaderTextBytes,
    ResponseHeaderCount,
    QuicStats,
    Priority,
}

/// A value that only HTTP/2 streams have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2Field {
    StreamId,
    /// The priority that the request's HEADERS frame gave the stream.
    Received,
    ReceivedExclusive,
    ReceivedParent,
    ReceivedWeight,
    /// The priority that the stream has now in HTTP/2's dependency tree.
    Actual,
    ActualParent,
    ActualWeight,
}

impl Field {
    /// Whether the value is one that [`h2o_exchange::Trace`] records.
    pub(super) const fn is_of_trace(&self) -> bool {
        match self {
            Self::Proxied(_) | Self::ProxyTls(_) => true,
            Self::Duration(from, to) => from.is_of_trace() || to.is_of_trace(),
            _ => false,
        }
    }
}

impl Moment {
    const fn is_of_trace(self) -> bool {
        matches!(
            self,
            Self::ProxyStarted
                | Self::ProxyRequestBegun
                | Self::ProxyRequestEnded
                | Self::ProxyResponseBegun
                | Self::ProxyResponseEnded
        )
    }
}

/// The name of a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldName {
    Known(Known),
    /// The name of another field, in lower case.
    Other(Box<str>),
}

impl FieldName {
    /// The field name `text`, which may have any letter case.
    pub(super) fn new(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        match Name::from_lower(&lower) {
            Name::Known(known) => Self::Known(known),
            Name::Other(_) => Self::Other(lower.into()),
        }
    }

    pub(super) fn as_name(&self) -> Name<'_> {
        match self {
            Self::Known(known) => Name::Known(*known),
            Self::Other(text) => Name::Other(text),
        }
    }
}

/// The value that `%{NAME}x` stands for. H2O compatibility: H2O accepts unknown names and logs null for them. The same
/// holds for values of protocols and features that the exchange does not use.
pub(super) fn extended(name: &str) -> Field {
    match name.to_ascii_lowercase().as_str() {
        "connect-time" => Field::Duration(Moment::Accepted, Moment::Begun),
        "request-header-time" => Field::Duration(Moment::Begun, Moment::Head),
        "request-body-time" => Field::Duration(Moment::Head, Moment::Processed),
        "request-total-time" => Field::Duration(Moment::Begun, Moment::Processed),
        "process-time" => Field::Duration(Moment::Processed, Moment::ResponseStart),
        "response-time" => Field::Duration(Moment::ResponseStart, Moment::ResponseEnd),
        "duration" | "total-time" => Field::Duration(Moment::Begun, Moment::ResponseEnd),
        "error" => Field::Errors,
        "connection-id" => Field::ConnectionId,
        "request-id" => Field::RequestId,
        "http1.request-index" => Field::Http1RequestIndex,
        "http2.stream-id" => Field::Http2(Http2Field::StreamId),
        "http2.priority.received" => Field::Http2(Http2Field::Received),
        "http2.priority.received.exclusive" => Field::Http2(Http2Field::ReceivedExclusive),
        "http2.priority.received.parent" => Field::Http2(Http2Field::ReceivedParent),
        "http2.priority.received.weight" => Field::Http2(Http2Field::ReceivedWeight),
        "http2.priority.actual" => Field::Http2(Http2Field::Actual),
        "http2.priority.actual.parent" => Field::Http2(Http2Field::ActualParent),
        "http2.priority.actual.weight" => Field::Http2(Http2Field::ActualWeight),
        "http3.stream-id" => Field::Http3(Http3Field::StreamId),
        "http3.quic-version" => Field::Http3(Http3Field::QuicVersion),
        "http3.qpack-blocked" => Field::Http3(Http3Field::WasBlocked),
        "http3.request-stream-bytes" => Field::Http3(Http3Field::Received),
        "http3.response-stream-bytes" => Field::Http3(Http3Field::Sent),
        "request-header-bytes" => Field::Http3(Http3Field::RequestHeaderBytes),
        "request-header-text-bytes" => Field::Http3(Http3Field::RequestHeaderTextBytes),
        "request-header-count" => Field::Http3(Http3Field::RequestHeaderCount),
        "response-header-text-bytes" => Field::Http3(Http3Field::ResponseHeaderTextBytes),
        "response-header-count" => Field::Http3(Http3Field::ResponseHeaderCount),
        "http3.quic-stats" => Field::Http3(Http3Field::QuicStats),
        "extensible-priorities" => Field::Http3(Http3Field::Priority),
        "request-body-bytes" => Field::RequestBodyBytes,
        "response-header-bytes" => Field::ResponseHeaderBytes,
        "ssl.protocol-version" => Field::Tls(TlsField::Protocol),
        "ssl.session-reused" => Field::Tls(TlsField::Resumed),
        "ssl.session-id" => Field::Tls(TlsField::SessionId),
        "ssl.cipher" => Field::Tls(TlsField::Cipher),
        "ssl.cipher-bits" => Field::Tls(TlsField::CipherBits),
        "ssl.server-name" => Field::Tls(TlsField::ServerName),
        "ssl.negotiated-protocol" => Field::Tls(TlsField::Alpn),
        "ssl.backend" => Field::Tls(TlsField::Backend),
        "cc.name" => Field::CongestionController,
        "delivery-rate" => Field::DeliveryRate,
        "proxy.idle-time" => Field::Duration(Moment::Begun, Moment::ProxyStarted),
        "proxy.connect-time" => Field::Duration(Moment::ProxyStarted, Moment::ProxyRequestBegun),
        "proxy.request-time" => {
            Field::Duration(Moment::ProxyRequestBegun, Moment::ProxyRequestEnded)
        }
        "proxy.process-time" => {
            Field::Duration(Moment::ProxyRequestEnded, Moment::ProxyResponseBegun)
        }
        "proxy.response-time" => {
            Field::Duration(Moment::ProxyResponseBegun, Moment::ProxyResponseEnded)
        }
        "proxy.total-time" => {
            Field::Duration(Moment::ProxyRequestBegun, Moment::ProxyResponseEnded)
        }
        "proxy.request-bytes" => Field::Proxied(ProxyBytes::Request),
        "proxy.request-bytes-header" => Field::Proxied(ProxyBytes::RequestHeader),
        "proxy.request-bytes-body" => Field::Proxied(ProxyBytes::RequestBody),
        "proxy.response-bytes" => Field::Proxied(ProxyBytes::Response),
        "proxy.response-bytes-header" => Field::Proxied(ProxyBytes::ResponseHeader),
        "proxy.response-bytes-body" => Field::Proxied(ProxyBytes::ResponseBody),
        "proxy.ssl.protocol-version" => Field::ProxyTls(TlsField::Protocol),
        "proxy.ssl.session-reused" => Field::ProxyTls(TlsField::Resumed),
        "proxy.ssl.cipher" => Field::ProxyTls(TlsField::Cipher),
        "proxy.ssl.cipher-bits" => Field::ProxyTls(TlsField::CipherBits),
        _ => Field::Null,
    }
}
