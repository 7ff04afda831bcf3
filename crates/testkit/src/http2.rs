//! An HTTP/2 client that sends whatever frames a test makes up, in clear text with prior knowledge.
//!
//! It shares nothing with the server: frames are put together and taken apart here, field sections are encoded as
//! literals, and a decoder of its own reads what comes back.

mod connection;
mod frame;
mod hpack;

pub use connection::{Answer, GoAway, Http2, PREFACE, Received};
pub use frame::{Frame, code, flag, kind, setting};
pub(crate) use hpack::decode_huffman;
pub use hpack::{Decoder, Field, Indexing, encode, encode_integer, encode_with, get, post};
