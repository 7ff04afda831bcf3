//! Protocol violations of peers, and the error codes of the answers to them.

use h2o_http::field_section::{FieldError, SectionError};

use crate::frame::FrameType;
use crate::qpack::QpackError;

/// An error code of HTTP/3 (RFC 9114 §8.1), QPACK (RFC 9204 §6) or HTTP datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u64);

#[allow(missing_docs, reason = "the constants are the registered names")]
impl ErrorCode {
    /// H3_DATAGRAM_ERROR (RFC 9297 §5.2).
    pub const DATAGRAM_ERROR: Self = Self(0x33);
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const CONNECT_ERROR: Self = Self(0x10f);
    pub const VERSION_FALLBACK: Self = Self(0x110);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);
}

/// A peer's violation of the protocol or of a limit that ends the connection. Section numbers without an RFC are those of
/// RFC 9114. Violations that end only one stream are in [`StreamError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The peer opened a stream that only the other side may open, or whose kind no extension has agreed on (§6.1, §6.2.2).
    StreamCreation,
    /// The peer opened a second control or QPACK stream (§6.2.1, RFC 9204 §4.2).
    SecondCriticalStream,
    /// The peer ended a control or QPACK stream (§6.2.1, RFC 9204 §4.2).
    ClosedCriticalStream,
    /// The peer's control stream does not begin with SETTINGS (§6.2.1).
    SettingsExpected,
    /// The peer sent a second SETTINGS frame (§7.2.4).
    SecondSettings,
    /// A SETTINGS frame is cut off or has a value that is not allowed (§7.2.4.1, RFC 9297 §2.1.1, RFC 8441 §3).
    SettingsMalformed,
    /// A setting is repeated, or is one that only HTTP/2 has (§7.2.4, §7.2.4.1).
    SettingsInvalid,
    /// A frame of this type is not allowed on its stream or at this point (§4.1, §7.2).
    UnexpectedFrame(FrameType),
    /// A frame of this type is on the stream of a tunnel, where only DATA is allowed (§4.4).
    UnexpectedInTunnel(FrameType),
    /// The payload of a frame is longer than this side accepts.
    FrameTooLong,
    /// The payload of a frame does not have the form that this type requires (§7.1).
    FrameMalformed(FrameType),
    /// A stream ends within a frame (§7.1).
    IncompleteFrame,
    /// An identifier is invalid: of a push that was not allowed or promised, in a GOAWAY above that of an earlier GOAWAY,
    /// or of a stream in PRIORITY_UPDATE that cannot be opened (§5.2, §7.2, RFC 9218 §7.2).
    IdInvalid,
    /// The peer sent PRIORITY_UPDATE for a push. H2O compatibility: H2O closes the connection with
    /// H3_GENERAL_PROTOCOL_ERROR, too.
    PushPriority,
    /// A field section cannot be decoded, or makes more streams wait for the QPACK table than this side allows (RFC 9204
    /// §2.2).
    Decompression,
    /// The peer's encoder sent an invalid instruction for the QPACK table (RFC 9204 §4.3).
    EncoderStream,
    /// The peer's QPACK decoder acknowledged sections or insertions that were not sent (RFC 9204 §4.4).
    DecoderStream,
    /// A field section has more than a thousand fields.
    FieldFlood,
    /// A field name has an upper-case letter (§4.2).
    UpperCaseName,
    /// A field is not allowed in HTTP/3, such as `connection` (§4.2).
    ConnectionField,
    /// The value of `content-length` is not a number (§4.1.2).
    ContentLength,
    /// A pseudo-header field is repeated, follows a regular field, or is empty (§4.3).
    PseudoField,
    /// A pseudo-header field is not defined (§4.3).
    UnknownPseudoField,
    /// A CONNECT-UDP request has other pseudo-header fields than the draft requires.
    Masque,
    /// The peer has caused more costs than its budget covers.
    Overdrawn,
    /// So many bytes wait to be sent on a control or QPACK stream, because the peer's flow control does not let them
    /// through, that the connection is given up.
    Stalled,
    /// A response has no valid `:status`, or other pseudo-header fields (§4.3.2), or its trailers have pseudo-header fields
    /// (§4.3).
    BadResponse,
    /// An HTTP datagram names no stream, or a stream that cannot have datagrams (RFC 9297 §2.1).
    Datagram,
}

