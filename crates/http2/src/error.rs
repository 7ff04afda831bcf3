//! Protocol violations of peers, and the answers to them.

use h2o_http::field_section::{FieldError, SectionError};

use crate::frame::{FrameType, StreamId};

/// An error code of RST_STREAM and GOAWAY frames (RFC 9113 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "the constants are the registered names")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const CONNECT_ERROR: Self = Self(10);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// A peer's violation of the protocol or of a limit that ends the connection. Section numbers are those of RFC 9113.
/// Violations that end only one stream are in [`StreamError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The connection does not begin with the client's preface (§3.4).
    NotPreface,
    /// The first frame of the peer is not SETTINGS (§3.4).
    SettingsExpected,
    /// A frame is longer than this side allows (§4.2).
    FrameTooLong,
    /// A frame of this type has another length than the type requires.
    FrameSize(FrameType),
    /// An acknowledgement of SETTINGS has a payload (§6.5).
    SettingsAckSize,
    /// The length of SETTINGS is not a multiple of six (§6.5).
    SettingsSize,
    /// A setting has a value that is not allowed (§6.5.2).
    SettingsValue,
    /// SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1 (§6.5.2), or one that makes a window overflow (§6.9.2).
    SettingsWindow,
    /// A field section was not ended, and the next frame is not its CONTINUATION (§6.10).
    ContinuationExpected,
    /// A CONTINUATION frame is on another stream than the field section that it would continue (§6.10).
    ContinuationStream,
    /// A CONTINUATION frame has no preceding HEADERS frame that it continues (§6.10).
    StrayContinuation,
    /// A field section has more CONTINUATION frames, or more bytes in them, than any sensible one needs.
    ContinuationFlood,
    /// A client sent PUSH_PROMISE, or a server sent it although the client's settings forbid it (§8.4).
    PushPromise,
    /// A frame of this type is on stream 0 but needs a stream, or is on a stream but concerns the connection.
    StreamIdOf(FrameType),
    /// A HEADERS frame would open a stream with an identifier that cannot be opened (§5.1.1), or is not allowed in the
    /// state of its stream.
    HeadersStreamId,
    /// A HEADERS frame is on a closed stream (§5.1).
    HeadersOnClosed,
    /// Trailers do not end the stream (§8.1).
    TrailersWithoutEnd,
    /// Trailers were sent in a tunnel (§8.5).
    TrailersInTunnel,
    /// The client made a stream depend on itself (RFC 7540 §5.3.1).
    SelfDependency,
    /// The client has sent priorities for more unopened streams than this side keeps.
    TooManyIdle,
    /// A frame of this type is on a stream that was never opened (§5.1).
    IdleStream(FrameType),
    /// The padding of a frame of this type is longer than the frame (§6.1, §6.2).
    Padding(FrameType),
    /// A HEADERS frame is too short for the priority that its flag announces (§6.2).
    PriorityCutOff,
    /// A WINDOW_UPDATE for the connection has the increment 0 (§6.9).
    ZeroIncrement,
    /// A WINDOW_UPDATE would raise the connection's window above 2^31-1 (§6.9.1).
    WindowOverflow,
    /// The peer sent more content than the connection's window allows (§6.9.1).
    WindowExceeded,
    /// A field block cannot be decoded (RFC 7541).
    Compression,
    /// A field section has more than a thousand fields.
    FieldFlood,
    /// A field name has an upper-case letter (§8.2.1).
    UpperCaseName,
    /// A field is not allowed in HTTP/2 (§8.2.2).
    ConnectionField,
    /// `content-length` is not a number (§8.1.1).
    ContentLength,
    /// A pseudo-header field is repeated, follows a regular field, or is empty (§8.3).
    PseudoField,
    /// A pseudo-header field is not defined (§8.3).
    UnknownPseudoField,
    /// A PRIORITY_UPDATE frame names stream 0 (RFC 9218 §7.1).
    PriorityUpdate,
    /// The peer has caused more costs than its budget covers.
    Overdrawn,
    /// A server sent a frame that only clients send, or opened a stream that was not promised (§5.1.1, §8.4).
    NotForClients,
    /// A response has no valid `:status`, or other pseudo-header fields (§8.3.2), or its trailers have pseudo-header fields
    /// (§8.1).
    BadResponse,
}

