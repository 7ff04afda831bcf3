//! Receiving from the server: heads and content of responses, and the frames of the control stream.

use std::borrow::Cow;
use std::ops::Range;

use h2o_http::field_section::{ResponseFields, SectionKind};
use h2o_http::{BodyLength, ClientResponse, StatusCode, Version};

use super::ClientConnection;
use crate::connection::{Control, cost};
use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::frame::FrameType;
use crate::local::LocalStream;
use crate::message::Part;
use crate::qpack::Decoded;
use crate::stream::{Stage, StreamKey};
use crate::stream_id::StreamId;

/// The result of one step of [`ClientConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReceived {
    /// All input is consumed. Nothing can be reported before more bytes arrive.
    NeedMore,
    /// Nothing is to be reported, but [`ClientConnection::take_costs`] returns costs.
    Charged,
    /// A field section refers to entries of the QPACK table that have not arrived. The input of the stream must wait until
    /// [`ClientConnection::poll_unblocked`] returns the stream.
    Blocked,
    /// The head of an informational (1xx) response is complete and stored; the final response follows.
    Informational {
        /// The stream of the response.
        stream: StreamKey,
    },
    /// The head of the final response is complete and stored.
    Response {
        /// The stream of the response.
        stream: StreamKey,
        /// Whether the response has no content.
        end_stream: bool,
    },
    /// Content of a response, or bytes of a tunnel.
    Data {
        /// The stream of the response or tunnel.
        stream: StreamKey,
        /// The range of the content in the input.
        data: Range<usize>,
        /// Whether the content is complete.
        end_stream: bool,
    },
    /// The trailers of a response are complete and stored as the fields of the head; the response is complete.
    Trailers {
        /// The stream of the response.
        stream: StreamKey,
    },
    /// The stream has ended: the server has reset it, or violated the protocol, so that the engine reset it.
    Reset {
        /// The stream, which the caller still has to release.
        stream: StreamKey,
        /// The error code of the RESET_STREAM frame, received or sent.
        code: ErrorCode,
        /// Whether the engine has reset the stream because the server violated the protocol.
        by_us: bool,
    },
    /// The server has not processed the request, which can safely be sent again on another connection (RFC 9114 §4.1.1).
    Refused {
        /// The stream, which the caller still has to release.
        stream: StreamKey,
    },
    /// The server has sent STOP_SENDING: it does not want the rest of the request. The response still follows.
    Stopped {
        /// The stream of the request.
        stream: StreamKey,
        /// The error code: [`ErrorCode::NO_ERROR`] if the response does not depend on the rest of the request.
        code: ErrorCode,
    },
    /// The server has announced its settings.
    Settings,
    /// The server has sent GOAWAY. Requests from the stream `first` on are [refused](ClientConnection::poll_refused).
    GoAway {
        /// The first request stream that the server will not process.
        first: StreamId,
    },
}

/// The result of one step, with the number of bytes that it consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientStep {
    /// How many bytes the caller removes from the start of the input after using the result.
    pub taken: usize,
    /// The result of the step.
    pub received: ClientReceived,
}

impl ClientConnection {
    /// Makes one step over `input`: the bytes received on the stream `id` and not yet removed. `has_ended` tells whether
    /// the stream ends after them. The caller removes `taken` bytes and calls again until [`ClientReceived::NeedMore`] or
    /// [`ClientReceived::Blocked`].
    ///
    /// # Errors
    /// Returns the server's violation of the protocol. The caller closes the connection.
    pub fn receive(
        &mut self,
        id: StreamId,
        input: &[u8],
        has_ended: bool,
        head: &mut ClientResponse,
    ) -> Result<ClientStep, PeerError> {
        let all = ClientStep {
            taken: input.len(),
            received: ClientReceived::NeedMore,
        };
        if self.connection.has_failed {
            return Ok(all);
        }
        let step = if id.is_unidirectional() {
            self.receive_unidirectional(id, input, has_ended)
        } else {
            match self.connection.streams.find(id) {
                Some(key) => self.receive_response(key, input, has_ended, head),
                // The stream is released: its input is dropped.
                None => Ok(all),
            }
        };
        if let Err(error) = step {
            self.fail(error);
        }
        step
    }

