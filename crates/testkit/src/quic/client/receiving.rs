//! How the client of tests processes the packets of the server.

use super::{Close, DATA_SPACE, HANDSHAKE_SPACE, INITIAL, INITIAL_SPACE, Quic, parameter};
use crate::quic::frame::{self, Reader};
use crate::quic::packet;

impl Quic {
    pub(super) fn on_datagram(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Some(parsed) = packet::parse(rest) else {
                return;
            };
            match parsed {
                packet::Incoming::VersionNegotiation(versions) => {
                    self.versions = Some(versions);
                    return;
                }
                packet::Incoming::Retry { source, token } => {
                    self.on_retry(source.to_vec(), token.to_vec());
                    return;
                }
                packet::Incoming::Long {
                    kind,
                    source,
                    number_at,
                    end,
                } => {
                    let level = if kind == 0 {
                        INITIAL_SPACE
                    } else {
                        HANDSHAKE_SPACE
                    };
                    if self.spaces[HANDSHAKE_SPACE].received.largest().is_none() {
                        self.destination = source.to_vec();
                    }
                    self.on_packet(level, &rest[..end], number_at);
                    rest = &rest[end..];
                }
                packet::Incoming::Short => {
                    self.on_packet(DATA_SPACE, rest, 1 + self.source.len());
                    return;
                }
            }
        }
    }

    /// Sends the ClientHello again, with the token that Retry has brought.
    fn on_retry(&mut self, source: Vec<u8>, token: Vec<u8>) {
        self.retries += 1;
        self.destination = source;
        self.token = token;
        self.set_initial_keys();
        let space = &mut self.spaces[INITIAL_SPACE];
        for (_, frames) in std::mem::take(&mut space.unacknowledged) {
            let mut reader = Reader(&frames);
            let header = (reader.number(), reader.number());
            if let ((Some(6), Some(_)), Some(data)) = (header, reader.prefixed()) {
                space.crypto.extend(data);
            }
        }
        space.crypto_sent = 0;
    }

    fn on_packet(&mut self, level: usize, packet: &[u8], number_at: usize) {
        let space = &self.spaces[level];
        let Some(keys) = &space.keys else {
            return;
        };
        let largest = space.received.largest();
        let Some(unprotected) = packet::unprotect(&*keys.remote.header, packet, number_at, largest)
        else {
            return;
        };
        let current = unprotected.open(&*keys.remote.packet);
        let payload = match (&self.phase, current) {
            (_, Some(payload)) => payload,
            (Some(phase), None) if level == DATA_SPACE => {
                let previous = (phase.previous.as_ref()).and_then(|key| unprotected.open(&**key));
                if let Some(payload) = previous {
                    payload
                } else if unprotected.phase != phase.is_odd
                    && let Some(payload) = unprotected.open(&*phase.next.remote)
                {
                    self.update_keys();
                    payload
                } else {
                    return;
                }
            }
            _ => return,
        };
        if self.spaces[level].received.insert(unprotected.number) {
            self.on_frames(level, &payload);
        } else {
            self.spaces[level].owes_ack = true;
        }
    }

    fn on_frames(&mut self, level: usize, payload: &[u8]) {
        let mut reader = Reader(payload);
        while !reader.0.is_empty() {
            self.on_frame(level, &mut reader)
                .expect("the server sends valid frames");
        }
    }

    fn on_frame(&mut self, level: usize, reader: &mut Reader<'_>) -> Option<()> {
        let kind = reader.number()?;
        *self.frames.entry(kind).or_default() += 1;
        if !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d) {
            self.spaces[level].owes_ack = true;
        }
        match kind {
            // Frames PADDING and PING.
            0 | 1 => {}
            2 | 3 => self.on_ack(level, reader, kind == 3)?,
            // The frame RESET_STREAM.
            4 => {
                let (stream, code, _) = (reader.number()?, reader.number()?, reader.number()?);
                self.streams.entry(stream).or_default().reset = Some(code);
            }
            6 => {
                let offset = reader.number()?;
                let data = reader.prefixed()?;
                self.on_crypto(level, offset, data);
            }
            // The frame NEW_TOKEN.
            7 => {
                reader.prefixed()?;
            }
            8..=0x0f => {
                let stream = reader.number()?;
                let offset = if kind & 4 != 0 { reader.number()? } else { 0 };
                let data = if kind & 2 != 0 {
                    reader.prefixed()?
                } else {
                    std::mem::take(&mut reader.0)
                };
                let incoming = self.streams.entry(stream).or_default();
                incoming.receive(offset, data);
                if kind & 1 != 0 {
                    incoming.end = Some(offset + data.len() as u64);
                }
            }
            // The frame MAX_STREAMS.
            0x12 => self.max_streams = self.max_streams.max(reader.number()?),
            0x13 => self.max_unidirectional = self.max_unidirectional.max(reader.number()?),
            // The frame NEW_CONNECTION_ID.
            0x18 => {
                let (sequence, _) = (reader.number()?, reader.number()?);
                let len = reader.byte()?;
                let id = reader.bytes(usize::from(len))?.to_vec();
                reader.bytes(16)?;
                self.ids.push((sequence, id));
            }
            // The frame PATH_CHALLENGE is answered with PATH_RESPONSE, padded to the size that proves the path's MTU.
            0x1a => {
                let data = reader.bytes(8)?.try_into().ok()?;
                self.send_once(
                    &[frame::path_response(data), frame::padding(INITIAL - 60)].concat(),
                );
            }
            0x1b => {
                reader.bytes(8)?;
            }
            0x1c => {
                let (code, _) = (reader.number()?, reader.number()?);
                let text = String::from_utf8_lossy(reader.prefixed()?).into_owned();
                self.closed = Some(Close::Transport(code, text));
            }
            0x1d => {
                let code = reader.number()?;
                let text = String::from_utf8_lossy(reader.prefixed()?).into_owned();
                self.closed = Some(Close::Application(code, text));
            }
            // The frame HANDSHAKE_DONE.
            0x1e => self.is_confirmed = true,
            0x30 => self.datagrams.push(std::mem::take(&mut reader.0).to_vec()),
            0x31 => self.datagrams.push(reader.prefixed()?.to_vec()),
            // The frames STOP_SENDING, MAX_STREAM_DATA and STREAM_DATA_BLOCKED are ignored: each consists of two numbers.
            5 | 0x11 | 0x15 => {
                reader.numbers(2)?;
            }
            // The frames MAX_DATA, DATA_BLOCKED, STREAMS_BLOCKED and RETIRE_CONNECTION_ID are ignored: each consists of one number.
            0x10 | 0x14 | 0x16 | 0x17 | 0x19 => {
                reader.number()?;
            }
            // The server must not send frames of extensions that the client did not offer.
            _ => return None,
        }
        Some(())
    }

    fn on_ack(&mut self, level: usize, reader: &mut Reader<'_>, has_ecn: bool) -> Option<()> {
        let (largest, _, count) = (reader.number()?, reader.number()?, reader.number()?);
        let unacknowledged = &mut self.spaces[level].unacknowledged;
        let mut last = largest;
        let mut len = reader.number()?;
        for n in 0..=count {
            let first = last.checked_sub(len)?;
            unacknowledged.retain(|number, _| !(first..=last).contains(number));
            if n < count {
                last = first.checked_sub(reader.number()? + 2)?;
                len = reader.number()?;
            }
        }
        if has_ecn {
            reader.numbers(3)?;
        }
        Some(())
    }

    fn on_crypto(&mut self, level: usize, offset: u64, data: &[u8]) {
        let space = &mut self.spaces[level];
        space.crypto_received.receive(offset, data);
        let new = &space.crypto_received.data[space.crypto_read..];
        if !new.is_empty() {
            self.tls.read_hs(new).expect("the server's TLS is valid");
        }
        space.crypto_read = space.crypto_received.data.len();
        self.write_handshake();
        if let Some(parameters) = self.tls.quic_transport_parameters() {
            let limits = [0x08, 0x09].map(|id| parameter(parameters, id).unwrap_or(0));
            self.max_streams = self.max_streams.max(limits[0]);
            self.max_unidirectional = self.max_unidirectional.max(limits[1]);
        }
    }
}
