//! Sans-IO HTTP/1.0 and 1.1 (RFC 9112), server and client roles.

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
mod timers;
mod upstream_error;

pub use chunked::{
    MAX_CHUNK_EXTENSION, MAX_CHUNK_FRAMING, MAX_TRAILER_FIELDS, MAX_TRAILER_SECTION,
};
pub use client::{Awaited, ClientConnection, ClientReceived, ClientRequest, Ended};
pub use encode::BodyMode;
pub use error::{Answer, ChunkError, FieldError, FramingError, PeerError};
pub use response_head::ClientResponse;
pub use server::{Next, Received, ResponseHead, ServerConnection};
pub use settings::{ClientSettings, Settings};
pub use timers::TimedOut;
pub use upstream_error::UpstreamError;
