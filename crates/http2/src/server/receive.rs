//! Receiving from the client: requests and their content, and the frames that concern the connection.

use std::ops::Range;
use std::time::Instant;

use h2o_http::field_section::{Refusal, RequestFields, RequestSection};
use h2o_http::priority::PriorityField;
use h2o_http::{RequestHead, Version};

use super::{Opening, ServerConnection, Shutdown};
use crate::connection::cost;
use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::field_block::Section;
use crate::frame::{self, FrameHeader, FrameType, HEADER_LEN, PREFACE, StreamId, flags};
use crate::hpack::path_string;
use crate::settings::DEFAULT_WINDOW;
use crate::stream::{Stream, StreamKey, StreamState};

/// The result of one step of [`ServerConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing can be reported before more bytes arrive.
    NeedMore,
    /// Nothing is to be reported, but [`ServerConnection::take_costs`] or [`ServerConnection::take_rejected`] returns
    /// something.
    Charged,
    /// The head of a request is complete and stored.
    Request {
        /// The stream of the request.
        stream: StreamKey,
        /// Whether the request has no content.
        end_stream: bool,
        /// The error to answer the request with, if it is refused.
        refusal: Option<Refusal>,
    },
    /// Content of a request, or bytes of a tunnel.
    Data {
        /// The stream of the request.
        stream: StreamKey,
        /// The range of the content in the input.
        data: Range<usize>,
        /// Whether the content is complete.
        end_stream: bool,
    },
    /// The trailers of a request are complete and stored as the fields of the head; the request is complete.
    Trailers {
        /// The stream of the request.
        stream: StreamKey,
    },
    /// The stream has ended: the client has reset it, or violated the protocol, so that the engine reset it.
    Reset {
        /// The stream, which the caller still has to release.
        stream: StreamKey,
        /// The error code of the RST_STREAM frame, received or sent.
        code: ErrorCode,
        /// Whether the engine has reset the stream because the client violated the protocol.
        by_us: bool,
    },
}

/// The result of one step, with the number of bytes that it consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStep {
    /// How many bytes the caller removes from the start of the input after using the result.
    pub taken: usize,
    /// The result of the step.
    pub received: Received,
}

