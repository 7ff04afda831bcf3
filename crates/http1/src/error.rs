//! Protocol violations of clients, and the server's answers to them.

use h2o_http::StatusCode;

/// Why a line of a message's head is not a valid field line (RFC 9112 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The name is empty, is not a token, or no colon follows it.
    NameInvalid,
    /// A blank is between the name and the colon (RFC 9112 §5.1: a way to smuggle requests).
    BlankBeforeColon,
    /// The value has a control character, or a carriage return without a line feed.
    ValueInvalid,
    /// The line begins with a blank: it continues the previous line, which is obsolete (RFC 9112 §5.2).
    Folded,
    /// The line ends in a bare line feed, and the settings refuse that.
    BareLineFeed,
}

impl FieldError {
    /// The name of the error in logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NameInvalid => "field-name-invalid",
            Self::BlankBeforeColon => "blank-before-colon",
            Self::ValueInvalid => "field-value-invalid",
            Self::Folded => "field-folded",
            Self::BareLineFeed => "bare-line-feed",
        }
    }
}

/// Why `Content-Length` and `Transfer-Encoding` of a head do not determine the length of its content (RFC 9112 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// A `Content-Length` is not 1 to 19 digits.
    ContentLengthInvalid,
    /// Two `Content-Length` fields have different values.
    ContentLengthsDiffer,
    /// The head has both `Content-Length` and `Transfer-Encoding` (RFC 9112 §6.1: ought to be handled as an error).
    LengthAndCoding,
    /// `Transfer-Encoding` is not `chunked`.
    TransferEncodingUnknown,
    /// The head has more than one `Transfer-Encoding` field.
    TransferEncodingRepeated,
    /// An HTTP/1.0 message has `Transfer-Encoding` (RFC 9112 §6.1: its framing is faulty).
    TransferEncodingInHttp10,
}

impl FramingError {
    /// The name of the error in logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContentLengthInvalid => "content-length-invalid",
            Self::ContentLengthsDiffer => "content-lengths-differ",
            Self::LengthAndCoding => "length-and-coding",
            Self::TransferEncodingUnknown => "transfer-encoding-unknown",
            Self::TransferEncodingRepeated => "transfer-encoding-repeated",
            Self::TransferEncodingInHttp10 => "transfer-encoding-in-http10",
        }
    }
}

/// Why a body is not valid chunked coding (RFC 9112 §7.1), or why it is refused as an abuse of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// A chunk does not start with a hexadecimal digit, or its size is followed by something other than an extension or
    /// CRLF.
    SizeInvalid,
    /// A chunk size has more than 16 digits.
    SizeTooLong,
    /// A chunk extension has a control character, or does not end in CRLF.
    ExtensionInvalid,
    /// The extensions of a chunk are longer than [`crate::MAX_CHUNK_EXTENSION`].
    ExtensionTooLong,
    /// The data of a chunk is not followed by CRLF.
    DataUnterminated,
    /// The body has much more chunk framing than content (see [`crate::MAX_CHUNK_FRAMING`]).
    FramingExcessive,
    /// A line of the trailer section is not a valid field line.
    TrailerInvalid,
    /// The trailer section exceeds [`crate::MAX_TRAILER_SECTION`] or [`crate::MAX_TRAILER_FIELDS`].
    TrailersTooLarge,
}

impl ChunkError {
    /// The name of the error in logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SizeInvalid => "chunk-size-invalid",
            Self::SizeTooLong => "chunk-size-too-long",
            Self::ExtensionInvalid => "chunk-extension-invalid",
            Self::ExtensionTooLong => "chunk-extension-too-long",
            Self::DataUnterminated => "chunk-data-unterminated",
            Self::FramingExcessive => "chunk-framing-excessive",
            Self::TrailerInvalid => "trailer-invalid",
            Self::TrailersTooLarge => "trailers-too-large",
        }
    }
}

