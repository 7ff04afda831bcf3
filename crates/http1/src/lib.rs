//! HTTP/1.0 and 1.1 (RFC 9112): the server and the client role of a connection, without I/O.
//!
//! Bytes and time go in, events and bytes come out. This crate uses no sockets, clocks, threads or locks, so that any
//! exchange can be replayed byte for byte and hours of timers run in a millisecond. The caller owns the buffers; an idle
//! connection takes less than 200 bytes.
//!
//! If RFC 9112 leaves a choice that two recipients can make differently, this engine refuses the message: request smuggling
//! depends on such differences.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use h2o_http::{Headers, Known, RequestHead, ResponseHead, Scheme, StatusCode};
//! use h2o_http1::{BodyMode, Next, Received, ServerConnection, Settings};
//!
//! # #[expect(clippy::disallowed_methods, reason = "an example has no virtual clock")]
//! let now = Instant::now();
//! let settings = Arc::new(Settings::default());
//! let mut connection = ServerConnection::new(settings, Scheme::Http, now);
//! let mut head = RequestHead::default();
//!
//! // Bytes in: the caller removes the bytes that a step took, and calls again while a step makes progress.
//! let mut input = b"GET /a/../b?c HTTP/1.1\r\nHost: example.com\r\n\r\n".to_vec();
//! match connection.receive(&input, now, &mut head) {
//!     Ok(Received::Request { taken }) => drop(input.drain(..taken)),
//!     other => panic!("{other:?}"),
//! }
//! assert_eq!((head.path(), head.query()), (&b"/b"[..], &b"?c"[..]));
//! assert_eq!(head.authority(), b"example.com");
//!
//! // Bytes out.
//! let mut headers = Headers::new();
//! headers.push(Known::ContentType, b"text/plain");
//! let response = ResponseHead {
//!     status: StatusCode::OK,
//!     reason: None,
//!     headers: &headers,
//!     length: Some(5),
//!     server: Some(b"h2o"),
//! };
//! let mut out = Vec::new();
//! assert_eq!(connection.respond(&response, &mut out, now), BodyMode::Identity(5));
//! connection.send_data(b"hello", &mut out);
//! connection.finish(None, &mut out);
//! assert!(out.starts_with(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n"));
//! assert!(out.ends_with(b"\r\n\r\nhello"));
//! connection.on_written(out.len(), false, now);
//!
//! // Time: without input, the connection waits ten seconds for the next request.
//! assert_eq!(connection.next(now), Next::Request);
//! assert_eq!(connection.next_timeout(), Some(now + Duration::from_secs(10)));
//! ```

mod chunked;
mod client;
mod connection_field;
mod encode;
mod error;
mod field_lines;
mod framing;
mod request_head;
mod response_head;
mod server;
mod settings;
mod target;
mod timers;
mod upstream_error;

pub use chunked::{
    MAX_CHUNK_EXTENSION, MAX_CHUNK_FRAMING, MAX_TRAILER_FIELDS, MAX_TRAILER_SECTION, decode_chunked,
};
pub use client::{AwaitedPart, ClientConnection, ClientReceived, ClientRequest, EndedPart};
pub use encode::BodyMode;
pub use error::{Answer, ChunkError, FieldError, FramingError, PeerError};

pub use server::{Next, Received, ServerConnection};
pub use settings::{ClientSettings, Settings};
pub use upstream_error::UpstreamError;
