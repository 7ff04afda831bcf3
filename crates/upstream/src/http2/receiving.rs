//! Handles HTTP/2 frames from a backend.

use std::time::Instant;

use h2o_http2::{ClientReceived, ErrorCode, PeerError};

use super::engine::{Http2, index};
use crate::multiplexed::{State, StreamFailure};

impl State<Http2> {
    /// Processes all complete frames of the input. Returns how many bytes of the input they took.
    ///
    /// # Errors
    /// How the backend has violated the protocol; GOAWAY is in the output.
    pub(super) fn receive(&mut self, input: &[u8], now: Instant) -> Result<usize, PeerError> {
        let had_settings = self.engine.engine.has_settings();
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let Http2 { engine, out, .. } = &mut self.engine;
            let step = engine.receive(rest, &mut self.head, now, out)?;
            // Drops the costs of frames, which count against a budget to stop abuse by clients. Backends have no budget: the limits
            // of reading bound what they can cost.
            engine.take_costs();
            at += step.taken;
            match step.received {
                ClientReceived::NeedMore => break,
                ClientReceived::Charged
                | ClientReceived::GoAway { .. }
                | ClientReceived::Pong { .. } => {}
                ClientReceived::Informational { stream } => {
                    self.on_informational(index(stream), now);
                }
                ClientReceived::Response { stream, end_stream } => {
                    self.on_response(index(stream), end_stream, now);
                }
                ClientReceived::Data {
                    stream,
                    data,
                    end_stream,
                } => self.on_data(index(stream), &rest[data], end_stream, now),
                ClientReceived::Trailers { stream } => self.on_trailers(index(stream)),
                ClientReceived::Reset {
                    stream,
                    code,
                    by_us,
                } => self.on_reset(index(stream), failure_of_reset(code, by_us)),
                ClientReceived::Refused { stream } => {
                    self.on_reset(index(stream), StreamFailure::Refused);
                }
            }
        }
        if !had_settings && self.engine.engine.has_settings() {
            self.wake_waiting();
        }
        Ok(at)
    }
}

impl From<PeerError> for StreamFailure {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::WindowExceeded | PeerError::WindowOverflow | PeerError::SettingsWindow => {
                Self::FlowControl
            }
            _ => Self::Protocol,
        }
    }
}

/// The failure of a stream that was reset with this error code. `by_us`: our engine sent the reset because of a violation.
fn failure_of_reset(code: ErrorCode, by_us: bool) -> StreamFailure {
    match (by_us, code) {
        (true, ErrorCode::FLOW_CONTROL_ERROR) => StreamFailure::FlowControl,
        (true, _) => StreamFailure::Protocol,
        (false, _) => StreamFailure::Reset,
    }
}
