//! An HTTP/3 peer for tests: frames and QPACK, by code that shares nothing with the engine.

mod frame;
mod qpack;

pub use frame::{Frame, code, kind, setting, varint};
pub use qpack::{Blocked, Decoder, STATIC, encode, encode_literal, instruction, section_prefix};
