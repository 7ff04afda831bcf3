//! The responses to requests that the server refuses before any handler runs.

use h2o_exchange::Response;
use h2o_http::StatusCode;

use crate::context::Context;

/// The response 413 to a request whose body exceeds the configured limit.
pub(crate) fn too_large(context: &Context) -> Response {
    error(
        context,
        StatusCode::CONTENT_TOO_LARGE,
        // H2O uses this older reason phrase of 413.
        "Request Entity Too Large",
        "request entity is too large",
    )
}

/// The response to a request whose body has no room, because the memory or the space for temporary files that the configuration
/// allows is used up.
pub(crate) fn no_room(context: &Context) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    error(context, status, status.reason(), "please try again later")
}

/// The response to a request whose body could not be written to a temporary file.
pub(crate) fn no_disk(context: &Context) -> Response {
    let status = StatusCode::BAD_GATEWAY;
    error(context, status, status.reason(), "Bad Gateway")
}

/// Makes a response with an error status, and counts it for the status report.
pub(crate) fn error(
    context: &Context,
    status: StatusCode,
    reason: &'static str,
    text: &str,
) -> Response {
    context.worker.counters.count_status(status);
    Response::error(status, reason, text)
}