impl PeerError {
    /// The error code and reason of the CONNECTION_CLOSE frame that answers this error. H2O compatibility: H2O sends the
    /// same texts and most of these codes.
    #[must_use]
    pub const fn answer(self) -> (ErrorCode, &'static str) {
        use ErrorCode as Code;
        match self {
            Self::StreamCreation | Self::SecondCriticalStream => (Code::STREAM_CREATION_ERROR, ""),
            Self::ClosedCriticalStream => (Code::CLOSED_CRITICAL_STREAM, ""),
            Self::SettingsExpected | Self::SecondSettings | Self::UnexpectedFrame(_) => {
                (Code::FRAME_UNEXPECTED, "")
            }
            Self::UnexpectedInTunnel(_) => (Code::FRAME_UNEXPECTED, "unexpected frame type"),
            Self::SettingsMalformed => (Code::FRAME_ERROR, "malformed SETTINGS frame"),
            Self::SettingsInvalid => (Code::SETTINGS_ERROR, ""),
            Self::FrameTooLong => (Code::GENERAL_PROTOCOL_ERROR, "HTTP/3 frame is too large"),
            Self::FrameMalformed(FrameType::PRIORITY_UPDATE) => {
                (Code::FRAME_ERROR, "invalid PRIORITY_UPDATE frame")
            }
            Self::FrameMalformed(_) => (Code::FRAME_ERROR, ""),
            Self::IncompleteFrame => (Code::GENERAL_PROTOCOL_ERROR, "incomplete frame"),
            Self::IdInvalid => (Code::ID_ERROR, ""),
            Self::PushPriority => (Code::GENERAL_PROTOCOL_ERROR, ""),
            Self::Decompression | Self::UnknownPseudoField => {
                (Code::QPACK_DECOMPRESSION_FAILED, "")
            }
            Self::EncoderStream => (Code::QPACK_ENCODER_STREAM_ERROR, ""),
            Self::DecoderStream => (Code::QPACK_DECODER_STREAM_ERROR, ""),
            Self::FieldFlood => (Code::QPACK_DECOMPRESSION_FAILED, "headers too long"),
            Self::UpperCaseName => (
                Code::QPACK_DECOMPRESSION_FAILED,
                "found an upper-case letter in header name",
            ),
            Self::ConnectionField => (
                Code::QPACK_DECOMPRESSION_FAILED,
                "found an unexpected connection-specific header",
            ),
            Self::ContentLength => (
                Code::QPACK_DECOMPRESSION_FAILED,
                "invalid content-length header",
            ),
            Self::PseudoField => (Code::QPACK_DECOMPRESSION_FAILED, "invalid pseudo header"),
            Self::Masque => (Code::GENERAL_PROTOCOL_ERROR, "invalid pseudo headers"),
            Self::Overdrawn => (Code::EXCESSIVE_LOAD, "the abuse budget is used up"),
            Self::Stalled => (
                Code::EXCESSIVE_LOAD,
                "the peer's flow control blocks the control streams",
            ),
            Self::BadResponse => (Code::MESSAGE_ERROR, "protocol violation"),
            Self::Datagram => (Code::DATAGRAM_ERROR, ""),
        }
    }
}

/// A peer's violation of the protocol or of a limit that ends only one stream (RFC 9114 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The stream ends before the head of its message (§4.1).
    HeadMissing,
    /// The stream ends before the content that `content-length` announces (§4.1.2).
    ContentTooShort,
    /// The content is longer than `content-length` announces (§4.1.2).
    ContentTooLong,
    /// A field section is longer than this side accepts (§4.2.2).
    SectionTooLong,
    /// A required pseudo-header field is missing, or one is present that the method does not allow (§4.3).
    PseudoFields,
    /// The method is not a token (§4.3.1).
    Method,
    /// The client has more requests open than this side allows, or made a request after the last one that the GOAWAY
    /// accepts (§5.2).
    Rejected,
    /// The content of the request exceeds `limit-request-body`.
    BodyTooLarge,
    /// The message is malformed in another way (§4.1.2).
    Malformed,
}

impl StreamError {
    /// The error code of the RESET_STREAM and STOP_SENDING frames with which the server role answers this error. H2O
    /// compatibility: H2O sends the same codes, some of which are not the H3_MESSAGE_ERROR of RFC 9114.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::HeadMissing | Self::ContentTooShort => ErrorCode::REQUEST_INCOMPLETE,
            Self::ContentTooLong | Self::PseudoFields | Self::Method | Self::Malformed => {
                ErrorCode::GENERAL_PROTOCOL_ERROR
            }
            Self::SectionTooLong | Self::Rejected => ErrorCode::REQUEST_REJECTED,
            Self::BodyTooLarge => ErrorCode::EXCESSIVE_LOAD,
        }
    }
}

impl StreamError {
    /// The error code of the frames with which the client role answers this error (RFC 9114 §4.1.2).
    #[must_use]
    pub const fn client_code(self) -> ErrorCode {
        match self {
            Self::HeadMissing
            | Self::ContentTooShort
            | Self::ContentTooLong
            | Self::PseudoFields
            | Self::Method
            | Self::Malformed => ErrorCode::MESSAGE_ERROR,
            Self::SectionTooLong | Self::BodyTooLarge => ErrorCode::EXCESSIVE_LOAD,
            Self::Rejected => ErrorCode::REQUEST_CANCELLED,
        }
    }
}

/// A peer's violation of the protocol, by what it ends: the connection, or one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Connection(PeerError),
    Stream(StreamError),
}

impl From<PeerError> for Fault {
    fn from(error: PeerError) -> Self {
        Self::Connection(error)
    }
}

