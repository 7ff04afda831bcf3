//! Message types that all HTTP versions share: header block, method, status, target and path, authority, dates and text
//! escapes.
//!
//! This crate uses no sockets, no clock and no configuration. A message's text is in one growing arena ([`Headers`]);
//! everything else refers to it by [`Span`], so that parsing or decoding a head makes no allocation per field, and a
//! connection keeps its arena from one request to the next.

pub mod accept;
pub mod authority;
pub mod base64url;
pub mod date;
pub mod dynamic_table;
pub mod encoder_table;
pub mod escape;
pub mod field_section;
mod head;
mod headers;
pub mod huffman;
mod method;
pub mod mime;
mod name;
pub mod path;
pub mod prefixed;
pub mod priority;
mod reference;
mod response;
mod status;
pub mod string_literal;
mod time_limit;
mod words;

pub use head::{BodyLength, MAX_HEAD, RequestHead, Scheme, Version, parse_content_length};
pub use headers::{Field, Headers, Span, has_break, is_printable, is_visible};
pub use method::Method;
pub use name::{Known, Name, is_token, is_token_byte};
pub use reference::Reference;
pub use response::{ClientResponse, ResponseHead};
pub use status::StatusCode;
pub use time_limit::TimeLimit;
