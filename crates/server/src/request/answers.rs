//! The answers to requests that the request table refuses by itself.

use h2o_exchange::Response;
use h2o_http::StatusCode;

use crate::context::Context;

/// The answer to content that is larger than it may be.
pub(crate) fn too_large(context: &Context) -> Response {
    error(
        context,
        StatusCode::CONTENT_TOO_LARGE,
        // H2O answers with the older name.
        "Request Entity Too Large",
        "request entity is too large",
    )
}

/// The answer while memory, or the space for temporary files, is used up.
pub(crate) fn no_room(context: &Context) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    error(context, status, status.reason(), "please try again later")
}

/// The answer to a request whose content the disk does not take.
pub(crate) fn no_disk(context: &Context) -> Response {
    let status = StatusCode::BAD_GATEWAY;
    error(context, status, status.reason(), "Bad Gateway")
}

/// The answer with an error status, which is counted.
pub(crate) fn error(
    context: &Context,
    status: StatusCode,
    reason: &'static str,
    text: &str,
) -> Response {
    context.worker.counters.count_status(status);
    Response::error(status, reason, text)
}
