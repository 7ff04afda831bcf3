//! An HTTP/2 client that sends arbitrary frames, valid or not, in clear text with prior knowledge.
//!
//! It shares no code with the server: frames are built and parsed here, field sections are encoded as literals, and a
//! separate decoder reads the responses.

mod connection;
mod frame;
mod hpack;

pub use connection::{Answer, GoAway, Http2, PREFACE, Received};
pub use frame::{Frame, code, flag, kind, setting};
pub(crate) use hpack::decode_huffman;
pub use hpack::{Decoder, Field, Indexing, encode, encode_integer, encode_with, get, post};
