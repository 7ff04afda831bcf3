//! Receiving from the server: heads and content of responses, and bytes of tunnels.

use std::ops::Range;

use h2o_http::ClientResponse;

use super::{ClientConnection, ReceiveState, SendState};
use crate::UpstreamError;
use crate::chunked::{Chunked, ChunkedReader};
use crate::field_lines::{HeadEnd, HeadScan};
use crate::response_head::{self, Delimiter};

/// The result of one step of [`ClientConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReceived {
    /// Nothing can be reported before more bytes arrive.
    NeedMore {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// The head of an interim (1xx) response is complete and stored; the final response follows.
    Interim {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// The head of the final response is complete and stored.
    Response {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
    /// Content of the response, or bytes of a tunnel.
    Data {
        /// How many bytes the caller removes from the start of the input after using the content.
        taken: usize,
        /// The range of the content in the input.
        data: Range<usize>,
    },
    /// The content of the response is complete.
    BodyEnd {
        /// How many bytes the caller removes from the start of the input.
        taken: usize,
    },
}

impl ClientConnection {
    /// Makes one step over `input`, which is all bytes received and not yet removed. The caller removes `taken` bytes and
    /// calls again while a step makes progress.
    ///
    /// # Errors
    /// Returns the server's violation of the protocol; the caller closes the connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        head: &mut ClientResponse,
    ) -> Result<ClientReceived, UpstreamError> {
        let received = match &mut self.receiving {
            ReceiveState::Idle if input.is_empty() => Ok(ClientReceived::NeedMore { taken: 0 }),
            ReceiveState::Idle => Err(UpstreamError::Unsolicited),
            ReceiveState::Head(scan) => {
                let mut scan = *scan;
                self.recv_head(&mut scan, input, head)
            }
            ReceiveState::Sized { left } => {
                let (step, rest) = recv_sized(*left, input);
                *left = rest;
                Ok(step)
            }
            ReceiveState::Chunked(reader) => recv_chunked(reader, &mut self.received, input),
            ReceiveState::UntilClose | ReceiveState::Tunnel => Ok(recv_raw(input)),
            ReceiveState::Failed => Ok(ClientReceived::NeedMore { taken: 0 }),
        };
        match received {
            Ok(ClientReceived::BodyEnd { .. }) => self.receiving = ReceiveState::Idle,
            Err(_) => self.fail(),
            Ok(_) => {}
        }
        received
    }

    fn recv_head(
        &mut self,
        scan: &mut HeadScan,
        input: &[u8],
        head: &mut ClientResponse,
    ) -> Result<ClientReceived, UpstreamError> {
        match scan.find_end(input, self.settings.max_head) {
            HeadEnd::TooLarge => Err(UpstreamError::HeadTooLarge),
            HeadEnd::Complete { end } => self.on_head(&input[..end], head),
            HeadEnd::Incomplete { lines } => {
                let lines = &input[..lines];
                if !lines.is_empty() {
                    scan.check_lines(lines, response_head::ENDS, response_head::check_first_line)?;
                }
                if scan.is_in_first_line() {
                    response_head::check_partial_line(input)?;
                }
                self.receiving = ReceiveState::Head(*scan);
                Ok(ClientReceived::NeedMore { taken: 0 })
            }
        }
    }

    fn on_head(
        &mut self,
        input: &[u8],
        head: &mut ClientResponse,
    ) -> Result<ClientReceived, UpstreamError> {
        let framing = response_head::parse(input, &self.settings, self.kind, head)?;
        let taken = input.len();
        self.receiving = match framing.delimiter {
            Delimiter::Interim => {
                self.interims += 1;
                if self.interims > self.settings.max_interims {
                    return Err(UpstreamError::TooManyInterims);
                }
                self.receiving = ReceiveState::Head(HeadScan::default());
                return Ok(ClientReceived::Interim { taken });
            }
            Delimiter::Length(0) => ReceiveState::Idle,
            Delimiter::Length(left) => ReceiveState::Sized { left },
            Delimiter::Chunked => ReceiveState::Chunked(ChunkedReader::new()),
            Delimiter::UntilClose => ReceiveState::UntilClose,
            Delimiter::Tunnel => {
                self.sending = SendState::Tunnel;
                ReceiveState::Tunnel
            }
        };
        self.is_persistent &= framing.is_persistent;
        Ok(ClientReceived::Response { taken })
    }

    fn fail(&mut self) {
        self.receiving = ReceiveState::Failed;
        self.is_persistent = false;
    }
}

/// Makes one step over content of known length, of which `left` bytes are still to come. Also returns how many are to come
/// after the step.
fn recv_sized(left: u64, input: &[u8]) -> (ClientReceived, u64) {
    if left == 0 {
        return (ClientReceived::BodyEnd { taken: 0 }, 0);
    }
    let len = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    (recv_raw(&input[..len]), left - len as u64)
}

fn recv_raw(input: &[u8]) -> ClientReceived {
    match input.len() {
        0 => ClientReceived::NeedMore { taken: 0 },
        taken => ClientReceived::Data {
            taken,
            data: 0..taken,
        },
    }
}

fn recv_chunked(
    reader: &mut ChunkedReader,
    received: &mut u64,
    input: &[u8],
) -> Result<ClientReceived, UpstreamError> {
    Ok(match reader.read(input, *received)? {
        Chunked::NeedMore => ClientReceived::NeedMore { taken: input.len() },
        Chunked::End { taken } => ClientReceived::BodyEnd { taken },
        Chunked::Data { skip, len } => {
            *received = received.saturating_add(len as u64);
            ClientReceived::Data {
                taken: skip + len,
                data: skip..skip + len,
            }
        }
    })
}
