//! HTTP/2: reads frames by their lengths, and only the path of a request.

use crate::Fault;
use crate::sink::Sink;
use crate::site::{FRAME_HEAD_LEN, Site, data_frame, headers_frame};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest frame payload that a client sends if the server's SETTINGS do not allow more.
const MAX_FRAME_LEN: usize = 1 << 14;
const DEFAULT_WINDOW: i64 = 65_535;
const DEFAULT_TABLE_SIZE: u32 = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const HEADER_TABLE_SIZE: u16 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// SETTINGS with 100 as MAX_CONCURRENT_STREAMS.
const OUR_SETTINGS: [u8; 15] = [0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
const SETTINGS_ACK: [u8; 9] = [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
const PING_ACK: [u8; 9] = [0, 0, 8, PING, ACK, 0, 0, 0, 0];

/// The paths `/` and `/index.html` as HPACK strings: these two have indices of their own in the static table.
pub(crate) const INDEX_4: &[u8] = b"\x01/";
const INDEX_5: &[u8] = b"\x0b/index.html";

const TRUNCATED: Fault = Fault("a frame is shorter than its fields");

/// State of an HTTP/2 connection.
pub(crate) struct Http2 {
    has_preface: bool,
    /// How many bytes may be sent on the connection, and on every new stream.
    window: i64,
    stream_window: i64,
    /// The answer whose fields are in the dynamic table of the client's decoder: the first one, because no later answer adds entries.
    in_table: Option<InTable>,
}

struct InTable {
    answer: usize,
    date_index: u8,
}

impl Http2 {
    pub(crate) fn new() -> Self {
        Self {
            has_preface: false,
            window: DEFAULT_WINDOW,
            stream_window: DEFAULT_WINDOW,
            in_table: None,
        }
    }

    /// Answers the complete requests in `input`. Returns the number of bytes used.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        input: &[u8],
        site: &mut Site,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Fault> {
        let mut rest = input;
        if !self.has_preface {
            let seen = rest.len().min(PREFACE.len());
            if rest[..seen] != PREFACE[..seen] {
                return Err(Fault(
                    "the connection does not begin with the HTTP/2 preface",
                ));
            }
            if seen < PREFACE.len() {
                return Ok(0);
            }
            rest = &rest[seen..];
            self.has_preface = true;
            sink.put(&OUR_SETTINGS)?;
        }
        while let Some((&[high, middle, low, kind, flags, s3, s2, s1, s0], behind)) =
            rest.split_first_chunk::<FRAME_HEAD_LEN>()
        {
            let len = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if len > MAX_FRAME_LEN {
                return Err(Fault("a frame is too long"));
            }
            let Some((payload, next)) = behind.split_at_checked(len) else {
                break;
            };
            rest = next;
            let stream = [s3, s2, s1, s0];
            if kind == HEADERS {
                self.request(payload, flags, stream, site, sink)?;
            } else {
                self.other_frame(kind, flags, stream, payload, sink)?;
            }
        }
        Ok(input.len() - rest.len())
    }

    #[inline]
    fn request(
        &mut self,
        payload: &[u8],
        flags: u8,
        stream: [u8; 4],
        site: &mut Site,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        if flags & (END_STREAM | END_HEADERS) != END_STREAM | END_HEADERS {
            return Err(Fault(
                "the floor program takes no request that has a body or several frames",
            ));
        }
        let before = usize::from(flags & PADDED != 0) + 5 * usize::from(flags & PRIORITY != 0);
        let block = payload.get(before..).ok_or(TRUNCATED)?;
        let number = site.by_string(path(block)?);
        let answer = site.answer(number);

        let len = i64::try_from(answer.body.len()).unwrap_or(i64::MAX);
        if len > self.window.min(self.stream_window) {
            return Err(Fault("an answer is longer than the window of HTTP/2"));
        }
        self.window -= len;

        match &self.in_table {
            Some(table) if table.answer == number => return sink.put(answer.on_stream(stream)),
            Some(table) => {
                let (status, fields) = (&answer.other_status, &answer.other_fields);
                sink.put(&on(headers_frame(status.len() + 2 + fields.len()), stream))?;
                sink.put(status)?;
                sink.put(&[table.date_index, table.date_index - 1])?;
                sink.put(fields)?;
            }
            None => {
                self.in_table = Some(InTable {
                    answer: number,
                    date_index: answer.date_index,
                });
                sink.put(&on(headers_frame(answer.first.len()), stream))?;
                sink.put(&answer.first)?;
            }
        }
        sink.put(&on(data_frame(answer.body.len()), stream))?;
        sink.put(&answer.body)
    }

    fn other_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: [u8; 4],
        payload: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        match kind {
            SETTINGS if flags & ACK == 0 => {
                self.settings(payload)?;
                sink.put(&SETTINGS_ACK)
            }
            PING if flags & ACK == 0 => {
                let payload: &[u8; 8] = payload.try_into().map_err(|_| TRUNCATED)?;
                sink.put(&PING_ACK)?;
                sink.put(payload)
            }
            WINDOW_UPDATE if stream == [0; 4] => {
                let payload: [u8; 4] = payload.try_into().map_err(|_| TRUNCATED)?;
                self.window += i64::from(u32::from_be_bytes(payload));
                if self.window > i64::from(i32::MAX) {
                    return Err(Fault("a flow-control window of HTTP/2 is too large"));
                }
                Ok(())
            }
            DATA | CONTINUATION => Err(Fault(
                "the floor program takes no request that has a body or several frames",
            )),
            _ => Ok(()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        for &[n1, n0, v3, v2, v1, v0] in payload.as_chunks().0 {
            let value = u32::from_be_bytes([v3, v2, v1, v0]);
            match u16::from_be_bytes([n1, n0]) {
                HEADER_TABLE_SIZE if value < DEFAULT_TABLE_SIZE => {
                    return Err(Fault(
                        "the client allows only an HPACK table below the default size",
                    ));
                }
                INITIAL_WINDOW_SIZE => self.stream_window = i64::from(value),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A frame head with the id `stream`.
fn on(mut head: [u8; FRAME_HEAD_LEN], stream: [u8; 4]) -> [u8; FRAME_HEAD_LEN] {
    head[FRAME_HEAD_LEN - 4..].copy_from_slice(&stream);
    head
}

/// Finds the value of `:path` in a field block, as an HPACK string with its length. The program keeps no dynamic table, so the path must
/// not be a reference to it; fields after the path are not read.
#[inline]
fn path(mut block: &[u8]) -> Result<&[u8], Fault> {
    while let Some(&first) = block.first() {
        if first & 0x80 != 0 {
            match integer(&mut block, 0x7f)? {
                4 => return Ok(INDEX_4),
                5 => return Ok(INDEX_5),
                _ => {}
            }
        } else if first & 0xe0 == 0x20 {
            integer(&mut block, 0x1f)?;
        } else {
            let enters = first & 0x40 != 0;
            let name = integer(&mut block, if enters { 0x3f } else { 0x0f })?;
            if name == 0 {
                string(&mut block)?;
            }
            let value = string(&mut block)?;
            if name == 4 || name == 5 {
                if enters {
                    return Err(Fault(
                        "the path would enter the HPACK table, which the floor program does not keep",
                    ));
                }
                return Ok(value);
            }
        }
    }
    Err(Fault("a request has no path"))
}

/// Takes an HPACK string, with its length, off the front of `block`.
#[inline]
pub(crate) fn string<'a>(block: &mut &'a [u8]) -> Result<&'a [u8], Fault> {
    let all = *block;
    let len = integer(block, 0x7f)?;
    *block = block.get(len..).ok_or(TRUNCATED)?;
    Ok(&all[..all.len() - block.len()])
}

/// Takes an integer off the front of `block`; `mask` is its part of the first byte (RFC 7541 §5.1).
#[inline]
pub(crate) fn integer(block: &mut &[u8], mask: u8) -> Result<usize, Fault> {
    let (&first, rest) = block.split_first().ok_or(TRUNCATED)?;
    *block = rest;
    let mut value = usize::from(first & mask);
    if first & mask < mask {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = block.split_first().ok_or(TRUNCATED)?;
        *block = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault("an integer in HPACK is too large"))
}