    fn receive_unidirectional(
        &mut self,
        id: StreamId,
        mut input: &[u8],
        has_ended: bool,
    ) -> Result<ClientStep, PeerError> {
        let len = input.len();
        let read = self.connection.on_unidirectional(id, input, has_ended);
        let (control, rest) = read.map_err(|error| match error {
            // Only clients may send PRIORITY_UPDATE for a push: from a server it is an unexpected frame.
            PeerError::PushPriority => PeerError::UnexpectedFrame(FrameType::PRIORITY_UPDATE_PUSH),
            error => error,
        })?;
        input = rest;
        let received = match control {
            None if self.connection.is_charged() => ClientReceived::Charged,
            None => ClientReceived::NeedMore,
            Some(Control::Settings) => ClientReceived::Settings,
            Some(Control::GoAway(first)) => self.on_goaway(StreamId::new(first))?,
            // Only clients may send these frames (RFC 9114 §7.2.7, RFC 9218 §7.2).
            Some(Control::MaxPushId(_)) => {
                return Err(PeerError::UnexpectedFrame(FrameType::MAX_PUSH_ID));
            }
            Some(Control::Priority(..)) => {
                return Err(PeerError::UnexpectedFrame(FrameType::PRIORITY_UPDATE));
            }
        };
        Ok(ClientStep {
            taken: len - input.len(),
            received,
        })
    }

    /// Handles GOAWAY: ends the streams from `first` on, which the server does not process (RFC 9114 §5.2).
    fn on_goaway(&mut self, first: StreamId) -> Result<ClientReceived, PeerError> {
        if !first.is_request() {
            return Err(PeerError::IdInvalid);
        }
        self.first_refused = Some(first);
        let code = ErrorCode::REQUEST_CANCELLED;
        let streams = self.connection.streams.iter();
        let refused: Vec<_> = streams
            .filter(|(_, stream)| stream.id >= first && !stream.has_response)
            .map(|(key, _)| key)
            .collect();
        for &key in refused.iter().rev() {
            if self.state(key).is_open() {
                self.connection.abort(key, code, code);
                self.refused.push(key);
            }
        }
        Ok(ClientReceived::GoAway { first })
    }

    fn receive_response(
        &mut self,
        key: StreamKey,
        input: &[u8],
        has_ended: bool,
        head: &mut ClientResponse,
    ) -> Result<ClientStep, PeerError> {
        let mut rest = input;
        let received = loop {
            let found = self.next_received(key, &mut rest, input.len(), has_ended, head);
            match found {
                Ok(Some(received)) => break received,
                Ok(None) if self.connection.is_charged() => break ClientReceived::Charged,
                Ok(None) => {}
                Err(Fault::Connection(error)) => return Err(error),
                Err(Fault::Stream(error)) => {
                    rest = &[];
                    head.clear();
                    let code = error.client_code();
                    self.connection.charge(cost::CAUSED_RESET);
                    self.connection.abort(key, code, code);
                    break ClientReceived::Reset {
                        stream: key,
                        code,
                        by_us: true,
                    };
                }
            }
        };
        Ok(ClientStep {
            taken: input.len() - rest.len(),
            received,
        })
    }

    fn next_received(
        &mut self,
        key: StreamKey,
        rest: &mut &[u8],
        len: usize,
        has_ended: bool,
        head: &mut ClientResponse,
    ) -> Result<Option<ClientReceived>, Fault> {
        // Any identifier in a PUSH_PROMISE is invalid, since this side has allowed no pushes (RFC 9114 §7.2.5).
        let on_promise = PeerError::IdInvalid;
        let part = self
            .connection
            .next_part(key, rest, len, has_ended, u64::MAX, on_promise)?;
        Ok(Some(match part {
            Part::NeedMore => ClientReceived::NeedMore,
            Part::Blocked => ClientReceived::Blocked,
            Part::Skipped => return Ok(None),
            Part::Section(section, is_end) => self.on_section(key, section, is_end, head)?,
            Part::Data(data, end_stream) => ClientReceived::Data {
                stream: key,
                data,
                end_stream,
            },
            Part::End => ClientReceived::Data {
                stream: key,
                data: len..len,
                end_stream: true,
            },
        }))
    }

