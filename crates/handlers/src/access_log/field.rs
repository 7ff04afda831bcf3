//! The meaning of specifiers.

use h2o_http::{Known, Name};

/// The value of one specifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// A value that does not exist: `%l`, and values of other protocols.
    Null,
    /// A counter of the proxy.
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
    /// `%t`
    CommonTime,
    /// `%{FORMAT}t`
    Time(Box<str>),
    /// Time since the Unix epoch.
    Epoch(Unit),
    /// The part of a second.
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

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    Local,
    Remote,
}

/// Before or after the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The value before filters changed it: as a handler generated it, or as received from upstream (`%<`).
    First,
    /// As sent (`%>`).
    Final,
}

/// Fractions of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
}

/// A moment in the life of an exchange.
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

/// Bytes to or from a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyBytes {
    Request,
    RequestHeader,
    RequestBody,
    Response,
    ResponseHeader,
    ResponseBody,
}

/// A TLS parameter of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsField {
    Protocol,
    Resumed,
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
    QuicStats,
    Priority,
}

/// A value that only HTTP/2 streams have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2Field {
    StreamId,
    /// The priority that came with the request.
    Received,
    ReceivedExclusive,
    ReceivedParent,
    ReceivedWeight,
    /// The stream's current place in HTTP/2's dependency tree.
    Actual,
    ActualParent,
    ActualWeight,
}

impl Field {
    /// Whether the value is from [`h2o_exchange::Trace`].
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
    /// Lower case.
    Other(Box<str>),
}

impl FieldName {
    /// The name of `text`, which may have any letter case.
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

/// The value of `%{NAME}x`. H2O compatibility: H2O accepts unknown names and logs null for them. The same holds for values
/// of protocols and features that the exchange does not use.
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
        "http3.quic-stats" => Field::Http3(Http3Field::QuicStats),
        "extensible-priorities" => Field::Http3(Http3Field::Priority),
        "request-body-bytes" => Field::RequestBodyBytes,
        "response-header-bytes" => Field::ResponseHeaderBytes,
        "ssl.protocol-version" => Field::Tls(TlsField::Protocol),
        "ssl.session-reused" => Field::Tls(TlsField::Resumed),
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