impl PeerError {
    /// The error code and debug text of the GOAWAY frame that answers this error. `None`: the connection is closed without
    /// a GOAWAY. H2O compatibility: H2O sends the same texts.
    #[must_use]
    pub const fn answer(self) -> Option<(ErrorCode, &'static str)> {
        use ErrorCode as Code;
        Some(match self {
            Self::NotPreface => return None,
            Self::FrameTooLong | Self::SettingsSize => (Code::FRAME_SIZE_ERROR, ""),
            Self::FrameSize(kind) => (Code::FRAME_SIZE_ERROR, kind.invalid()),
            Self::SettingsAckSize => (Code::FRAME_SIZE_ERROR, "invalid SETTINGS frame (+ACK)"),
            Self::SettingsExpected | Self::SettingsValue => {
                (Code::PROTOCOL_ERROR, "invalid SETTINGS frame")
            }
            Self::SettingsWindow => (Code::FLOW_CONTROL_ERROR, "invalid SETTINGS frame"),
            Self::ContinuationExpected => (Code::PROTOCOL_ERROR, "expected CONTINUATION frame"),
            Self::ContinuationStream => (
                Code::PROTOCOL_ERROR,
                "unexpected stream id in CONTINUATION frame",
            ),
            Self::StrayContinuation => {
                (Code::PROTOCOL_ERROR, "received invalid CONTINUATION frame")
            }
            Self::ContinuationFlood => (Code::ENHANCE_YOUR_CALM, "too many CONTINUATION frames"),
            Self::PushPromise => (Code::PROTOCOL_ERROR, "received PUSH_PROMISE frame"),
            Self::StreamIdOf(FrameType::PING) => (Code::PROTOCOL_ERROR, "invalid PING frame"),
            Self::StreamIdOf(kind) => (Code::PROTOCOL_ERROR, kind.invalid_stream_id()),
            Self::HeadersStreamId => (Code::PROTOCOL_ERROR, FrameType::HEADERS.invalid_stream_id()),
            Self::HeadersOnClosed => (Code::STREAM_CLOSED, "closed stream id in HEADERS frame"),
            Self::TrailersWithoutEnd => (
                Code::PROTOCOL_ERROR,
                "trailing HEADERS frame MUST have END_STREAM flag set",
            ),
            Self::TrailersInTunnel => (
                Code::PROTOCOL_ERROR,
                "trailer cannot be used in a CONNECT request",
            ),
            Self::SelfDependency => (Code::PROTOCOL_ERROR, "stream cannot depend on itself"),
            Self::TooManyIdle => (
                Code::ENHANCE_YOUR_CALM,
                "too many streams in idle/closed state",
            ),
            Self::IdleStream(FrameType::DATA) => (Code::PROTOCOL_ERROR, "invalid DATA frame"),
            Self::IdleStream(FrameType::RST_STREAM) => (
                Code::PROTOCOL_ERROR,
                "unexpected stream id in RST_STREAM frame",
            ),
            Self::IdleStream(kind) => (Code::PROTOCOL_ERROR, kind.invalid_stream_id()),
            Self::Padding(kind) => (Code::PROTOCOL_ERROR, kind.invalid()),
            Self::PriorityCutOff | Self::UnknownPseudoField => (Code::PROTOCOL_ERROR, ""),
            Self::ZeroIncrement => (Code::PROTOCOL_ERROR, "invalid WINDOW_UPDATE frame"),
            Self::WindowOverflow => (Code::FLOW_CONTROL_ERROR, "flow control window overflow"),
            Self::WindowExceeded => (Code::FLOW_CONTROL_ERROR, ""),
            Self::Compression => (Code::COMPRESSION_ERROR, ""),
            Self::FieldFlood => (Code::COMPRESSION_ERROR, "headers too long"),
            Self::UpperCaseName => (
                Code::PROTOCOL_ERROR,
                "found an upper-case letter in header name",
            ),
            Self::ConnectionField => (
                Code::PROTOCOL_ERROR,
                "found an unexpected connection-specific header",
            ),
            Self::ContentLength => (Code::PROTOCOL_ERROR, "invalid content-length header"),
            Self::PseudoField => (Code::PROTOCOL_ERROR, "invalid pseudo header"),
            Self::PriorityUpdate => (Code::PROTOCOL_ERROR, "invalid PRIORITY_UPDATE frame"),
            Self::Overdrawn => (Code::ENHANCE_YOUR_CALM, "the abuse budget is used up"),
            Self::NotForClients | Self::BadResponse => (Code::PROTOCOL_ERROR, "protocol violation"),
        })
    }
}

