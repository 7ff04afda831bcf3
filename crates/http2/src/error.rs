//! Faults of peers, and our answers.

use h2o_http::field_section::{FieldError, SectionError};

use crate::frame::{FrameType, StreamId};

/// An error code of RFC 9113 §7.
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

/// A fault of the peer that ends the connection. Faults that end only one stream are in [`StreamError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The connection does not begin with the preface (RFC 9113 §3.4).
    NotPreface,
    /// The first frame is not SETTINGS (§3.4).
    SettingsExpected,
    /// A frame is longer than we allow (§4.2).
    FrameTooLong,
    /// A frame has another length than its type requires.
    FrameSize(FrameType),
    /// An acknowledgement of SETTINGS has a payload (§6.5).
    SettingsAckSize,
    /// The length of SETTINGS is not a multiple of six (§6.5).
    SettingsSize,
    /// A setting has a value that is not allowed (§6.5.2).
    SettingsValue,
    /// SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1 (§6.5.2), or one that makes a window overflow (§6.9.2).
    SettingsWindow,
    /// Another frame has come in place of the CONTINUATION that must follow (§6.10).
    ContinuationExpected,
    /// A CONTINUATION of another stream (§6.10).
    ContinuationStream,
    /// A CONTINUATION frame without a preceding HEADERS frame that it continues (§6.10).
    StrayContinuation,
    /// More CONTINUATION frames, or more bytes in them, than any sensible field section needs.
    ContinuationFlood,
    /// A client pushes; or a server pushes although our settings forbid it (§8.4).
    PushPromise,
    /// A frame on stream 0 that needs a stream, or on a stream although it concerns the connection.
    StreamIdOf(FrameType),
    /// HEADERS that open a stream with an identifier that cannot be opened (§5.1.1), or in the wrong state.
    HeadersStreamId,
    /// HEADERS on a closed stream (§5.1).
    HeadersOnClosed,
    /// Trailers that do not end the stream (§8.1).
    TrailersWithoutEnd,
    /// Trailers in a tunnel (§8.5).
    TrailersInTunnel,
    /// A stream that depends on itself (RFC 7540 §5.3.1).
    SelfDependency,
    /// The client has sent PRIORITY frames for more streams that it has not opened yet than this endpoint keeps priorities of.
    TooManyIdle,
    /// A frame on a stream that was never opened (§5.1).
    IdleStream(FrameType),
    /// A padding longer than the frame (§6.1, §6.2).
    Padding(FrameType),
    /// HEADERS too short for the priority they announce (§6.2).
    PriorityCutOff,
    /// WINDOW_UPDATE by 0 on the connection (§6.9).
    ZeroIncrement,
    /// The connection's window grows beyond 2^31-1 (§6.9.1).
    WindowOverflow,
    /// More content than the connection's window allows (§6.9.1).
    WindowExceeded,
    /// A field block that cannot be decoded (RFC 7541).
    Compression,
    /// More than a thousand fields in one section.
    FieldFlood,
    /// An upper-case letter in a field name (§8.2.1).
    UpperCaseName,
    /// A field that is not allowed in HTTP/2 (§8.2.2).
    ConnectionField,
    /// `content-length` is not a number (§8.1.1).
    ContentLength,
    /// A pseudo field that is repeated, after a regular field, or empty (§8.3).
    PseudoField,
    /// A pseudo field that does not exist (§8.3).
    UnknownPseudoField,
    /// PRIORITY_UPDATE without a stream (RFC 9218 §7.1).
    PriorityUpdate,
    /// The peer has caused more costs than its budget covers.
    Overdrawn,
    /// A server sent a frame that only clients send, or opened a stream that was not promised (§5.1.1, §8.4).
    NotForClients,
    /// A response without a valid `:status`, or with other pseudo fields (§8.3.2); trailers with any (§8.1).
    BadResponse,
}

impl PeerError {
    /// Error code and debug text of the GOAWAY frame with which we answer this error. `None`: the connection is closed
    /// without a GOAWAY. H2O compatibility: H2O sends these texts.
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
            Self::Overdrawn => (Code::ENHANCE_YOUR_CALM, "the connection is overdrawn"),
            Self::NotForClients | Self::BadResponse => (Code::PROTOCOL_ERROR, "protocol violation"),
        })
    }
}

/// A fault of the peer that ends one stream with RST_STREAM (RFC 9113 §5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Content on a stream that is closed, or half-closed by the peer (§5.1).
    Closed,
    /// WINDOW_UPDATE by 0 (§6.9).
    ZeroIncrement,
    /// The stream's window grows beyond 2^31-1 (§6.9.1).
    WindowOverflow,
    /// More content than the stream's window allows (§6.9.1).
    WindowExceeded,
    /// The length of the content differs from `content-length` (§8.1.1).
    ContentLength,
    /// A required pseudo field of the request is missing, or it has one that its method does not allow (§8.3.1).
    PseudoFields,
    /// A method that is not a token (§8.3.1).
    Method,
    /// More streams than we allow (§5.1.2).
    TooManyStreams,
    /// More content than `limit-request-body`. H2O compatibility: H2O resets the stream, too.
    BodyTooLarge,
    /// A message that is malformed in another way (§8.1.1).
    Malformed,
}

impl StreamError {
    /// The code of the RST_STREAM frame with which we answer this error.
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

/// The reach of a peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Connection(PeerError),
    Stream(StreamId, StreamError),
}

impl Fault {
    /// The reach of a malformed section.
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

/// A malformed field ends the connection, though RFC 9113 §8.1.1 only requires to end the stream. H2O compatibility: H2O
/// ends the connection.
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