/// A client's violation of HTTP/1 or of a limit. Each of these ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The client sent only line ends instead of a request.
    BlankInput,
    /// The first line has only capital letters and spaces: it is not a request line but the damaged connection preface of
    /// another protocol.
    NotHttp,
    /// The method is not a token followed by a space.
    MethodInvalid,
    /// The request target is empty or has a control character.
    TargetInvalid,
    /// The authority in an absolute request target is not of the form `host[:port]`; user information is not allowed
    /// either.
    AuthorityInvalid,
    /// The request line does not end in `HTTP/1.` and one digit.
    VersionInvalid,
    /// A line of the head is not a valid field line.
    Field(FieldError),
    /// The head has more fields than the settings allow.
    TooManyFields,
    /// The head is longer than the settings allow.
    HeadTooLarge,
    /// The head has two `Host` fields (RFC 9112 §3.2).
    HostRepeated,
    /// The value of `Host` is not of the form `host[:port]`.
    HostInvalid,
    /// An HTTP/1.1 request has no `Host`, and the settings refuse that.
    HostMissing,
    /// The head of a CONNECT or CONNECT-UDP request does not have the form required for opening a tunnel.
    ConnectInvalid,
    /// The target has the scheme `masque`, but the method is not CONNECT-UDP.
    MasqueInvalid,
    /// The length of the body is ambiguous or malformed.
    Framing(FramingError),
    /// The body is larger than `limit-request-body`.
    BodyTooLarge,
    /// The value of `Expect` is not `100-continue`.
    ExpectationUnknown,
    /// The chunked coding of the body is invalid.
    Chunk(ChunkError),
}

impl PeerError {
    /// The response that the client gets. The connection is closed in any case.
    ///
    /// H2O compatibility: H2O sends the same reason phrases and texts, which clients and tests match on.
    #[must_use]
    pub const fn answer(&self) -> Answer {
        match self {
            Self::BlankInput | Self::NotHttp => Answer::CloseSilently,
            Self::MethodInvalid
            | Self::TargetInvalid
            | Self::AuthorityInvalid
            | Self::VersionInvalid
            | Self::TooManyFields
            | Self::HeadTooLarge
            | Self::HostRepeated
            | Self::HostInvalid
            | Self::HostMissing => Answer::bad_request("Bad Request", "Bad Request"),
            Self::Field(field) => match field {
                FieldError::Folded => Answer::bad_request(
                    "Bad Request",
                    "line folding of header fields is not supported",
                ),
                FieldError::NameInvalid
                | FieldError::BlankBeforeColon
                | FieldError::ValueInvalid
                | FieldError::BareLineFeed => Answer::bad_request("Bad Request", "Bad Request"),
            },
            Self::ConnectInvalid | Self::MasqueInvalid => {
                Answer::bad_request("Bad Request", "invalid request")
            }
            Self::Framing(framing) => match framing {
                FramingError::ContentLengthInvalid
                | FramingError::ContentLengthsDiffer
                | FramingError::LengthAndCoding => {
                    Answer::bad_request("Invalid Request", "broken content-length header")
                }
                FramingError::TransferEncodingUnknown
                | FramingError::TransferEncodingRepeated
                | FramingError::TransferEncodingInHttp10 => {
                    Answer::bad_request("Invalid Request", "unknown transfer-encoding")
                }
            },
            Self::BodyTooLarge => Answer::Respond {
                status: StatusCode::CONTENT_TOO_LARGE,
                reason: "Request Entity Too Large",
                body: "request entity is too large",
            },
            Self::ExpectationUnknown => Answer::Respond {
                status: StatusCode::EXPECTATION_FAILED,
                reason: "Expectation Failed",
                body: "unknown expectation",
            },
            Self::Chunk(_) => Answer::bad_request("Invalid Request", "broken chunked-encoding"),
        }
    }

