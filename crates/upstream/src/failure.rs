//! What went wrong before the head of a response was there.

use std::borrow::Cow;

use h2o_exchange::BodyError;
use h2o_http1::{FieldError, FramingError, UpstreamError};

/// A request that got no response: answered by 502 with [`Failure::text`] (H2O compatibility for the texts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the client and the log.
    pub text: Cow<'static, str>,
    /// For the log, where it says more.
    pub log: Option<Cow<'static, str>>,
    /// True if the backend said that it has not looked at the request (HTTP/2 REFUSED_STREAM): the client may try again.
    pub refused: bool,
    /// How the request came to its end.
    pub cause: Cause,
}

/// How a request came to its end, as far as it matters to who would make it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There was no connection to send it over.
    NotConnected,
    /// No descriptor was left for one.
    NoDescriptor,
    /// Nothing of it was sent, or the backend said that it has not looked at it.
    NotSent,
    /// The backend closed the connection or gave the request up, and had said nothing.
    Silent,
    /// As `Silent`, but there were interim responses.
    NotAnswered,
    /// Nothing went forward for too long.
    TimedOut,
    /// The client did not send its content, or that could not be read from a file.
    Client,
    /// The backend broke the protocol.
    Other,
}

impl Failure {
    /// Closed, reset, or not to be written to.
    pub(crate) const IO: &'static str = "I/O error";
    /// Nothing went forward for `proxy.timeout.io`.
    pub(crate) const IO_TIMEOUT: &'static str = "I/O timeout";
    pub(crate) const FIRST_BYTE_TIMEOUT: &'static str = "first byte timeout";
    pub(crate) const CONNECT_TIMEOUT: &'static str = "connection timeout";

    /// Before anything was sent.
    pub(crate) const fn unsent(text: &'static str) -> Self {
        Self {
            text: Cow::Borrowed(text),
            log: None,
            refused: false,
            cause: Cause::NotConnected,
        }
    }

    /// After something may have been sent.
    pub(crate) fn sent(text: &'static str) -> Self {
        Self {
            cause: Cause::Other,
            ..Self::unsent(text)
        }
    }

    /// The same with this cause.
    pub(crate) fn with_cause(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// A response that is not HTTP/1.
    pub(crate) fn from_http1(error: UpstreamError) -> Self {
        let mut failure = Self::sent(text_of(error));
        if let UpstreamError::Framing(FramingError::ContentLengthsDiffer) = error {
            let log = "invalid response from upstream (malformed content-length)";
            failure.log = Some(Cow::Borrowed(log));
        }
        failure
    }
}

/// The content of a response broke off.
pub(crate) fn broken_off(text: &str) -> BodyError {
    BodyError::Failed(text.to_owned())
}

/// The texts are H2O's.
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
        // Both fields: what one recipient takes for the end, another takes for the next response (RFC 9112 §6.3).
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
