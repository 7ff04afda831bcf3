//! An HTTP/3 peer for tests: frames and QPACK, by code that it does not share with the protocol engine.

mod frame;
mod qpack;

pub use frame::{Frame, code, kind, setting, varint};
pub use qpack::{Blocked, Decoder, STATIC, encode, encode_literal, instruction, section_prefix};
