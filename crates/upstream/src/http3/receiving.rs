//! Handles the events of a QUIC connection to a backend: handshake, streams to read and to write.

use std::time::Instant;

use bytes::Bytes;
use h2o_http3::{ClientReceived, ErrorCode, PeerError};
use h2o_quic::{CloseReason, Event, Read, StreamId};

use super::engine::{Handshake, Http3, engine_id, index};
use crate::multiplexed::{State, StreamFailure};

/// Limit in bytes of one read from a stream.
const READ_SIZE: usize = 64 * 1024;

impl State<Http3> {
    /// Processes an event of the QUIC connection.
    ///
    /// # Errors
    /// How the backend has violated the protocol; the connection is to be closed.
    pub(super) fn on_event(&mut self, event: Event, now: Instant) -> Result<(), PeerError> {
        match event {
            Event::Connected => {
                self.engine.handshake = Handshake::Done;
                self.engine.open_streams_ahead();
                self.wake_waiting();
            }
            Event::StreamsAvailable { .. } => {
                if self.engine.handshake == Handshake::Done {
                    self.engine.open_streams_ahead();
                    self.wake_waiting();
                }
            }
            Event::StreamOpened(id) => {
                self.engine.engine.open(engine_id(id))?;
                self.read(id, now)?;
            }
            Event::Readable(id) => self.read(id, now)?,
            Event::Writable(id) => self.engine.on_writable(id),
            Event::Stopped { stream: id, code } => {
                self.engine.drop_output(id);
                let stopped =
                    (self.engine.engine).on_stop_sending(engine_id(id), ErrorCode(code))?;
                if stopped.is_none() {
                    // The request was written completely, but QUIC still has some of it, which is not sent any more: without a reset the
                    // stream would never end (RFC 9000 §3.5).
                    self.engine
                        .quic
                        .with(|quic| quic.reset(id, ErrorCode::REQUEST_CANCELLED.0));
                }
                self.on_received(stopped, &[], now);
            }
            Event::Closed(reason) => self.on_closed(&reason),
            Event::DatagramReceived => {
                // HTTP datagrams are dropped, which RFC 9297 §2 allows, because no request asks for them.
                self.engine
                    .quic
                    .with(|quic| while quic.receive_datagram().is_some() {});
            }
            Event::HandshakeAgreed | Event::DatagramsUnblocked | Event::Drained => {}
        }
        Ok(())
    }

    /// Handles the end of the connection: fails all requests.
    fn on_closed(&mut self, reason: &CloseReason) {
        if self.engine.handshake == Handshake::Running {
            self.engine.handshake = Handshake::Failed(reason.to_string());
        }
        self.fail_all(StreamFailure::Io);
    }

    /// Reads the bytes that have arrived on a stream, as far as there is room for them.
    pub(super) fn read(&mut self, id: StreamId, now: Instant) -> Result<(), PeerError> {
        while let Some(read) = self.read_piece(id) {
            let (piece, has_ended) = match read {
                Read::Data(piece) => (piece, false),
                Read::Last(piece) => (piece, true),
                Read::End => (Bytes::new(), true),
                Read::Reset(code) => {
                    let reset = (self.engine.engine).on_reset(engine_id(id), ErrorCode(code))?;
                    self.on_received(reset, &[], now);
                    return Ok(());
                }
                Read::Blocked | Read::Unknown => return Ok(()),
            };
            self.engine.bytes_read += piece.len() as u64;
            self.receive(id, &piece, has_ended, now)?;
            if has_ended {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the next piece of a stream; `None` if there is no room for it.
    fn read_piece(&mut self, id: StreamId) -> Option<Read> {
        let mut max = READ_SIZE;
        if let Some(stream) = self.engine.find(id) {
            max = max.min(self.engine.room(self.queued(stream)));
            if max == 0 {
                self.engine.note_unread(stream);
                return None;
            }
        }
        self.engine.quic.with(|quic| quic.read(id, max))
    }

    /// Hands bytes that have arrived on a stream to the engine.
    fn receive(
        &mut self,
        id: StreamId,
        input: &[u8],
        has_ended: bool,
        now: Instant,
    ) -> Result<(), PeerError> {
        let mut rest = input;
        loop {
            let engine = &mut self.engine.engine;
            let step = engine.receive(engine_id(id), rest, has_ended, &mut self.head)?;
            // Drops the costs of frames, which count against a budget to stop abuse by clients. Backends have no budget: the limits
            // of reading bound what they can cost.
            engine.take_costs();
            let input = rest;
            rest = rest.get(step.taken..).unwrap_or_default();
            match step.received {
                // No field section can be blocked on QPACK's dynamic table, because this side allows none.
                ClientReceived::NeedMore | ClientReceived::Blocked => return Ok(()),
                received => self.on_received(Some(received), input, now),
            }
        }
    }

    /// Processes what the engine has found in `input`.
    fn on_received(&mut self, received: Option<ClientReceived>, input: &[u8], now: Instant) {
        match received {
            None
            | Some(ClientReceived::NeedMore | ClientReceived::Blocked | ClientReceived::Charged) => {
            }
            Some(ClientReceived::Settings) => self.wake_waiting(),
            Some(ClientReceived::GoAway { .. }) => {
                while let Some(refused) = self.engine.engine.poll_refused() {
                    self.on_reset(index(refused), StreamFailure::Refused);
                }
            }
            Some(ClientReceived::Informational { stream }) => {
                self.on_informational(index(stream), now);
            }
            Some(ClientReceived::Response { stream, end_stream }) => {
                self.on_response(index(stream), end_stream, now);
            }
            Some(ClientReceived::Data {
                stream,
                data,
                end_stream,
            }) => {
                let piece = input.get(data).unwrap_or_default();
                self.on_data(index(stream), piece, end_stream, now);
            }
            Some(ClientReceived::Trailers { stream }) => self.on_trailers(index(stream)),
            Some(ClientReceived::Reset { stream, by_us, .. }) => {
                let failure = if by_us {
                    StreamFailure::Protocol
                } else {
                    StreamFailure::Reset
                };
                self.on_reset(index(stream), failure);
            }
            Some(ClientReceived::Refused { stream }) => {
                self.on_reset(index(stream), StreamFailure::Refused);
            }
            Some(ClientReceived::Stopped { stream, .. }) => self.on_sent(index(stream)),
        }
    }
}
