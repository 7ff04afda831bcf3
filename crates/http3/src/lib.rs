//! HTTP/3 (RFC 9114) without input or output: bytes of streams and time go in, events and bytes come out.
//!
//! [`ServerConnection`] is the server role. The caller passes the bytes received on each stream, gets one event at a time,
//! and finds the bytes to send appended to its own buffer:
//!
//! ```
//! use std::sync::Arc;
//! use h2o_http::{Headers, RequestHead, ResponseHead, StatusCode};
//! use h2o_http3::{LocalStream, Received, ServerConnection, Settings, StreamId};
//!
//! let mut connection = ServerConnection::new(Arc::new(Settings::default()), false);
//! // The bytes to send on the three streams that the server opens.
//! assert!(connection.pending(LocalStream::Control).starts_with(&[0]));
//!
//! // The request GET / on stream 0, which ends after it.
//! let input = b"\x01\x05\0\0\xd1\xd7\xc1";
//! let id = StreamId::new(0);
//! let mut head = RequestHead::default();
//! connection.open(id)?;
//! let step = connection.receive(id, input, true, &mut head)?;
//! assert_eq!(step.taken, input.len());
//! let Received::Request { stream, end_stream: true, refusal: None } = step.received else {
//!     panic!("a request was sent");
//! };
//! assert_eq!(head.target(), b"/");
//!
//! let (headers, mut out) = (Headers::new(), Vec::new());
//! let response = ResponseHead {
//!     status: StatusCode::OK,
//!     reason: None,
//!     headers: &headers,
//!     length: Some(5),
//!     server: None,
//! };
//! connection.respond(stream, &response, false, &mut out);
//! connection.send_data(stream, b"hello", true, &mut out);
//! connection.release(stream);
//! assert!(out.ends_with(b"\0\x05hello"));
//! # Ok::<(), h2o_http3::PeerError>(())
//! ```
//!
//! [`ClientConnection`] is the client role, used in the same way:
//!
//! ```
//! use std::sync::Arc;
//! use h2o_http::{ClientResponse, RequestHead, StatusCode};
//! use h2o_http3::{ClientConnection, ClientReceived, ClientSettings, StreamId};
//!
//! let mut connection = ClientConnection::new(Arc::new(ClientSettings::default()), false);
//! let mut request = RequestHead::default();
//! let target = request.headers.store(b"/");
//! request.set_target(target);
//! let (id, mut out) = (StreamId::new(0), Vec::new());
//! let stream = connection.request(id, &request, true, &mut out).expect("the server allows a request");
//!
//! // The response 200 without content.
//! let mut head = ClientResponse::new();
//! let step = connection.receive(id, b"\x01\x03\0\0\xd9", true, &mut head)?;
//! assert_eq!(step.received, ClientReceived::Response { stream, end_stream: true });
//! assert_eq!(head.status, StatusCode::OK);
//! # Ok::<(), h2o_http3::PeerError>(())
//! ```

mod client;
mod connection;
mod error;
pub mod frame;
mod local;
mod message;
pub mod qpack;
mod remote;
mod server;
pub mod settings;
mod stream;
mod stream_id;
pub mod varint;

pub use client::{ClientConnection, ClientReceived, ClientStep};
pub use connection::Command;
pub use error::{ErrorCode, PeerError, StreamError};
pub use frame::FrameType;
pub use local::LocalStream;
pub use server::{
    Received, RepeatableSection, SHUTDOWN_GRACE, ServerConnection, ServerStep, StreamInfo,
};
pub use settings::{ClientSettings, PeerSettings, Settings};
pub use stream::{StreamKey, StreamState};
pub use stream_id::StreamId;