    fn on_section(
        &mut self,
        key: StreamKey,
        section: Cow<'_, [u8]>,
        is_end: bool,
        head: &mut ClientResponse,
    ) -> Result<ClientReceived, Fault> {
        let Some(stream) = self.connection.streams.get(key) else {
            return Ok(ClientReceived::NeedMore);
        };
        let (id, kind) = match stream.stage {
            Stage::Head => (stream.id, SectionKind::Head),
            Stage::Content | Stage::Trailers => (stream.id, SectionKind::Trailers),
        };
        let (decoder, out) = self.connection.decoding();
        let mut fields = ResponseFields::new(kind, head, decoder.text_len(&section));
        let decoded = decoder.decode(id, &section, out, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        if let Decoded::Blocked(required) = decoded {
            head.clear();
            self.connection.block(key, required, section.into_owned())?;
            return Ok(ClientReceived::Blocked);
        }
        let checked = fields.finish();
        self.connection.local(LocalStream::QpackDecoder).check()?;
        checked?;
        head.version = Version::Http3;
        head.section_len = u32::try_from(section.len()).unwrap_or(u32::MAX);
        if kind == SectionKind::Trailers {
            self.connection.check_end(key)?;
            if let Some(stream) = self.connection.streams.get_mut(key) {
                stream.stage = Stage::Trailers;
            }
            return Ok(ClientReceived::Trailers { stream: key });
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(StreamError::Malformed.into());
        }
        if head.status.is_informational() {
            self.connection.charge(cost::EMPTY);
            return Ok(ClientReceived::Informational { stream: key });
        }
        Ok(self.on_response(key, head, is_end))
    }

    /// Handles the head of the final response: determines how its content is delimited.
    fn on_response(
        &mut self,
        key: StreamKey,
        head: &mut ClientResponse,
        is_end: bool,
    ) -> ClientReceived {
        if let Some(stream) = self.connection.streams.get_mut(key) {
            let is_success = (200..300).contains(&head.status.as_u16());
            stream.stage = Stage::Content;
            stream.has_response = true;
            // Only a successful response opens a tunnel (RFC 9110 §9.3.6); its `content-length` is ignored then.
            stream.is_tunnel &= is_success;
            stream.is_bodyless |= head.status.is_bodyless();
            if stream.is_tunnel {
                head.length = None;
                head.body = BodyLength::Tunnel;
            } else if stream.is_bodyless {
                stream.declared = Some(0);
            } else {
                stream.declared = head.length;
                head.body = match head.length {
                    Some(length) => BodyLength::Known(length),
                    None if is_end => BodyLength::None,
                    None => BodyLength::Unknown,
                };
            }
        }
        // If the stream ends before all announced content, the next step reports the error.
        let end_stream = is_end && self.connection.check_end(key).is_ok();
        if end_stream {
            self.connection.end_recv(key);
        }
        ClientReceived::Response {
            stream: key,
            end_stream,
        }
    }

    /// Handles RESET_STREAM: the server sends nothing more on the stream.
    ///
    /// # Errors
    /// Returns [`PeerError::ClosedCriticalStream`] if the stream is the server's control stream or one of its QPACK
    /// streams.
    pub fn on_reset(
        &mut self,
        id: StreamId,
        code: ErrorCode,
    ) -> Result<Option<ClientReceived>, PeerError> {
        if self.connection.has_failed {
            return Ok(None);
        }
        if id.is_unidirectional() {
            self.connection.charge(cost::CONTROL);
            return match self.connection.on_unidirectional_reset(id) {
                Ok(()) => Ok(None),
                Err(error) => self.failed(error),
            };
        }
        let Some(key) = self.connection.streams.find(id) else {
            return Ok(None);
        };
        if !self.state(key).can_recv() {
            return Ok(None);
        }
        self.connection.charge(cost::RESET);
        let ours = ErrorCode::REQUEST_CANCELLED;
        self.connection.abort(key, ours, ours);
        let has_response = self
            .connection
            .streams
            .get(key)
            .is_some_and(|stream| stream.has_response);
        Ok(Some(
            if code == ErrorCode::REQUEST_REJECTED && !has_response {
                ClientReceived::Refused { stream: key }
            } else {
                ClientReceived::Reset {
                    stream: key,
                    code,
                    by_us: false,
                }
            },
        ))
    }

    /// Handles STOP_SENDING: the server does not want what this side sends on the stream.
    ///
    /// # Errors
    /// Returns [`PeerError::ClosedCriticalStream`] if the stream is a unidirectional one.
    pub fn on_stop_sending(
        &mut self,
        id: StreamId,
        code: ErrorCode,
    ) -> Result<Option<ClientReceived>, PeerError> {
        if self.connection.has_failed {
            return Ok(None);
        }
        if id.is_unidirectional() {
            return self.failed(PeerError::ClosedCriticalStream);
        }
        let Some(key) = self.connection.streams.find(id) else {
            return Ok(None);
        };
        if !self.state(key).can_send() {
            return Ok(None);
        }
        self.connection.charge(cost::CONTROL);
        self.connection
            .reset_stream(id, ErrorCode::REQUEST_CANCELLED);
        self.connection.end_send(key);
        Ok(Some(ClientReceived::Stopped { stream: key, code }))
    }

    /// Finds the tunnel of an HTTP datagram, as [`crate::ServerConnection::on_datagram`] does.
    ///
    /// # Errors
    /// Returns [`PeerError::Datagram`] if the datagram cannot belong to a tunnel.
    pub fn on_datagram(
        &mut self,
        datagram: &[u8],
    ) -> Result<Option<(StreamKey, usize)>, PeerError> {
        if self.connection.has_failed {
            return Ok(None);
        }
        match self.connection.on_datagram(datagram) {
            Ok(found) => Ok(found),
            Err(error) => self.failed(error),
        }
    }
}
