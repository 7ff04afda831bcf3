//! The commands of Redis that read and write an entry.

use std::io::{self, Read, Write};

use crate::resumption::stores::wire::{Stored, Wire, nonsense, refusal};

pub(super) fn get<S: Read + Write>(wire: &mut Wire<S>, key: &str) -> io::Result<Option<Stored>> {
    send(wire, &[b"GET", key.as_bytes()])?;
    let line = wire.line()?;
    let Some(len) = line.strip_prefix('$') else {
        return Err(refusal(&line));
    };
    if len == "-1" {
        return Ok(None);
    }
    let value = wire.value(len.parse().map_err(|_| nonsense())?)?;
    Ok(Some(Stored { value, version: 0 }))
}

pub(super) fn set<S: Read + Write>(
    wire: &mut Wire<S>,
    key: &str,
    value: &[u8],
    lifetime_secs: u64,
) -> io::Result<()> {
    let lifetime = lifetime_secs.to_string();
    send(
        wire,
        &[b"SETEX", key.as_bytes(), lifetime.as_bytes(), value],
    )?;
    let line = wire.line()?;
    if line == "+OK" {
        Ok(())
    } else {
        Err(refusal(&line))
    }
}

fn send<S: Read + Write>(wire: &mut Wire<S>, words: &[&[u8]]) -> io::Result<()> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    wire.send(&command)
}