impl From<StreamError> for Fault {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl From<SectionError> for Fault {
    fn from(error: SectionError) -> Self {
        Self::Stream(match error {
            SectionError::Method => StreamError::Method,
            SectionError::PseudoFields => StreamError::PseudoFields,
            SectionError::ContentLength => StreamError::ContentTooShort,
            SectionError::Fields => StreamError::Malformed,
            SectionError::StatusMissing => return Self::Connection(PeerError::BadResponse),
        })
    }
}

/// A malformed field ends the connection, although RFC 9114 §4.1.2 only asks to end the stream. H2O compatibility: H2O ends
/// the connection, too.
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

impl From<QpackError> for PeerError {
    fn from(error: QpackError) -> Self {
        match error {
            QpackError::Section => Self::Decompression,
            QpackError::EncoderStream => Self::EncoderStream,
            QpackError::DecoderStream => Self::DecoderStream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_connections_have_the_codes_of_the_rfc_or_of_h2o() {
        use PeerError as Error;
        let cases: &[(ErrorCode, &[PeerError])] = &[
            (ErrorCode(0x33), &[Error::Datagram]),
            (
                ErrorCode(0x101),
                &[
                    Error::FrameTooLong,
                    Error::IncompleteFrame,
                    Error::PushPriority,
                    Error::Masque,
                ],
            ),
            (
                ErrorCode(0x103),
                &[Error::StreamCreation, Error::SecondCriticalStream],
            ),
            (ErrorCode(0x104), &[Error::ClosedCriticalStream]),
            (
                ErrorCode(0x105),
                &[
                    Error::SettingsExpected,
                    Error::SecondSettings,
                    Error::UnexpectedFrame(FrameType::DATA),
                    Error::UnexpectedInTunnel(FrameType::HEADERS),
                ],
            ),
            (
                ErrorCode(0x106),
                &[
                    Error::SettingsMalformed,
                    Error::FrameMalformed(FrameType::GOAWAY),
                    Error::FrameMalformed(FrameType::PRIORITY_UPDATE),
                ],
            ),
            (ErrorCode(0x107), &[Error::Overdrawn, Error::Stalled]),
            (ErrorCode(0x108), &[Error::IdInvalid]),
            (ErrorCode(0x109), &[Error::SettingsInvalid]),
            (ErrorCode(0x10e), &[Error::BadResponse]),
            (
                ErrorCode(0x200),
                &[
                    Error::Decompression,
                    Error::FieldFlood,
                    Error::UpperCaseName,
                    Error::ConnectionField,
                    Error::ContentLength,
                    Error::PseudoField,
                    Error::UnknownPseudoField,
                ],
            ),
            (ErrorCode(0x201), &[Error::EncoderStream]),
            (ErrorCode(0x202), &[Error::DecoderStream]),
        ];
        for (code, errors) in cases {
            for error in *errors {
                assert_eq!(error.answer().0, *code, "{error:?}");
            }
        }
    }

    #[test]
    fn errors_of_streams_have_the_codes_of_their_role() {
        let cases = [
            (StreamError::HeadMissing, 0x10d, 0x10e),
            (StreamError::ContentTooShort, 0x10d, 0x10e),
            (StreamError::ContentTooLong, 0x101, 0x10e),
            (StreamError::SectionTooLong, 0x10b, 0x107),
            (StreamError::PseudoFields, 0x101, 0x10e),
            (StreamError::Method, 0x101, 0x10e),
            (StreamError::Rejected, 0x10b, 0x10c),
            (StreamError::BodyTooLarge, 0x107, 0x107),
            (StreamError::Malformed, 0x101, 0x10e),
        ];
        for (error, server, client) in cases {
            assert_eq!(error.code(), ErrorCode(server), "{error:?}");
            assert_eq!(error.client_code(), ErrorCode(client), "{error:?}");
        }
    }

    #[test]
    fn malformed_sections_end_their_stream_and_fields_the_connection() {
        let sections = [
            (SectionError::Method, Fault::Stream(StreamError::Method)),
            (
                SectionError::PseudoFields,
                Fault::Stream(StreamError::PseudoFields),
            ),
            (
                SectionError::ContentLength,
                Fault::Stream(StreamError::ContentTooShort),
            ),
            (SectionError::Fields, Fault::Stream(StreamError::Malformed)),
            (
                SectionError::StatusMissing,
                Fault::Connection(PeerError::BadResponse),
            ),
        ];
        for (error, fault) in sections {
            assert_eq!(Fault::from(error), fault);
        }
        let fields = [
            (FieldError::Flood, PeerError::FieldFlood),
            (FieldError::UpperCaseName, PeerError::UpperCaseName),
            (FieldError::ConnectionSpecific, PeerError::ConnectionField),
            (FieldError::ContentLength, PeerError::ContentLength),
            (FieldError::PseudoField, PeerError::PseudoField),
            (
                FieldError::UnknownPseudoField,
                PeerError::UnknownPseudoField,
            ),
            (FieldError::ResponsePseudoField, PeerError::BadResponse),
        ];
        for (error, peer) in fields {
            assert_eq!(PeerError::from(error), peer);
        }
    }
}
