//! The responses to requests that the server refuses before any handler runs.

use h2o_exchange::Response;
use h2o_http::StatusCode;

use crate::context::Context;

/// The response to a request whose body is larger than it may be.
pub(crate) fn too_large(context: &Context) -> Response {
    error(
        context,
        StatusCode::CONTENT_TOO_LARGE,
        // H2O answers with the older name.
        "Request Entity Too Large",
        "request entity is too large",
    )
}

/// The response while the memory, or the space for temporary files, that the configuration allows is used up.
pub(crate) fn no_room(context: &Context) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    error(context, status, status.reason(), "please try again later")
}

/// The response to a request whose body cannot be written to the disk.
pub(crate) fn no_disk(context: &Context) -> Response {
    let status = StatusCode::BAD_GATEWAY;
    error(context, status, status.reason(), "Bad Gateway")
}

/// A response with an error status, which is counted in the status report.
pub(crate) fn error(
    context: &Context,
    status: StatusCode,
    reason: &'static str,
    text: &str,
) -> Response {
    context.worker.counters.count_status(status);
    Response::error(status, reason, text)
}
