//! Settings of the server role and of the client role: limits of sizes and time.

use std::time::Duration;

/// Settings of the server role, shared by all connections of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum length of a request head in bytes, from the first byte to the empty line.
    pub max_head: usize,
    /// Maximum number of fields in a request head, including those that are not stored in `RequestHead::headers`.
    pub max_fields: usize,
    /// `limit-request-body`: a longer `Content-Length`, or a chunked body that reaches this many bytes, is answered with
    /// 413.
    pub limit_request_body: u64,
    /// `http1-request-timeout`: time limit for a complete request head, from the moment the connection waits for it.
    pub request_timeout: Duration,
    /// `http1-request-io-timeout`: the longest pause of the client while it sends a request or reads a response.
    pub io_timeout: Duration,
    /// `http1-strict`: whether to refuse HTTP/1.1 requests without `Host`, and bare line feeds in heads.
    pub strict: bool,
    /// `http1-upgrade-to-http2`: whether the HTTP/2 preface is reported to the caller instead of refused.
    pub upgrade_to_http2: bool,
}

pub(crate) const MAX_FIELDS: usize = 100;

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_head: h2o_http::MAX_HEAD,
            max_fields: MAX_FIELDS,
            limit_request_body: 1 << 30,
            request_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(5),
            strict: false,
            upgrade_to_http2: true,
        }
    }
}

/// Settings of the client role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Maximum length of a response head in bytes, from the first byte to the empty line.
    pub max_head: usize,
    /// Maximum number of fields in a response head.
    pub max_fields: usize,
    /// Maximum number of interim (1xx) responses to one request. A hostile server could send them without end at no cost.
    pub max_interims: u32,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            max_head: h2o_http::MAX_HEAD,
            max_fields: MAX_FIELDS,
            max_interims: 100,
        }
    }
}