impl ServerConnection {
    /// Makes one step over `input`, which is all bytes received and not yet removed. The caller removes `taken` bytes and
    /// calls again until [`Received::NeedMore`].
    ///
    /// # Errors
    /// Returns the client's violation of the protocol. A GOAWAY frame is in `out`; the caller sends it and closes the
    /// connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        head: &mut RequestHead,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, PeerError> {
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
        head: &mut RequestHead,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, PeerError> {
        let mut taken = 0;
        if self.opening != Opening::Done {
            taken = self.recv_preface(input, now, out)?;
        }
        let received = loop {
            if matches!(self.opening, Opening::Preface(_) | Opening::Failed) {
                break Received::NeedMore;
            }
            let Some((header, payload)) = self.connection.next_frame(&input[taken..])? else {
                break Received::NeedMore;
            };
            let at = taken + HEADER_LEN;
            taken = at + header.len;
            let received = match self.on_frame(&header, payload, head, now, out) {
                Ok(Some(Received::Data {
                    stream,
                    data,
                    end_stream,
                })) => Some(Received::Data {
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
                break Received::Charged;
            }
        };
        Ok(ServerStep { taken, received })
    }

    fn recv_preface(
        &mut self,
        input: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<usize, PeerError> {
        let Opening::Preface(had) = self.opening else {
            return Ok(0);
        };
        let due = &PREFACE[had..];
        let len = due.len().min(input.len());
        if input[..len] != due[..len] {
            return Err(PeerError::NotPreface);
        }
        if len < due.len() {
            self.opening = Opening::Preface(had + len);
        } else {
            self.opening = Opening::Settings;
            self.send_preface(now, out);
        }
        Ok(len)
    }

    #[inline]
    fn on_frame(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        head: &mut RequestHead,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<Option<Received>, Fault> {
        if self.opening == Opening::Settings {
            if header.kind != FrameType::SETTINGS || header.has(flags::ACK) {
                return Err(PeerError::SettingsExpected.into());
            }
            self.opening = Opening::Done;
        }
        match header.kind {
            FrameType::HEADERS => {
                let section = self.connection.on_headers(header, payload)?;
                self.note_stream(header.stream);
                match section {
                    Some(section) => self.on_section(&section, head),
                    None => Ok(None),
                }
            }
            FrameType::CONTINUATION => match self.connection.on_continuation(header, payload)? {
                Some(section) => self.on_section(&section, head),
                None => Ok(None),
            },
            FrameType::DATA => self.on_data(header, payload, out).map(Some),
            FrameType::WINDOW_UPDATE => {
                let is_idle = self.is_idle(header.stream);
                self.connection.on_window_update(header, payload, is_idle)?;
                Ok(None)
            }
            FrameType::RST_STREAM => {
                let is_idle = self.is_idle(header.stream);
                let reset = self.connection.on_rst_stream(header, payload, is_idle)?;
                Ok(reset.map(|(stream, code)| Received::Reset {
                    stream,
                    code,
                    by_us: false,
                }))
            }
            FrameType::PRIORITY => {
                self.connection.on_priority(header, payload, self.newest)?;
                Ok(None)
            }
            FrameType::SETTINGS => {
                self.connection.on_settings(header, payload, now, out)?;
                Ok(None)
            }
            FrameType::PING => {
                self.connection.on_ping(header, payload, out)?;
                Ok(None)
            }
            FrameType::GOAWAY => {
                self.connection.on_goaway(header, payload)?;
                Ok(None)
            }
            FrameType::PRIORITY_UPDATE => {
                self.on_priority_update(header, payload)?;
                Ok(None)
            }
            FrameType::PUSH_PROMISE => Err(PeerError::PushPromise.into()),
            _ => {
                // Frames of unknown types are ignored (RFC 9113 §4.1).
                self.connection.charge(cost::CONTROL);
                Ok(None)
            }
        }
    }

    /// Notes a HEADERS frame on the stream `id`. If the identifier is above all others of the client, the frame opens the
    /// stream, even if the frame turns out to be faulty (RFC 9113 §5.1.1).
    #[inline]
    fn note_stream(&mut self, id: StreamId) {
        let is_new = id > self.newest && id.is_client();
        self.is_opening_stream = is_new;
        // A stream that is ignored counts as opened, too: its content may follow and must not be taken for a frame on an
        // idle stream.
        if is_new {
            self.newest = id;
        }
    }

    /// Whether the stream was never opened.
    fn is_idle(&self, id: StreamId) -> bool {
        if id.is_client() {
            id > self.newest
        } else {
            id > self.promised
        }
    }

    /// Whether frames on the stream are discarded silently: the engine has reset the stream, or the client opened it after
    /// the last GOAWAY, and the client may not know yet (RFC 9113 §5.1, §6.8).
    fn is_discarded(&self, id: StreamId) -> bool {
        match self.shutdown {
            Shutdown::Draining { last, .. } if id > last && id.is_client() => true,
            Shutdown::Running | Shutdown::Announced { .. } | Shutdown::Draining { .. } => {
                self.connection.is_abandoned(id)
            }
        }
    }

    /// Resets a stream on which the client violated the protocol.
    fn on_stream_error(
        &mut self,
        id: StreamId,
        error: StreamError,
        out: &mut Vec<u8>,
    ) -> Option<Received> {
        if error == StreamError::Closed && self.is_discarded(id) {
            return None;
        }
        self.connection.charge(match error {
            StreamError::TooManyStreams => cost::RESET,
            _ => cost::CAUSED_RESET,
        });
        let code = error.code();
        frame::rst_stream(out, id, code);
        if error != StreamError::Closed {
            self.connection.abandon(id);
        }
        let Some(stream) = self.connection.streams.find(id) else {
            self.rejected = Some(code);
            return Some(Received::Charged);
        };
        self.connection.close(stream);
        Some(Received::Reset {
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
    ) -> Result<Received, Fault> {
        let newest = if header.stream.is_client() {
            self.newest
        } else {
            self.promised
        };
        let limit = self.settings.limit_request_body;
        let (stream, data) = self
            .connection
            .on_data(header, payload, newest, limit, out)?;
        let end_stream = header.has(flags::END_STREAM);
        if end_stream {
            self.connection.on_end_recv(stream);
        }
        // In a padded frame, the length of the padding is one byte before the content.
        let start = usize::from(header.has(flags::PADDED));
        Ok(Received::Data {
            stream,
            data: start..start + data.len(),
            end_stream,
        })
    }

    /// Handles a PRIORITY_UPDATE frame (RFC 9218 §7.1), from which the engine learns that the client uses the urgencies of
    /// RFC 9218.
    fn on_priority_update(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), PeerError> {
        if header.stream != StreamId::CONNECTION {
            return Err(PeerError::StreamIdOf(header.kind));
        }
        let Some((&id, value)) = payload.split_first_chunk::<4>() else {
            return Err(PeerError::FrameSize(header.kind));
        };
        let id = StreamId::new(u32::from_be_bytes(id));
        if id == StreamId::CONNECTION {
            return Err(PeerError::PriorityUpdate);
        }
        self.connection.charge(cost::CONTROL);
        let parameters = PriorityField::parse(value).into();
        self.connection
            .on_priority_update(id, parameters, self.newest)
    }

    #[inline]
    fn on_section(
        &mut self,
        section: &Section<'_>,
        head: &mut RequestHead,
    ) -> Result<Option<Received>, Fault> {
        let id = section.stream;
        if !id.is_client() {
            return Err(PeerError::HeadersStreamId.into());
        }
        if std::mem::take(&mut self.is_opening_stream) {
            return self.on_request(section, head);
        }
        if self.connection.streams.find(id).is_none() && self.is_discarded(id) {
            self.discard(section, head)?;
            return Ok(None);
        }
        self.on_trailers(section, head).map(Some)
    }

    #[inline]
    fn on_request(
        &mut self,
        section: &Section<'_>,
        head: &mut RequestHead,
    ) -> Result<Option<Received>, Fault> {
        let id = section.stream;
        let end_stream = section.flags & flags::END_STREAM != 0;
        let decoder = &mut self.connection.decoder;
        let generation = decoder.generation();
        let recalled = self.request_memo.recall(
            &section.bytes,
            end_stream,
            generation,
            decoder.scratch(),
            head,
        );
        let decoded = match recalled {
            Some(request) => Ok(request),
            None => self.decode_request(section, end_stream, head),
        };
        if let Shutdown::Draining { .. } = self.shutdown {
            // The request is ignored: after the final GOAWAY the client will send it again on another connection (RFC 9113
            // §6.8). A field block that cannot be decoded is an error even then, because it changes the state of HPACK (§4.3).
            head.clear();
            self.connection.charge(cost::EMPTY);
            return match decoded {
                Err(fault @ Fault::Connection(..)) => Err(fault),
                Ok(_) | Err(Fault::Stream(..)) => Ok(None),
            };
        }
        let request = match decoded {
            Ok(request) => request,
            Err(fault) => {
                head.clear();
                return Err(fault);
            }
        };
        if self.connection.streams.held() >= self.settings.max_streams {
            head.clear();
            return Err(Fault::Stream(id, StreamError::TooManyStreams));
        }
        if request.refusal == Some(Refusal::TooManyFields) {
            self.connection.charge(cost::BOMB);
        }
        let state = if end_stream {
            StreamState::HalfClosedRemote
        } else {
            StreamState::Open
        };
        let mut stream = Stream::new(
            id,
            state,
            self.connection.peer.initial_window_size,
            DEFAULT_WINDOW,
        );
        stream.declared = request.content_length;
        stream.is_tunnel = request.is_tunnel;
        if let Some(field) = request.priority {
            self.connection.scheduler.use_urgencies();
            stream.parameters = Some(field.into());
        }
        let stream = self.connection.insert(stream);
        if let Some(priority) = section.priority {
            self.connection.place_at(stream, priority)?;
        } else if self.connection.scheduler.has_placeholders() {
            // Earlier PRIORITY frames may already have given the stream a place in the scheduler, which it takes now.
            self.connection.node(stream);
        }
        Ok(Some(Received::Request {
            stream,
            end_stream,
            refusal: request.refusal,
        }))
    }

    fn decode_request(
        &mut self,
        section: &Section<'_>,
        end_stream: bool,
        head: &mut RequestHead,
    ) -> Result<RequestSection, Fault> {
        head.clear();
        head.version = Version::Http2;
        let bytes = &section.bytes[..];
        let generation = self.connection.decoder.generation();
        let mut fields = RequestFields::of_request(head, bytes.len());
        self.connection
            .decoder
            .decode(bytes, |field| fields.field(&field).map_err(PeerError::from))?;
        let request = fields
            .finish(end_stream)
            .map_err(|error| Fault::of_section(section.stream, error))?;
        // A section that changes the size of the dynamic table is not remembered: it would change the table again the next
        // time.
        let changes = matches!(bytes.first(), Some(0x20..=0x3f));
        if !changes && generation == self.connection.decoder.generation() {
            self.request_memo
                .note(bytes, generation, path_string, head, request);
        }
        Ok(request)
    }

    /// Decodes trailers that no handler reads, to keep the HPACK tables of both sides the same (RFC 9113 §4.3).
    fn discard(&mut self, section: &Section<'_>, head: &mut RequestHead) -> Result<(), PeerError> {
        self.connection.charge(cost::EMPTY);
        head.clear();
        let mut fields = RequestFields::of_trailers(head, section.bytes.len());
        self.connection.decoder.decode(&section.bytes, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        head.clear();
        Ok(())
    }

    fn on_trailers(
        &mut self,
        section: &Section<'_>,
        head: &mut RequestHead,
    ) -> Result<Received, Fault> {
        let id = section.stream;
        let stream = self
            .connection
            .streams
            .find(id)
            .ok_or(PeerError::HeadersOnClosed)?;
        let state = self.connection.streams.get(stream);
        let (can_recv, is_tunnel, declared, received) =
            state.map_or((false, false, None, 0), |stream| {
                (
                    stream.state.can_recv(),
                    stream.is_tunnel,
                    stream.declared,
                    stream.received,
                )
            });
        if !can_recv {
            return Err(PeerError::HeadersStreamId.into());
        }
        if is_tunnel {
            return Err(PeerError::TrailersInTunnel.into());
        }
        if section.flags & flags::END_STREAM == 0 {
            return Err(PeerError::TrailersWithoutEnd.into());
        }
        head.clear();
        let mut fields = RequestFields::of_trailers(head, section.bytes.len());
        self.connection.decoder.decode(&section.bytes, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        if fields.finish_trailers().is_some() {
            return Err(Fault::Stream(id, StreamError::Malformed));
        }
        if declared.is_some_and(|declared| declared != received) {
            return Err(Fault::Stream(id, StreamError::ContentLength));
        }
        self.connection.on_end_recv(stream);
        Ok(Received::Trailers { stream })
    }
}
