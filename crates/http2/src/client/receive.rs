//! Receiving from the server: heads and content of responses, and the frames that concern the connection.

use std::ops::Range;
use std::time::Instant;

use h2o_http::field_section::{ResponseFields, SectionKind};
use h2o_http::{BodyLength, ClientResponse, StatusCode, Version};

use super::{ClientConnection, Opening};
use crate::connection::cost;
use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::field_block::Section;
use crate::frame::{self, FrameHeader, FrameType, HEADER_LEN, StreamId, flags};
use crate::stream::StreamKey;

/// The result of one step of [`ClientConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReceived {
    /// Nothing can be reported before more bytes arrive.
    NeedMore,
    /// Nothing is to be reported, but [`ClientConnection::take_costs`] returns costs.
    Charged,
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
    /// The stream has ended: the server has reset it, or violated the protocol, so that the engine reset it. After a
    /// complete response this only means that the server does not want the rest of the request (RFC 9113 §8.1).
    Reset {
        /// The stream, which the caller still has to release.
        stream: StreamKey,
        /// The error code of the RST_STREAM frame, received or sent.
        code: ErrorCode,
        /// Whether the engine has reset the stream because the server violated the protocol.
        by_us: bool,
    },
    /// The server has not processed the request, which can safely be sent again on another connection (RFC 9113 §8.7): it
    /// sent REFUSED_STREAM, or a GOAWAY that names an earlier stream.
    Refused {
        /// The stream, which the caller still has to release.
        stream: StreamKey,
    },
    /// The server sent GOAWAY and accepts no more requests. The next steps report the streams above `last` as refused.
    GoAway {
        /// The last stream that the server will process.
        last: StreamId,
        /// The error code of the GOAWAY frame.
        code: ErrorCode,
    },
    /// The server acknowledged a PING of this side.
    Pong {
        /// The data of the acknowledged PING.
        data: [u8; 8],
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
    /// Makes one step over `input`, which is all bytes received and not yet removed. The caller removes `taken` bytes and
    /// calls again until [`ClientReceived::NeedMore`].
    ///
    /// # Errors
    /// Returns the server's violation of the protocol. A GOAWAY frame is in `out`; the caller sends it and closes the
    /// connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        head: &mut ClientResponse,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, PeerError> {
        match self.advance(input, head, now, out) {
            Ok(step) => Ok(step),
            Err(error) => {
                self.fail(error, out);
                Err(error)
            }
        }
    }

    fn advance(
        &mut self,
        input: &[u8],
        head: &mut ClientResponse,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, PeerError> {
        let mut taken = 0;
        let received = loop {
            if let Some(received) = self.next_refused() {
                break received;
            }
            if let Some(id) = self.cut_off.take()
                && let Some(received) = self.on_stream_error(id, StreamError::ContentLength, out)
            {
                break received;
            }
            if self.opening == Opening::Failed {
                break ClientReceived::NeedMore;
            }
            let Some((header, payload)) = self.connection.next_frame(&input[taken..])? else {
                break ClientReceived::NeedMore;
            };
            let at = taken + HEADER_LEN;
            taken = at + header.len;
            let received = match self.on_frame(&header, payload, head, now, out) {
                Ok(Some(ClientReceived::Data {
                    stream,
                    data,
                    end_stream,
                })) => Some(ClientReceived::Data {
                    stream,
                    data: at + data.start..at + data.end,
                    end_stream,
                }),
                Ok(received) => received,
                Err(Fault::Connection(error)) => return Err(error),
                Err(Fault::Stream(id, error)) => self.on_stream_error(id, error, out),
            };
            if let Some(received) = received {
                break received;
            }
            if self.connection.is_charged() {
                break ClientReceived::Charged;
            }
        };
        Ok(ClientStep { taken, received })
    }

    /// The next stream that a GOAWAY refused and that the caller has not released meanwhile.
    fn next_refused(&mut self) -> Option<ClientReceived> {
        while let Some(stream) = self.refused.pop() {
            // No other stream can have got this key meanwhile: after a GOAWAY no more streams are opened.
            if self.connection.streams.get(stream).is_some() {
                return Some(ClientReceived::Refused { stream });
            }
        }
        None
    }

    fn on_frame(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        head: &mut ClientResponse,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientReceived>, Fault> {
        if self.opening == Opening::Settings {
            if header.kind != FrameType::SETTINGS || header.has(flags::ACK) {
                return Err(PeerError::SettingsExpected.into());
            }
            self.opening = Opening::Done;
        }
        match header.kind {
            FrameType::HEADERS => match self.connection.on_headers(header, payload)? {
                Some(section) => self.on_section(&section, head),
                None => Ok(None),
            },
            FrameType::CONTINUATION => match self.connection.on_continuation(header, payload)? {
                Some(section) => self.on_section(&section, head),
                None => Ok(None),
            },
            FrameType::DATA => self.on_data(header, payload, out),
            FrameType::WINDOW_UPDATE => {
                let is_idle = self.is_idle(header.stream);
                self.connection.on_window_update(header, payload, is_idle)?;
                Ok(None)
            }
            FrameType::RST_STREAM => Ok(self.on_rst_stream(header, payload)?),
            FrameType::SETTINGS => {
                self.connection.on_settings(header, payload, now, out)?;
                if self.connection.peer.enable_push {
                    // A server must not announce that it accepts pushes (RFC 9113 §6.5.2).
                    return Err(PeerError::SettingsValue.into());
                }
                Ok(None)
            }
            FrameType::PING => Ok(self.on_ping(header, payload, out)?),
            FrameType::GOAWAY => Ok(Some(self.on_goaway(header, payload)?)),
            FrameType::PRIORITY => {
                self.on_priority(header, payload)?;
                Ok(None)
            }
            FrameType::PUSH_PROMISE => Err(PeerError::PushPromise.into()),
            // PRIORITY_UPDATE is only for clients to send (RFC 9218 §7.1).
            FrameType::PRIORITY_UPDATE => Err(PeerError::NotForClients.into()),
            _ => {
                // Frames of unknown types are ignored (RFC 9113 §4.1).
                self.connection.charge(cost::CONTROL);
                Ok(None)
            }
        }
    }

    /// Whether the stream was never opened. All streams of the server are idle, since it is not allowed to push.
    fn is_idle(&self, id: StreamId) -> bool {
        !id.is_client() || id > self.newest
    }

    /// Resets a stream on which the server violated the protocol.
    fn on_stream_error(
        &mut self,
        id: StreamId,
        error: StreamError,
        out: &mut Vec<u8>,
    ) -> Option<ClientReceived> {
        // Without an open stream there is nothing to reset: the server sent the frame before it could know that the stream
        // has ended (RFC 9113 §5.1).
        let stream = self.connection.streams.find(id)?;
        self.connection.charge(cost::CAUSED_RESET);
        let code = error.code();
        self.connection.reset(stream, code, out);
        Some(ClientReceived::Reset {
            stream,
            code,
            by_us: true,
        })
    }

    fn on_data(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientReceived>, Fault> {
        let newest = if header.stream.is_client() {
            self.newest
        } else {
            StreamId::CONNECTION
        };
        let mut header = *header;
        let is_cut_off = header.has(flags::END_STREAM) && self.is_short(&header, payload)?;
        if is_cut_off {
            // The content is passed to the caller although it is too short, as over HTTP/1; instead of the end of the
            // content the next step reports an error.
            header.flags &= !flags::END_STREAM;
            self.cut_off = Some(header.stream);
        }
        let (stream, data) = self
            .connection
            .on_data(&header, payload, newest, u64::MAX, out)?;
        let has_response = self
            .connection
            .streams
            .get(stream)
            .is_some_and(|stream| stream.has_response);
        if !has_response {
            return Err(Fault::Stream(header.stream, StreamError::Malformed));
        }
        let end_stream = header.has(flags::END_STREAM);
        if end_stream {
            self.connection.on_end_recv(stream);
        }
        // In a padded frame, the length of the padding is one byte before the content.
        let start = usize::from(header.has(flags::PADDED));
        Ok(Some(ClientReceived::Data {
            stream,
            data: start..start + data.len(),
            end_stream,
        }))
    }

    /// Whether this DATA frame ends the content before its announced length.
    fn is_short(&self, header: &FrameHeader, payload: &[u8]) -> Result<bool, PeerError> {
        let stream = self.connection.streams.find(header.stream);
        let Some(stream) = stream.and_then(|key| self.connection.streams.get(key)) else {
            return Ok(false);
        };
        let received = stream.received + frame::without_padding(header, payload)?.len() as u64;
        Ok(stream.declared.is_some_and(|declared| received < declared))
    }

    fn on_rst_stream(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Option<ClientReceived>, PeerError> {
        let is_idle = self.is_idle(header.stream);
        let reset = self.connection.on_rst_stream(header, payload, is_idle)?;
        Ok(reset.map(|(stream, code)| {
            let has_response = self
                .connection
                .streams
                .get(stream)
                .is_some_and(|stream| stream.has_response);
            if code == ErrorCode::REFUSED_STREAM && !has_response {
                return ClientReceived::Refused { stream };
            }
            ClientReceived::Reset {
                stream,
                code,
                by_us: false,
            }
        }))
    }

    /// Handles PING: the acknowledgement of a PING that this side sent is reported to the caller.
    fn on_ping(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientReceived>, PeerError> {
        let is_answer = header.has(flags::ACK) && header.stream == StreamId::CONNECTION;
        if let Ok(data) = payload.try_into()
            && is_answer
            && self.pings > 0
        {
            self.pings -= 1;
            return Ok(Some(ClientReceived::Pong { data }));
        }
        self.connection.on_ping(header, payload, out)?;
        Ok(None)
    }

    /// Handles GOAWAY: closes the streams above the last one that the server will process (RFC 9113 §6.8).
    fn on_goaway(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<ClientReceived, PeerError> {
        let (last, code) = self.connection.on_goaway(header, payload)?;
        // A later GOAWAY must not name a later stream than an earlier one. If it does, the streams above the earlier one
        // stay refused.
        let last = self.last.map_or(last, |before| before.min(last));
        self.last = Some(last);
        let refused: Vec<_> = self
            .connection
            .streams
            .iter_open()
            .filter(|(_, stream)| stream.id > last && !stream.has_response)
            .map(|(key, _)| key)
            .collect();
        for stream in &refused {
            self.connection.close(*stream);
        }
        // In reverse order, since [`Self::next_refused`] takes streams from the end of the list.
        self.refused.extend(refused.into_iter().rev());
        Ok(ClientReceived::GoAway { last, code })
    }

    /// Checks a PRIORITY frame (RFC 7540 §6.3) and ignores it, since the server has no say in what a client sends first.
    fn on_priority(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), PeerError> {
        if header.stream == StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(header.kind));
        }
        let Some((_, [])) = frame::parse_priority(payload) else {
            return Err(PeerError::FrameSize(header.kind));
        };
        self.connection.charge(cost::CONTROL);
        Ok(())
    }

    fn on_section(
        &mut self,
        section: &Section<'_>,
        head: &mut ClientResponse,
    ) -> Result<Option<ClientReceived>, Fault> {
        let id = section.stream;
        if !id.is_client() {
            return Err(PeerError::NotForClients.into());
        }
        if id > self.newest {
            return Err(PeerError::IdleStream(FrameType::HEADERS).into());
        }
        let found = self.connection.streams.find(id);
        let stream = found.and_then(|key| Some((key, self.connection.streams.get(key)?)));
        let kind = match stream {
            Some((_, stream)) if !stream.state.can_recv() => SectionKind::Discarded,
            Some((_, stream)) if stream.has_response => SectionKind::Trailers,
            Some(_) => SectionKind::Head,
            None => {
                self.connection.charge(cost::EMPTY);
                SectionKind::Discarded
            }
        };
        let stream = found.filter(|_| kind != SectionKind::Discarded);
        let mut fields = ResponseFields::new(kind, head, section.bytes.len());
        // The field section of a stream that has ended is decoded, too, to keep the HPACK tables of both sides the same
        // (RFC 9113 §4.3).
        self.connection.decoder.decode(&section.bytes, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        let checked = fields
            .finish()
            .map_err(|error| Fault::of_section(id, error));
        head.version = Version::Http2;
        head.section_len = u32::try_from(section.bytes.len()).unwrap_or(u32::MAX);
        let Some(stream) = stream else {
            return Err(Fault::Stream(id, StreamError::Closed));
        };
        let end_stream = section.flags & flags::END_STREAM != 0;
        let checked = checked.and_then(|()| {
            let error = match kind {
                SectionKind::Trailers => self.check_trailers(stream, end_stream),
                SectionKind::Head | SectionKind::Discarded => check_head(head, end_stream),
            };
            error.map_or(Ok(()), |error| Err(Fault::Stream(id, error)))
        });
        if let Err(fault) = checked {
            head.clear();
            return Err(fault);
        }
        if kind == SectionKind::Trailers {
            self.connection.on_end_recv(stream);
            return Ok(Some(ClientReceived::Trailers { stream }));
        }
        if head.status.is_informational() {
            self.connection.charge(cost::EMPTY);
            return Ok(Some(ClientReceived::Informational { stream }));
        }
        self.on_response(stream, head, end_stream)
            .map(Some)
            .map_err(|error| Fault::Stream(id, error))
    }

    fn check_trailers(&self, key: StreamKey, end_stream: bool) -> Option<StreamError> {
        let stream = self.connection.streams.get(key)?;
        if !end_stream || stream.is_tunnel {
            // Trailers must end the stream (RFC 9113 §8.1), and a tunnel has none (§8.5).
            return Some(StreamError::Malformed);
        }
        let is_short = stream
            .declared
            .is_some_and(|declared| declared != stream.received);
        is_short.then_some(StreamError::ContentLength)
    }

    /// Handles the head of the final response: determines how its content is delimited.
    fn on_response(
        &mut self,
        key: StreamKey,
        head: &mut ClientResponse,
        end_stream: bool,
    ) -> Result<ClientReceived, StreamError> {
        if let Some(stream) = self.connection.streams.get_mut(key) {
            let is_success = (200..300).contains(&head.status.as_u16());
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
                    None if end_stream => BodyLength::None,
                    None => BodyLength::Unknown,
                };
                if end_stream && head.length.is_some_and(|length| length > 0) {
                    return Err(StreamError::ContentLength);
                }
            }
        }
        if end_stream {
            self.connection.on_end_recv(key);
        }
        Ok(ClientReceived::Response {
            stream: key,
            end_stream,
        })
    }
}

/// The error of a response head that is malformed whatever the request was (RFC 9113 §8.1, §8.6).
fn check_head(head: &ClientResponse, end_stream: bool) -> Option<StreamError> {
    let is_wrong = head.status == StatusCode::SWITCHING_PROTOCOLS
        || (end_stream && head.status.is_informational());
    is_wrong.then_some(StreamError::Malformed)
}
