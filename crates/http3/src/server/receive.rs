//! Receiving from the client: requests and their content, the control stream, and datagrams.

use std::ops::Range;

use h2o_http::field_section::{Refusal, RequestFields, RequestSection};
use h2o_http::priority::PriorityParameters;
use h2o_http::{Known, Method, RequestHead, Scheme, Version};

use super::ServerConnection;
use crate::connection::{Control, cost};
use crate::error::{ErrorCode, Fault, PeerError, StreamError};
use crate::frame::FrameType;
use crate::local::LocalStream;
use crate::message::Part;
use crate::qpack::{Decoded, path_string};
use crate::stream::{Stage, StreamKey};
use crate::stream_id::StreamId;
use crate::varint;

/// The result of one step of [`ServerConnection::receive`] over the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// All input is consumed. Nothing can be reported before more bytes arrive.
    NeedMore,
    /// Nothing is to be reported, but [`ServerConnection::take_costs`] or [`ServerConnection::take_rejected`] returns
    /// something.
    Charged,
    /// A field section refers to entries of the QPACK table that have not arrived. The input of the stream must wait until
    /// [`ServerConnection::poll_unblocked`] returns the stream.
    Blocked,
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
        /// The error code of the RESET_STREAM or STOP_SENDING frame, received or sent.
        code: ErrorCode,
        /// Whether the engine has reset the stream because the client violated the protocol.
        by_us: bool,
    },
    /// The client has announced its settings. If they allow HTTP datagrams, these may be sent from now on.
    Settings,
    /// The client has changed the priority of a stream by PRIORITY_UPDATE.
    Priority {
        /// The stream whose priority has changed.
        stream: StreamKey,
    },
    /// The client has sent GOAWAY.
    GoAway,
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
    /// Makes one step over `input`: the bytes received on the stream `id` and not yet removed. `has_ended` tells whether
    /// the stream ends after them. The caller removes `taken` bytes and calls again until [`Received::NeedMore`] or
    /// [`Received::Blocked`].
    ///
    /// The caller should report the end of a stream together with the last bytes, if it knows the end by then: only so the
    /// engine can report that a request has no content together with its head.
    ///
    /// # Errors
    /// Returns the client's violation of the protocol. The caller closes the connection.
    pub fn receive(
        &mut self,
        id: StreamId,
        input: &[u8],
        has_ended: bool,
        head: &mut RequestHead,
    ) -> Result<ServerStep, PeerError> {
        let all = ServerStep {
            taken: input.len(),
            received: Received::NeedMore,
        };
        if self.connection.has_failed {
            return Ok(all);
        }
        let step = if id.is_unidirectional() {
            self.receive_unidirectional(id, input, has_ended)
        } else {
            match self.connection.streams.find(id) {
                Some(key) => self.receive_request(key, input, has_ended, head),
                // The stream was rejected, or is released: its input is dropped.
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
    ) -> Result<ServerStep, PeerError> {
        let len = input.len();
        let received = loop {
            let (control, rest) = self.connection.on_unidirectional(id, input, has_ended)?;
            input = rest;
            let received = match control {
                None => break Received::NeedMore,
                Some(control) => self.on_control(control)?,
            };
            if let Some(received) = received {
                break received;
            }
            if self.connection.is_charged() {
                break Received::Charged;
            }
        };
        Ok(ServerStep {
            taken: len - input.len(),
            received,
        })
    }

    fn on_control(&mut self, control: Control) -> Result<Option<Received>, PeerError> {
        match control {
            Control::Settings => Ok(Some(Received::Settings)),
            Control::GoAway(_) => Ok(Some(Received::GoAway)),
            Control::MaxPushId(id) => {
                // The client must not lower the limit of push identifiers (RFC 9114 §7.2.7).
                if self.max_push_id.is_some_and(|before| id < before) {
                    return Err(PeerError::IdInvalid);
                }
                self.max_push_id = Some(id);
                Ok(None)
            }
            Control::Priority(id, priority) => self.on_priority_update(id, priority),
        }
    }

    /// Handles PRIORITY_UPDATE for a request stream (RFC 9218 §7.2).
    fn on_priority_update(
        &mut self,
        id: StreamId,
        priority: PriorityParameters,
    ) -> Result<Option<Received>, PeerError> {
        if let Some(key) = self.connection.streams.find(id) {
            self.connection.prioritize(key, priority);
            let Some(stream) = self.connection.streams.get_mut(key) else {
                return Ok(None);
            };
            stream.has_priority = true;
            return Ok(stream
                .is_reported
                .then_some(Received::Priority { stream: key }));
        }
        if id < self.next {
            return Ok(None); // The stream has ended.
        }
        // The client cannot open a stream from this bound on: QUIC's limit of streams, which is counted from the streams that
        // have ended, is never above the bound.
        if id.get() >= self.next.get() + 4 * u64::from(self.settings.max_streams) {
            return Err(PeerError::IdInvalid);
        }
        let next = self.next.get();
        self.early
            .keep(id.get(), priority, |id| id >= next)
            .map_err(|_| PeerError::Overdrawn)?;
        Ok(None)
    }

    fn receive_request(
        &mut self,
        key: StreamKey,
        input: &[u8],
        has_ended: bool,
        head: &mut RequestHead,
    ) -> Result<ServerStep, PeerError> {
        let mut rest = input;
        let received = loop {
            let found = self.next_received(key, &mut rest, input.len(), has_ended, head);
            match found {
                Ok(Some(received)) => break received,
                Ok(None) if self.connection.is_charged() => break Received::Charged,
                Ok(None) => {}
                Err(Fault::Connection(error)) => return Err(error),
                Err(Fault::Stream(error)) => {
                    rest = &[];
                    break self.on_stream_error(key, error);
                }
            }
        };
        let taken = input.len() - rest.len();
        if let Some(stream) = self.connection.streams.get_mut(key) {
            stream.taken += taken as u64;
        }
        Ok(ServerStep { taken, received })
    }

    /// Handles the next part of a request stream.
    fn next_received(
        &mut self,
        key: StreamKey,
        rest: &mut &[u8],
        len: usize,
        has_ended: bool,
        head: &mut RequestHead,
    ) -> Result<Option<Received>, Fault> {
        let on_promise = PeerError::UnexpectedFrame(FrameType::PUSH_PROMISE);
        let limit = self.settings.limit_request_body;
        let part = self
            .connection
            .next_part(key, rest, len, has_ended, limit, on_promise)?;
        Ok(Some(match part {
            Part::NeedMore => Received::NeedMore,
            Part::Blocked => Received::Blocked,
            Part::Skipped => return Ok(None),
            Part::Section(section, is_end) => self.on_section(key, section, is_end, head)?,
            Part::Data(data, end_stream) => Received::Data {
                stream: key,
                data,
                end_stream,
            },
            Part::End => Received::Data {
                stream: key,
                data: len..len,
                end_stream: true,
            },
        }))
    }

    /// Resets a stream on which the client violated the protocol.
    fn on_stream_error(&mut self, key: StreamKey, error: StreamError) -> Received {
        let code = error.code();
        self.connection.charge(cost::CAUSED_RESET);
        self.connection.abort(key, code, code);
        let is_reported = self
            .connection
            .streams
            .get(key)
            .is_some_and(|stream| stream.is_reported);
        if is_reported {
            return Received::Reset {
                stream: key,
                code,
                by_us: true,
            };
        }
        self.connection.remove(key);
        self.rejected = Some(code);
        Received::Charged
    }

    #[inline]
    fn on_section(
        &mut self,
        key: StreamKey,
        section: std::borrow::Cow<'_, [u8]>,
        is_end: bool,
        head: &mut RequestHead,
    ) -> Result<Received, Fault> {
        let Some(stream) = self.connection.streams.get(key) else {
            return Ok(Received::NeedMore);
        };
        let found = match stream.stage {
            Stage::Head => self.on_request(key, stream.id, &section, is_end, head)?,
            Stage::Content | Stage::Trailers => self.on_trailers(key, stream.id, &section, head)?,
        };
        match found {
            Ok(received) => Ok(received),
            Err(required) => {
                self.connection.block(key, required, section.into_owned())?;
                Ok(Received::Blocked)
            }
        }
    }

    /// Decodes the field section that opens a request. `Ok(Err(count))` means that the section has to wait until there were
    /// `count` insertions into the QPACK table.
    #[inline]
    fn on_request(
        &mut self,
        key: StreamKey,
        id: StreamId,
        section: &[u8],
        is_end: bool,
        head: &mut RequestHead,
    ) -> Result<Result<Received, u64>, Fault> {
        let decoder = &mut self.connection.decoder;
        let generation = decoder.generation(section);
        let recalled = self.memos.as_ref().and_then(|memos| {
            (memos.request).recall(section, is_end, generation, decoder.scratch(), head)
        });
        let decoded = match recalled {
            Some(request) => {
                let (decoder, out) = self.connection.decoding();
                decoder.repeat(id, section, out).map_err(PeerError::from)?;
                Ok(Ok(request))
            }
            None => self.decode_request(id, section, is_end, head),
        };
        let mut request = match decoded {
            Ok(Ok(request)) => request,
            Ok(Err(required)) => {
                head.clear();
                return Ok(Err(required));
            }
            Err(fault) => {
                head.clear();
                return Err(fault);
            }
        };
        self.connection.local(LocalStream::QpackDecoder).check()?;
        let length = request.content_length.unwrap_or(0);
        if length > self.settings.limit_request_body && !request.is_tunnel {
            request.refusal.get_or_insert(Refusal::ContentTooLarge);
        }
        if request.refusal == Some(Refusal::TooManyFields) {
            self.connection.charge(cost::BOMB);
        }
        if let Some(stream) = self.connection.streams.get_mut(key) {
            stream.stage = Stage::Content;
            stream.head_len = u32::try_from(section.len()).unwrap_or(u32::MAX);
            stream.is_reported = true;
            stream.declared = request.content_length.filter(|_| !request.is_tunnel);
            stream.is_tunnel = request.is_tunnel;
            if head.method == Method::ConnectUdp
                && let Some(id) = head.headers.get(Known::DatagramFlowId)
                && let Some(id) = flow_id(id)
            {
                stream.datagram_id = id;
                self.connection.has_flow_ids = true;
            }
            if !stream.has_priority {
                stream.priority = match request.priority {
                    Some(field) => field.into(),
                    // H2O compatibility: tunnels are `incremental`, so that they take turns with other streams, since both
                    // of their ends wait for each byte.
                    None => PriorityParameters {
                        incremental: request.is_tunnel,
                        ..PriorityParameters::DEFAULT
                    },
                };
            }
        }
        if is_end {
            self.connection.end_recv(key);
        }
        Ok(Ok(Received::Request {
            stream: key,
            end_stream: is_end,
            refusal: request.refusal,
        }))
    }

    fn decode_request(
        &mut self,
        id: StreamId,
        section: &[u8],
        is_end: bool,
        head: &mut RequestHead,
    ) -> Result<Result<RequestSection, u64>, Fault> {
        head.clear();
        head.version = Version::Http3;
        let (decoder, out) = self.connection.decoding();
        let mut fields = RequestFields::of_request(head, decoder.text_len(section));
        let decoded = decoder.decode(id, section, out, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        if let Decoded::Blocked(required) = decoded {
            return Ok(Err(required));
        }
        let request = fields.finish(is_end);
        match request {
            Ok(request) => {
                let generation = self.connection.decoder.generation(section);
                let memo = &mut self.memos.get_or_insert_default().request;
                memo.note(section, generation, path_string, head, request);
                Ok(Ok(request))
            }
            Err(_) if head.method == Method::ConnectUdp || head.scheme == Scheme::Masque => {
                Err(PeerError::Masque.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn on_trailers(
        &mut self,
        key: StreamKey,
        id: StreamId,
        section: &[u8],
        head: &mut RequestHead,
    ) -> Result<Result<Received, u64>, Fault> {
        head.clear();
        let (decoder, out) = self.connection.decoding();
        let mut fields = RequestFields::of_trailers(head, decoder.text_len(section));
        let decoded = decoder.decode(id, section, out, |field| {
            fields.field(&field).map_err(PeerError::from)
        })?;
        if let Decoded::Blocked(required) = decoded {
            return Ok(Err(required));
        }
        if fields.finish_trailers().is_some() {
            return Err(StreamError::Malformed.into());
        }
        self.connection.local(LocalStream::QpackDecoder).check()?;
        self.connection.check_end(key)?;
        if let Some(stream) = self.connection.streams.get_mut(key) {
            stream.stage = Stage::Trailers;
        }
        Ok(Ok(Received::Trailers { stream: key }))
    }

    /// Handles RESET_STREAM: the client sends nothing more on the stream. Returns [`Received::Reset`] if the request on the
    /// stream was reported.
    ///
    /// # Errors
    /// Returns [`PeerError::ClosedCriticalStream`] if the stream is the client's control stream or one of its QPACK
    /// streams.
    pub fn on_reset(
        &mut self,
        id: StreamId,
        code: ErrorCode,
    ) -> Result<Option<Received>, PeerError> {
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
        // The reset is charged even if the response was already complete: the client has made the server work for nothing.
        self.connection.charge(cost::RESET);
        let Some(key) = self.connection.streams.find(id) else {
            return Ok(None);
        };
        if !self.state(key).can_recv() {
            return Ok(None);
        }
        Ok(self.cancel(key, code))
    }

    /// Handles STOP_SENDING: the client does not want what the server sends on the stream. Returns [`Received::Reset`] if
    /// the request on the stream was reported.
    ///
    /// # Errors
    /// Returns [`PeerError::ClosedCriticalStream`] if the stream is a unidirectional one.
    pub fn on_stop_sending(
        &mut self,
        id: StreamId,
        code: ErrorCode,
    ) -> Result<Option<Received>, PeerError> {
        if self.connection.has_failed {
            return Ok(None);
        }
        if id.is_unidirectional() {
            return self.failed(PeerError::ClosedCriticalStream);
        }
        self.connection.charge(cost::RESET);
        let Some(key) = self.connection.streams.find(id) else {
            return Ok(None);
        };
        if !self.state(key).can_send() {
            return Ok(None);
        }
        Ok(self.cancel(key, code))
    }

    /// Ends the stream of a request that the client has cancelled.
    fn cancel(&mut self, key: StreamKey, code: ErrorCode) -> Option<Received> {
        let ours = ErrorCode::REQUEST_CANCELLED;
        self.connection.abort(key, ours, ours);
        let stream = self.connection.streams.get(key)?;
        if !stream.is_reported {
            self.connection.remove(key);
            return None;
        }
        Some(Received::Reset {
            stream: key,
            code,
            by_us: false,
        })
    }

    /// Finds the tunnel of an HTTP datagram (RFC 9297 §2.1). Returns the stream, and the position of the payload in
    /// `datagram`. Returns `None` if the tunnel has ended or is not open yet: the datagram is dropped then.
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
            Ok(found) => {
                if found.is_none() {
                    self.connection.charge_lost_datagram();
                }
                Ok(found)
            }
            Err(error) => self.failed(error),
        }
    }
}

/// The number at the start of the field `datagram-flow-id` (draft 03 of RFC 9298), which parameters may follow.
fn flow_id(field: &[u8]) -> Option<u64> {
    let digits = field
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let id: u64 = std::str::from_utf8(&field[..digits]).ok()?.parse().ok()?;
    (id <= varint::MAX / 4).then_some(id)
}
