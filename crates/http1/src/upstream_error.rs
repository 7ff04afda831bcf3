//! Protocol violations of servers, as the client role reports them.

use crate::{ChunkError, FieldError, FramingError};

/// Why a response of a server could not be received. Each of these ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// The connection ended before the first byte of the response. If the connection had been used before, the server most
    /// likely closed it as idle.
    ClosedBeforeResponse,
    /// The connection ended within the head of the response.
    HeadTruncated,
    /// The connection ended before the content was complete (RFC 9112 §8).
    BodyTruncated,
    /// The first line does not begin with `HTTP/1.`, a digit and a status of three digits.
    StatusLineInvalid,
    /// A line of the head is not a valid field line.
    Field(FieldError),
    /// The head has more fields than the settings allow.
    TooManyFields,
    /// The head is longer than the settings allow.
    HeadTooLarge,
    /// The server sent more interim (1xx) responses to a request than the settings allow.
    TooManyInterims,
    /// The server answered 101 to a request that offered no upgrade (RFC 9110 §15.2.2).
    UnexpectedSwitch,
    /// The length of the content is ambiguous or malformed.
    Framing(FramingError),
    /// The chunked coding of the content is invalid.
    Chunk(ChunkError),
    /// The server sent bytes although no request was outstanding.
    Unsolicited,
}

impl UpstreamError {
    /// The name of the error in logs and counters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ClosedBeforeResponse => "closed-before-response",
            Self::HeadTruncated => "head-truncated",
            Self::BodyTruncated => "body-truncated",
            Self::StatusLineInvalid => "status-line-invalid",
            Self::Field(field) => field.name(),
            Self::TooManyFields => "too-many-fields",
            Self::HeadTooLarge => "head-too-large",
            Self::TooManyInterims => "too-many-interims",
            Self::UnexpectedSwitch => "unexpected-switch",
            Self::Framing(framing) => framing.name(),
            Self::Chunk(chunk) => chunk.name(),
            Self::Unsolicited => "unsolicited",
        }
    }
}

impl From<FieldError> for UpstreamError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

impl From<FramingError> for UpstreamError {
    fn from(error: FramingError) -> Self {
        Self::Framing(error)
    }
}

impl From<ChunkError> for UpstreamError {
    fn from(error: ChunkError) -> Self {
        Self::Chunk(error)
    }
}
