//! HTTP/2 (RFC 9113) without input or output: bytes and time go in, events and bytes come out.
//!
//! [`ServerConnection`] is the server role. The caller passes the bytes received, gets one event at a time, and finds the
//! bytes to send appended to its own buffer:
//!
//! ```
//! use std::{sync::Arc, time::Instant};
//! use h2o_http::{Headers, RequestHead, ResponseHead, StatusCode};
//! use h2o_http2::{Received, ServerConnection, Settings};
//!
//! # #[allow(clippy::disallowed_methods, reason = "an example has no virtual clock")]
//! let now = Instant::now();
//! let mut connection = ServerConnection::new(Arc::new(Settings::default()), None, now);
//! let (mut head, mut out) = (RequestHead::default(), Vec::new());
//!
//! // The client's preface, empty SETTINGS, and GET / on stream 1.
//! let input = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
//!     \0\0\0\x04\0\0\0\0\0\
//!     \0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84";
//! let step = connection.receive(input, &mut head, now, &mut out)?;
//! assert_eq!(step.taken, input.len());
//! let Received::Request { stream, end_stream: true, refusal: None } = step.received else {
//!     panic!("a request was sent");
//! };
//! assert_eq!(head.target(), b"/");
//!
//! let headers = Headers::new();
//! let response = ResponseHead {
//!     status: StatusCode::OK,
//!     reason: None,
//!     headers: &headers,
//!     length: Some(5),
//!     server: None,
//! };
//! connection.respond(stream, &response, false, &mut out);
//! connection.send_data(stream, b"hello", true, &mut out);
//! connection.release(stream, &mut out);
//! assert!(out.ends_with(b"\0\0\x05\0\x01\0\0\0\x01hello"));
//! # Ok::<(), h2o_http2::PeerError>(())
//! ```
//!
//! [`ClientConnection`] is the client role, used in the same way:
//!
//! ```
//! use std::{sync::Arc, time::Instant};
//! use h2o_http::{ClientResponse, RequestHead, StatusCode};
//! use h2o_http2::{ClientConnection, ClientReceived, ClientSettings};
//!
//! # #[allow(clippy::disallowed_methods, reason = "an example has no virtual clock")]
//! let now = Instant::now();
//! let mut out = Vec::new();
//! let mut connection = ClientConnection::new(Arc::new(ClientSettings::default()), now, &mut out);
//! let mut request = RequestHead::default();
//! let target = request.headers.store(b"/");
//! request.set_target(target);
//! let stream = connection.request(&request, true, &mut out).expect("the server allows a request");
//!
//! // The server's SETTINGS, which are empty, and the response 200 without content.
//! let input = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x05\0\0\0\x01\x88";
//! let mut head = ClientResponse::new();
//! let step = connection.receive(input, &mut head, now, &mut out)?;
//! assert_eq!(step.received, ClientReceived::Response { stream, end_stream: true });
//! assert_eq!(head.status, StatusCode::OK);
//! # Ok::<(), h2o_http2::PeerError>(())
//! ```

mod client;
mod connection;
mod content;
mod encode;
mod error;
mod field_block;
mod flow_control;
pub mod frame;
pub mod hpack;
pub mod scheduler;
mod server;
pub mod settings;
mod stream;
mod turns;

pub use client::{ClientConnection, ClientReceived, ClientStep};
pub use connection::CONNECTION_WINDOW;
pub use error::{ErrorCode, PeerError, StreamError};
pub use field_block::SectionLimits;
pub use flow_control::{RecvWindow, SendWindow, WindowExceeded, WindowOverflow};
pub use frame::{FrameHeader, FrameType, StreamId};
pub use server::{
    Received, SHUTDOWN_GRACE, SchedulingHint, ServerConnection, ServerStep, StreamInfo,
};
pub use settings::{ClientSettings, PeerSettings, Settings};
pub use stream::{StreamKey, StreamState};
