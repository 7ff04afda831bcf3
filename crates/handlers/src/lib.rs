//! Handlers, which answer requests, and filters, which edit responses. One module per feature: its directives beside the
//! code that implements them. [`directives`] and [`filters`] only concatenate the modules' lists.

mod access;
mod access_log;
mod asset;
mod basic_auth;
mod coding;
mod compress;
mod connect;
mod cors;
mod env;
mod error_doc;
mod expires;
mod fastcgi;
mod file;
mod header;
mod health;
mod http2_debug_state;
mod ip_text;
mod maintenance;
#[cfg(feature = "mruby")]
mod mruby;
mod network;
mod proxy;
pub mod push;
mod redirect;
mod reproxy;
mod rewrite;
mod server_timing;
mod status;
#[cfg(test)]
mod testing;
mod throttle;
mod time_limit;
mod trusted_proxies;
mod turns;
mod version;
mod watched_file;

use h2o_config::Directive;
use h2o_exchange::{Exchange, FilterFactory, GuardFactory, Response, Scope, Sweep};
use h2o_http::StatusCode;

pub use access_log::rotate_logs;
pub use http2_debug_state::{HpackReport, Http2Report, SettingsReport, StreamReport};
#[cfg(feature = "mruby")]
pub use mruby::are_scripts_evaluated;
pub use proxy::OtherServer;
pub use status::{publish_counters, report_of};
pub use trusted_proxies::TrustedProxies;
pub use version::{SERVER_VERSION, TLS_LIBRARY};

/// Entry points for fuzzing.
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::basic_auth::fuzzing::*;
    pub use crate::connect::fuzzing::*;
    pub use crate::file::fuzzing::*;
    #[cfg(feature = "mruby")]
    pub use crate::mruby::fuzzing::*;
    pub use crate::proxy::fuzzing::*;
    pub use crate::rewrite::fuzzing::*;
    pub use crate::trusted_proxies::fuzzing::*;
}

/// The response to a request when no file descriptor is left.
fn unavailable(exchange: &Exchange) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    exchange.worker.counters.count_status(status);
    Response::error(status, status.reason(), "please try again later")
}

/// The directives of all features in this crate.
#[must_use]
pub fn directives() -> Vec<&'static [Directive<Scope>]> {
    vec![
        file::DIRECTIVES,
        access::DIRECTIVES,
        access_log::DIRECTIVES,
        access_log::ROTATION,
        basic_auth::DIRECTIVES,
        compress::DIRECTIVES,
        connect::DIRECTIVES,
        cors::DIRECTIVES,
        env::DIRECTIVES,
        error_doc::DIRECTIVES,
        expires::DIRECTIVES,
        fastcgi::DIRECTIVES,
        header::DIRECTIVES,
        health::DIRECTIVES,
        http2_debug_state::DIRECTIVES,
        maintenance::DIRECTIVES,
        #[cfg(feature = "mruby")]
        mruby::DIRECTIVES,
        proxy::DIRECTIVES,
        push::DIRECTIVES,
        push::SETTINGS_DIRECTIVES,
        redirect::DIRECTIVES,
        reproxy::DIRECTIVES,
        rewrite::DIRECTIVES,
        server_timing::DIRECTIVES,
        status::DIRECTIVES,
        throttle::DIRECTIVES,
        trusted_proxies::DIRECTIVES,
    ]
}

/// Functions by which workers drop the state of earlier configurations.
#[must_use]
pub fn sweeps() -> Vec<Sweep> {
    vec![
        #[cfg(feature = "mruby")]
        mruby::sweep,
        proxy::sweep,
        // The state of upstreams is dropped after that of the features that refer to upstreams.
        h2o_upstream::sweep,
    ]
}

/// Makers of the guards, in the order in which the guards run: handlers such as access control, which run before a
/// path's own handlers.
#[must_use]
pub fn guards() -> Vec<GuardFactory> {
    vec![
        access::guard,
        maintenance::guard,
        cors::guard,
        basic_auth::guard,
    ]
}

/// Makers of the filters, in the order in which the filters see a response.
#[must_use]
pub fn filters() -> Vec<FilterFactory> {
    vec![
        reproxy::filter,
        cors::filter,
        header::filter,
        throttle::filter,
        error_doc::filter,
        expires::filter,
        compress::filter,
        push::filter,
        server_timing::filter,
    ]
}
