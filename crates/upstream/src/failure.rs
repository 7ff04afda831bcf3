//! Failures of requests before the head of the response has arrived.

use std::borrow::Cow;

use h2o_exchange::BodyError;
use h2o_http1::{FieldError, FramingError, UpstreamError};

/// A request that got no response. The client gets 502 with [`Failure::text`]. H2O compatibility: the texts are H2O's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The message for the client and the log.
    pub text: Cow<'static, str>,
    /// A more detailed text for the log.
    pub log: Option<Cow<'static, str>>,
    /// Whether the backend did not process the request (HTTP/2 REFUSED_STREAM), so that the client may retry.
    pub refused: bool,
    /// How far the request got before it failed.
    pub cause: FailureCause,
}

/// How far the request got; decides whether a retry is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// No connection to the backend could be established.
    NotConnected,
    /// No file descriptor was left for a connection.
    NoDescriptor,
    /// Nothing was sent, or the backend has reported that it did not process the request.
    NotSent,
    /// The backend closed the connection without any response.
    Silent,
    /// The backend reset the stream, or closed the connection after interim responses, without a final response.
    NotAnswered,
    /// A timeout expired.
    TimedOut,
    /// The client did not complete the request body, or a file with the body could not be read.
    Client,
    /// The backend violated the protocol.
    Other,
}

impl Failure {
    /// The message for a connection that was closed or reset, or cannot be written to.
    pub(crate) const IO: &'static str = "I/O error";
    /// The message if there was no progress for `proxy.timeout.io`.
    pub(crate) const IO_TIMEOUT: &'static str = "I/O timeout";
    pub(crate) const FIRST_BYTE_TIMEOUT: &'static str = "first byte timeout";
    pub(crate) const CONNECT_TIMEOUT: &'static str = "connection timeout";

    /// A failure before any byte of the request was sent.
    pub(crate) const fn unsent(text: &'static str) -> Self {
        Self {
            text: Cow::Borrowed(text),
            log: None,
            refused: false,
            cause: FailureCause::NotConnected,
        }
    }

    /// A failure after bytes of the request may have been sent.
    pub(crate) fn sent(text: &'static str) -> Self {
        Self {
            cause: FailureCause::Other,
            ..Self::unsent(text)
        }
    }

    /// Returns this failure with another text.
    pub(crate) fn with_text(self, text: String) -> Self {
        Self {
            text: Cow::Owned(text),
            ..self
        }
    }

    /// Returns this failure with another cause.
    pub(crate) fn with_cause(self, cause: FailureCause) -> Self {
        Self { cause, ..self }
    }

    /// The failure for a response that is not valid HTTP/1.
    pub(crate) fn from_http1(error: UpstreamError) -> Self {
        let mut failure = Self::sent(text_of(error));
        if let UpstreamError::Framing(FramingError::ContentLengthsDiffer) = error {
            let log = "invalid response from upstream (malformed content-length)";
            failure.log = Some(Cow::Borrowed(log));
        }
        failure
    }
}

/// The error of a truncated response body.
pub(crate) fn broken_off(text: &str) -> BodyError {
    BodyError::Failed(text.to_owned())
}

/// The message for an error that the HTTP/1 parser found. H2O compatibility: the texts are H2O's.
pub(crate) const fn text_of(error: UpstreamError) -> &'static str {
    match error {
        UpstreamError::ClosedBeforeResponse
        | UpstreamError::HeadTruncated
        | UpstreamError::BodyTruncated
        | UpstreamError::Unsolicited => Failure::IO,
        UpstreamError::Field(FieldError::Folded) => {
            "line folding of header fields is not supported"
        }
        UpstreamError::StatusLineInvalid
        | UpstreamError::Field(
            FieldError::NameInvalid
            | FieldError::BlankBeforeColon
            | FieldError::ValueInvalid
            | FieldError::BareLineFeed,
        )
        | UpstreamError::TooManyFields
        | UpstreamError::HeadTooLarge
        | UpstreamError::TooManyInterims
        | UpstreamError::Chunk(_) => "failed to parse the response",
        UpstreamError::UnexpectedSwitch => "received unexpected 101 response",
        UpstreamError::Framing(FramingError::ContentLengthInvalid) => "invalid content-length",
        // The response has both `content-length` and `transfer-encoding`, so that recipients may disagree about its end (RFC 9112
        // §6.3).
        UpstreamError::Framing(
            FramingError::ContentLengthsDiffer | FramingError::LengthAndCoding,
        ) => "invalid response from upstream",
        UpstreamError::Framing(
            FramingError::TransferEncodingUnknown
            | FramingError::TransferEncodingRepeated
            | FramingError::TransferEncodingInHttp10,
        ) => "unexpected type of transfer-encoding",
    }
}