    /// Whether only the framing of the content is wrong, while the head could be read. The answer then passes the filters
    /// of the request's path. H2O compatibility: H2O applies `error-doc` and `header.*` to these responses and to no
    /// others.
    #[must_use]
    pub const fn is_of_content(&self) -> bool {
        matches!(
            self,
            Self::Framing(_) | Self::BodyTooLarge | Self::ExpectationUnknown | Self::Chunk(_)
        )
    }

    /// The name of the error in logs and counters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::BlankInput => "blank-input",
            Self::NotHttp => "not-http",
            Self::MethodInvalid => "method-invalid",
            Self::TargetInvalid => "target-invalid",
            Self::AuthorityInvalid => "authority-invalid",
            Self::VersionInvalid => "version-invalid",
            Self::Field(field) => field.name(),
            Self::TooManyFields => "too-many-fields",
            Self::HeadTooLarge => "head-too-large",
            Self::HostRepeated => "host-repeated",
            Self::HostInvalid => "host-invalid",
            Self::HostMissing => "host-missing",
            Self::ConnectInvalid => "connect-invalid",
            Self::MasqueInvalid => "masque-invalid",
            Self::Framing(framing) => framing.name(),
            Self::BodyTooLarge => "body-too-large",
            Self::ExpectationUnknown => "expectation-unknown",
            Self::Chunk(chunk) => chunk.name(),
        }
    }
}

impl From<FieldError> for PeerError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

impl From<FramingError> for PeerError {
    fn from(error: FramingError) -> Self {
        Self::Framing(error)
    }
}

impl From<ChunkError> for PeerError {
    fn from(error: ChunkError) -> Self {
        Self::Chunk(error)
    }
}

/// What the server answers to a [`PeerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server sends this response, then closes the connection.
    Respond {
        /// The status of the response.
        status: StatusCode,
        /// The reason phrase of the response.
        reason: &'static str,
        /// The content of the response, which has the type `text/plain; charset=utf-8`.
        body: &'static str,
    },
    /// The server closes the connection without an answer.
    CloseSilently,
}

impl Answer {
    const fn bad_request(reason: &'static str, body: &'static str) -> Self {
        Self::Respond {
            status: StatusCode::BAD_REQUEST,
            reason,
            body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_reference() {
        let cases: &[(PeerError, u16, &str, &str)] = &[
            (PeerError::MethodInvalid, 400, "Bad Request", "Bad Request"),
            (PeerError::HeadTooLarge, 400, "Bad Request", "Bad Request"),
            (PeerError::TooManyFields, 400, "Bad Request", "Bad Request"),
            (
                PeerError::Field(FieldError::Folded),
                400,
                "Bad Request",
                "line folding of header fields is not supported",
            ),
            (
                PeerError::ConnectInvalid,
                400,
                "Bad Request",
                "invalid request",
            ),
            (
                PeerError::MasqueInvalid,
                400,
                "Bad Request",
                "invalid request",
            ),
            (
                PeerError::Framing(FramingError::TransferEncodingUnknown),
                400,
                "Invalid Request",
                "unknown transfer-encoding",
            ),
            (
                PeerError::Framing(FramingError::ContentLengthInvalid),
                400,
                "Invalid Request",
                "broken content-length header",
            ),
            (
                PeerError::Chunk(ChunkError::SizeInvalid),
                400,
                "Invalid Request",
                "broken chunked-encoding",
            ),
            (
                PeerError::BodyTooLarge,
                413,
                "Request Entity Too Large",
                "request entity is too large",
            ),
            (
                PeerError::ExpectationUnknown,
                417,
                "Expectation Failed",
                "unknown expectation",
            ),
        ];
        for &(error, code, reason, body) in cases {
            let status = StatusCode::new(code).unwrap();
            let want = Answer::Respond {
                status,
                reason,
                body,
            };
            assert_eq!(error.answer(), want, "{}", error.name());
        }
        assert_eq!(PeerError::BlankInput.answer(), Answer::CloseSilently);
    }
}
