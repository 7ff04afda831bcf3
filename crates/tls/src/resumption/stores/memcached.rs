//! Commands of memcached in its two protocols, text and binary.

use std::io::{self, Read, Write};

use crate::resumption::stores::wire::{Stored, Wire, nonsense, refusal};

/// A protocol that memcached understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemcachedProtocol {
    Ascii,
    Binary,
}

/// Longest lifetime in seconds, 30 days, that memcached understands as a lifetime: it reads larger numbers as a Unix time.
const MAX_RELATIVE_SECS: u64 = 60 * 60 * 24 * 30;

/// The expiry time of an entry as memcached expects it: a lifetime in seconds, or a Unix time.
pub(super) fn expiration(lifetime_secs: u64, now: u64) -> u32 {
    let number = if lifetime_secs > MAX_RELATIVE_SECS {
        now.saturating_add(lifetime_secs)
    } else {
        lifetime_secs
    };
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn get<S: Read + Write>(
    wire: &mut Wire<S>,
    protocol: MemcachedProtocol,
    key: &str,
) -> io::Result<Option<Stored>> {
    match protocol {
        MemcachedProtocol::Ascii => get_ascii(wire, key),
        MemcachedProtocol::Binary => get_binary(wire, key),
    }
}

/// Writes an entry, if the store has none under this key (`version` is `None`), or still has this version of it. If another server
/// has created or changed the entry meanwhile, nothing is written, which is no error.
pub(super) fn replace<S: Read + Write>(
    wire: &mut Wire<S>,
    protocol: MemcachedProtocol,
    key: &str,
    version: Option<u64>,
    value: &[u8],
    expires: u32,
) -> io::Result<()> {
    match protocol {
        MemcachedProtocol::Ascii => {
            let len = value.len();
            let mut command = match version {
                None => format!("add {key} 0 {expires} {len}\r\n"),
                Some(version) => format!("cas {key} 0 {expires} {len} {version}\r\n"),
            }
            .into_bytes();
            command.extend_from_slice(value);
            command.extend_from_slice(b"\r\n");
            wire.send(&command)?;
            let line = wire.line()?;
            match &*line {
                "STORED" | "NOT_STORED" | "EXISTS" | "NOT_FOUND" => Ok(()),
                _ => Err(refusal(&line)),
            }
        }
        MemcachedProtocol::Binary => {
            let opcode = if version.is_some() { SET } else { ADD };
            let mut extras = [0; 8];
            extras[4..].copy_from_slice(&expires.to_be_bytes());
            send(wire, opcode, &extras, key, value, version.unwrap_or(0))?;
            let answer = receive(wire)?;
            match answer.status {
                OK | NOT_FOUND | EXISTS | NOT_STORED => Ok(()),
                _ => Err(answer.refusal()),
            }
        }
    }
}

fn get_ascii<S: Read + Write>(wire: &mut Wire<S>, key: &str) -> io::Result<Option<Stored>> {
    wire.send(format!("gets {key}\r\n").as_bytes())?;
    let line = wire.line()?;
    if line == "END" {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split(' ').collect();
    let ["VALUE", name, _flags, len, version] = fields[..] else {
        return Err(refusal(&line));
    };
    let (Ok(len), Ok(version)) = (len.parse(), version.parse()) else {
        return Err(nonsense());
    };
    let value = wire.value(len)?;
    if name != key || wire.line()? != "END" {
        return Err(nonsense());
    }
    Ok(Some(Stored { value, version }))
}

const GET: u8 = 0;
const SET: u8 = 1;
const ADD: u8 = 2;

const OK: u16 = 0;
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const NOT_STORED: u16 = 5;

const HEADER_LEN: usize = 24;
const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;

fn get_binary<S: Read + Write>(wire: &mut Wire<S>, key: &str) -> io::Result<Option<Stored>> {
    send(wire, GET, &[], key, &[], 0)?;
    let answer = receive(wire)?;
    match answer.status {
        // The flags, four bytes, stand before the value.
        OK if answer.extras_len == 4 => Ok(Some(Stored {
            value: answer.value,
            version: answer.version,
        })),
        OK => Err(nonsense()),
        NOT_FOUND => Ok(None),
        _ => Err(answer.refusal()),
    }
}

fn send<S: Read + Write>(
    wire: &mut Wire<S>,
    opcode: u8,
    extras: &[u8],
    key: &str,
    value: &[u8],
    version: u64,
) -> io::Result<()> {
    let key_len = u16::try_from(key.len()).map_err(io::Error::other)?;
    let extras_len = u8::try_from(extras.len()).map_err(io::Error::other)?;
    let body_len = extras.len() + key.len() + value.len();
    let body_len = u32::try_from(body_len).map_err(io::Error::other)?;
    let mut packet = vec![REQUEST, opcode];
    packet.extend_from_slice(&key_len.to_be_bytes());
    // The data type (0), and the number of the virtual bucket (0).
    packet.extend_from_slice(&[extras_len, 0, 0, 0]);
    packet.extend_from_slice(&body_len.to_be_bytes());
    // The opaque field, which the answer repeats; it is not used.
    packet.extend_from_slice(&[0; 4]);
    packet.extend_from_slice(&version.to_be_bytes());
    packet.extend_from_slice(extras);
    packet.extend_from_slice(key.as_bytes());
    packet.extend_from_slice(value);
    wire.send(&packet)
}

struct Answer {
    status: u16,
    version: u64,
    extras_len: usize,
    value: Vec<u8>,
}

impl Answer {
    fn refusal(&self) -> io::Error {
        refusal(&String::from_utf8_lossy(&self.value))
    }
}

fn receive<S: Read + Write>(wire: &mut Wire<S>) -> io::Result<Answer> {
    let header = wire.bytes(HEADER_LEN)?;
    let number = |from: usize, len: usize| {
        let bytes = &header[from..from + len];
        bytes
            .iter()
            .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    let len = |from, len| usize::try_from(number(from, len)).map_err(|_| nonsense());
    if header[0] != RESPONSE {
        return Err(nonsense());
    }
    let (key_len, extras_len) = (len(2, 2)?, len(4, 1)?);
    let mut value = wire.bytes(len(8, 4)?)?;
    if value.len() < key_len + extras_len {
        return Err(nonsense());
    }
    value.drain(..key_len + extras_len);
    Ok(Answer {
        status: u16::try_from(number(6, 2)).map_err(|_| nonsense())?,
        version: number(16, 8),
        extras_len,
        value,
    })
}
