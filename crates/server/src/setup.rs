//! The part of a configuration that the connections of one worker need.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_exchange::{LocalSite, Site};
use h2o_handlers::TrustedProxies;

use crate::budget::BudgetSettings;
use crate::site::http2_settings::Http2Settings;
use crate::site::quic_settings::Http3Settings;
use crate::site::settings::{SendInformational, ServerSettings};

/// The part of a configuration that connections need, on one worker. Each connection uses the `Setup` of its listener.
pub(crate) struct Setup {
    pub(crate) site: Rc<LocalSite>,
    pub(crate) http1: Arc<h2o_http1::Settings>,
    /// Settings of the HTTP/2 engine.
    pub(crate) http2_engine: Arc<h2o_http2::Settings>,
    /// Settings of HTTP/2 that the driver applies.
    pub(crate) http2: Http2Settings,
    pub(crate) http3: Http3Settings,
    /// Whether `send-informational` allows informational responses over HTTP/2 and HTTP/3.
    pub(crate) sends_informational: bool,
    /// Whether `send-informational` allows informational responses over HTTP/1.1 as well.
    pub(crate) informs_http1: bool,
    pub(crate) handshake_timeout: Duration,
    /// `temp-buffer-threshold`, in bytes.
    pub(crate) temp_buffer_threshold: u64,
    /// `temp-buffer-max-size`, in bytes.
    pub(crate) temp_buffer_max_size: u64,
    pub(crate) budget: BudgetSettings,
    /// The proxies of `trusted-proxies`.
    pub(crate) trusted_proxies: Option<Arc<TrustedProxies>>,
}

impl Setup {
    pub(crate) fn new(site: Arc<Site>, settings: &ServerSettings) -> Self {
        let http2 = &settings.http2;
        Self {
            trusted_proxies: TrustedProxies::of(&site),
            site: Rc::new(LocalSite(site)),
            http1: Arc::new(settings.http1.clone()),
            http2_engine: Arc::new(h2o_http2::Settings {
                max_streams: http2.max_streams,
                input_window: http2.input_window_size,
                limit_request_body: settings.http1.limit_request_body,
                idle_timeout: http2.idle_timeout,
                graceful_shutdown_timeout: http2.graceful_shutdown_timeout,
            }),
            http2: http2.clone(),
            http3: settings.http3.clone(),
            sends_informational: settings.send_informational != SendInformational::None,
            informs_http1: settings.send_informational == SendInformational::All,
            handshake_timeout: settings.handshake_timeout,
            temp_buffer_threshold: settings.temp_buffer_threshold.unwrap_or(u64::MAX),
            temp_buffer_max_size: settings.temp_buffer_max_size,
            budget: settings.budget,
        }
    }
}
