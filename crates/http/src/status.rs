//! Status codes (RFC 9110 §15).

/// A three-digit status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatusCode(u16);

#[allow(missing_docs, reason = "the constants are the registered names")]
impl StatusCode {
    pub const CONTINUE: Self = Self(100);
    pub const SWITCHING_PROTOCOLS: Self = Self(101);
    pub const EARLY_HINTS: Self = Self(103);
    pub const OK: Self = Self(200);
    pub const NO_CONTENT: Self = Self(204);
    pub const PARTIAL_CONTENT: Self = Self(206);
    pub const MOVED_PERMANENTLY: Self = Self(301);
    pub const FOUND: Self = Self(302);
    pub const NOT_MODIFIED: Self = Self(304);
    pub const TEMPORARY_REDIRECT: Self = Self(307);
    pub const PERMANENT_REDIRECT: Self = Self(308);
    pub const UNAUTHORIZED: Self = Self(401);
    pub const BAD_REQUEST: Self = Self(400);
    pub const FORBIDDEN: Self = Self(403);
    pub const NOT_FOUND: Self = Self(404);
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    pub const RANGE_NOT_SATISFIABLE: Self = Self(416);
    pub const EXPECTATION_FAILED: Self = Self(417);
    pub const MISDIRECTED_REQUEST: Self = Self(421);
    pub const TOO_EARLY: Self = Self(425);
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    pub const BAD_GATEWAY: Self = Self(502);
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
}

impl StatusCode {
    /// The code, if it is from 100 to 999.
    #[must_use]
    pub const fn new(code: u16) -> Option<Self> {
        if code >= 100 && code <= 999 {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The code as a number.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        self.0
    }

    /// The three digits of the code in ASCII.
    #[must_use]
    pub fn digits(self) -> [u8; 3] {
        let digit = |n: u16| b'0' + u8::try_from(n % 10).unwrap_or(0);
        [digit(self.0 / 100), digit(self.0 / 10), digit(self.0)]
    }

    /// Whether the status is informational (1xx).
    #[must_use]
    pub const fn is_informational(self) -> bool {
        self.0 < 200
    }

    /// Whether a response with this status never has content (RFC 9110 §6.4.1).
    #[must_use]
    pub const fn is_bodyless(self) -> bool {
        self.0 < 200 || self.0 == 204 || self.0 == 304
    }

    /// Whether the status is a redirect after which the client repeats the method and content (307, 308; RFC 9110 §15.4.8,
    /// §15.4.9).
    #[must_use]
    pub const fn keeps_method(self) -> bool {
        matches!(self, Self::TEMPORARY_REDIRECT | Self::PERMANENT_REDIRECT)
    }

    /// The reason phrase of the code, as registered (418: as widely used); "OK" for a code without one. H2O compatibility: H2O
    /// sends "OK" for every code for which a handler sets no reason.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self.0 {
            100 => "Continue",
            101 => "Switching Protocols",
            103 => "Early Hints",
            201 => "Created",
            202 => "Accepted",
            204 => "No Content",
            206 => "Partial Content",
            300 => "Multiple Choices",
            301 => "Moved Permanently",
            302 => "Found",
            303 => "See Other",
            304 => "Not Modified",
            307 => "Temporary Redirect",
            308 => "Permanent Redirect",
            400 => "Bad Request",
            401 => "Unauthorized",
            402 => "Payment Required",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            406 => "Not Acceptable",
            407 => "Proxy Authentication Required",
            408 => "Request Timeout",
            409 => "Conflict",
            410 => "Gone",
            411 => "Length Required",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            418 => "I'm a Teapot",
            421 => "Misdirected Request",
            422 => "Unprocessable Content",
            423 => "Locked",
            424 => "Failed Dependency",
            425 => "Too Early",
            426 => "Upgrade Required",
            428 => "Precondition Required",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            451 => "Unavailable For Legal Reasons",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            505 => "HTTP Version Not Supported",
            506 => "Variant Also Negotiates",
            507 => "Insufficient Storage",
            508 => "Loop Detected",
            511 => "Network Authentication Required",
            _ => "OK",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_three_digits() {
        assert_eq!(StatusCode::new(99), None);
        assert_eq!(StatusCode::new(1000), None);
        assert_eq!(StatusCode::new(503).unwrap().digits(), *b"503");
        assert!(StatusCode::NOT_MODIFIED.is_bodyless());
        assert!(!StatusCode::OK.is_bodyless());
    }
}