/// A peer's violation of the protocol or of a limit that ends only one stream, with RST_STREAM (RFC 9113 §5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Content was sent on a stream that is closed, or that the peer had already ended (§5.1).
    Closed,
    /// A WINDOW_UPDATE has the increment 0 (§6.9).
    ZeroIncrement,
    /// A WINDOW_UPDATE would raise the stream's window above 2^31-1 (§6.9.1).
    WindowOverflow,
    /// The peer sent more content than the stream's window allows (§6.9.1).
    WindowExceeded,
    /// The length of the content differs from `content-length` (§8.1.1).
    ContentLength,
    /// A required pseudo-header field of the request is missing, or the request has one that its method does not allow
    /// (§8.3.1).
    PseudoFields,
    /// The method is not a token (§8.3.1).
    Method,
    /// The client has more streams open than this side allows (§5.1.2).
    TooManyStreams,
    /// The content of the request exceeds `limit-request-body`. H2O compatibility: H2O resets the stream, too.
    BodyTooLarge,
    /// The message is malformed in another way (§8.1.1).
    Malformed,
}

impl StreamError {
    /// The error code of the RST_STREAM frame that answers this error.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::STREAM_CLOSED,
            Self::ZeroIncrement
            | Self::ContentLength
            | Self::PseudoFields
            | Self::Method
            | Self::Malformed => ErrorCode::PROTOCOL_ERROR,
            Self::WindowOverflow | Self::WindowExceeded => ErrorCode::FLOW_CONTROL_ERROR,
            Self::TooManyStreams | Self::BodyTooLarge => ErrorCode::REFUSED_STREAM,
        }
    }
}

/// A peer's violation of the protocol, by what it ends: the connection, or one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Connection(PeerError),
    Stream(StreamId, StreamError),
}

impl Fault {
    /// The violation that a malformed field section of `stream` is.
    pub(crate) const fn of_section(stream: StreamId, error: SectionError) -> Self {
        let error = match error {
            SectionError::Method => StreamError::Method,
            SectionError::PseudoFields => StreamError::PseudoFields,
            SectionError::ContentLength => StreamError::ContentLength,
            SectionError::Fields => StreamError::Malformed,
            SectionError::StatusMissing => return Self::Connection(PeerError::BadResponse),
        };
        Self::Stream(stream, error)
    }
}

impl From<PeerError> for Fault {
    fn from(error: PeerError) -> Self {
        Self::Connection(error)
    }
}

/// A malformed field ends the connection, although RFC 9113 §8.1.1 only requires ending the stream. H2O compatibility: H2O
/// ends the connection, too.
impl From<FieldError> for PeerError {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::Flood => Self::FieldFlood,
            FieldError::UpperCaseName => Self::UpperCaseName,
            FieldError::ConnectionSpecific => Self::ConnectionField,
            FieldError::ContentLength => Self::ContentLength,
            FieldError::PseudoField => Self::PseudoField,
            FieldError::UnknownPseudoField => Self::UnknownPseudoField,
            FieldError::ResponsePseudoField => Self::BadResponse,
        }
    }
}

impl From<crate::hpack::HpackError> for PeerError {
    fn from(_: crate::hpack::HpackError) -> Self {
        Self::Compression
    }
}
