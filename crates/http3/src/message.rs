//! Reading and writing of messages, for both roles: the sequence of parts on a request stream (RFC 9114 §4.1).

use std::borrow::Cow;
use std::ops::Range;

use h2o_http::Headers;

use crate::connection::{Connection, LOST_DATAGRAMS, cost};
use crate::error::{Fault, PeerError, StreamError};
use crate::frame::{self, FrameType, Piece};
use crate::stream::{Stage, StreamKey};

/// A part of a message on a request stream.
#[derive(Debug)]
pub(crate) enum Part<'i> {
    /// No part is complete: more bytes must arrive, or the stream has nothing more to report.
    NeedMore,
    /// A field section waits for insertions into the QPACK table.
    Blocked,
    /// The input had nothing to report, such as an unknown frame; the caller reads on.
    Skipped,
    /// A field section, and whether the stream ends after it.
    Section(Cow<'i, [u8]>, bool),
    /// Content, as a range of the input, and whether the stream ends after it.
    Data(Range<usize>, bool),
    /// The end of the message, unless it was reported with the last part.
    End,
}

impl Connection {
    /// Removes the next part of a stream from `rest`, which is the unread end of an input of `len` bytes. `has_ended` tells
    /// whether the stream ends after the input. `limit` is the maximum length of the content in bytes, which does not apply
    /// to a tunnel.
    #[inline]
    pub(crate) fn next_part<'i>(
        &mut self,
        key: StreamKey,
        rest: &mut &'i [u8],
        len: usize,
        has_ended: bool,
        limit: u64,
        on_promise: PeerError,
    ) -> Result<Part<'i>, Fault> {
        let can_recv = self
            .streams
            .get(key)
            .is_some_and(|stream| stream.state.can_recv());
        if !can_recv {
            *rest = &[];
            return Ok(Part::NeedMore);
        }
        match self.take_blocked(key) {
            Err(_) => return Ok(Part::Blocked),
            Ok(Some(section)) => {
                let is_end = has_ended && rest.is_empty();
                return Ok(Part::Section(section.into(), is_end));
            }
            Ok(None) => {}
        }
        let piece = self.next_piece(key, rest, limit, on_promise)?;
        let is_end = has_ended && rest.is_empty();
        match piece {
            None if is_end => self.on_end(key),
            None => Ok(Part::NeedMore),
            Some(Piece::Skipped) => {
                self.charge(cost::CONTROL);
                Ok(Part::Skipped)
            }
            Some(Piece::Frame(_, section)) => Ok(Part::Section(section, is_end)),
            Some(Piece::Data([])) => {
                self.charge(cost::EMPTY);
                Ok(Part::Skipped)
            }
            Some(Piece::Data(data)) => {
                if let Some(stream) = self.streams.get_mut(key) {
                    stream.received += data.len() as u64;
                }
                let end = len - rest.len();
                // If the message must not end here, the next call reports the error, so that the content is reported
                // however the input was split.
                let is_end = is_end && self.check_end(key).is_ok();
                if is_end {
                    self.end_recv(key);
                }
                Ok(Part::Data(end - data.len()..end, is_end))
            }
        }
    }

    /// Handles the end of the stream where no part of the message is left.
    fn on_end(&mut self, key: StreamKey) -> Result<Part<'static>, Fault> {
        self.check_end(key)?;
        self.end_recv(key);
        let has_trailers = self
            .streams
            .get(key)
            .is_some_and(|stream| stream.stage == Stage::Trailers);
        // If there were trailers, they have already told the caller that the content is complete.
        Ok(if has_trailers {
            Part::NeedMore
        } else {
            Part::End
        })
    }

    /// Checks that the message on a stream may end with the bytes received so far: after the head, between two frames, and
    /// with all of its content.
    pub(crate) fn check_end(&self, key: StreamKey) -> Result<(), Fault> {
        let Some(stream) = self.streams.get(key) else {
            return Ok(());
        };
        if !stream.reader.is_between_frames() {
            return Err(PeerError::IncompleteFrame.into());
        }
        if stream.stage == Stage::Head {
            return Err(StreamError::HeadMissing.into());
        }
        if stream
            .declared
            .is_some_and(|declared| stream.received != declared)
        {
            return Err(StreamError::ContentTooShort.into());
        }
        Ok(())
    }

    /// Writes the header of a DATA frame with `len` bytes of content. If `end_stream` is true, the frame is the last of the
    /// message. Returns false if nothing can be sent on the stream. For a `len` of 0 nothing is written; only the end is
    /// noted.
    #[inline]
    pub(crate) fn begin_data(
        &mut self,
        key: StreamKey,
        len: u64,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(key) else {
            return false;
        };
        if !stream.state.can_send() {
            return false;
        }
        stream.sent += len;
        if len > 0 {
            frame::header(FrameType::DATA, len, out);
        }
        if end_stream {
            self.end_send(key);
        }
        true
    }

    /// Ends the message, with `trailers` if there are any.
    pub(crate) fn finish(&mut self, key: StreamKey, trailers: Option<&Headers>, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        if !stream.state.can_send() {
            return;
        }
        if let Some(trailers) = trailers.filter(|_| !stream.is_tunnel) {
            let id = stream.id;
            self.write_section(id, None, trailers, out);
        }
        self.end_send(key);
    }

    /// Finds the stream of the tunnel that a datagram belongs to, and the position of the payload in the datagram (RFC 9297
    /// §2.1). Returns `None` if the tunnel has ended or is not open yet.
    pub(crate) fn on_datagram(
        &self,
        datagram: &[u8],
    ) -> Result<Option<(StreamKey, usize)>, PeerError> {
        let Some((quarter, payload)) = crate::varint::decode(datagram) else {
            return Err(PeerError::Datagram);
        };
        if quarter > crate::varint::MAX / 4 {
            return Err(PeerError::Datagram);
        }
        let id = crate::StreamId::new(quarter * 4);
        let is_meant = |stream: &crate::stream::Stream| {
            stream.is_reported
                && stream.is_tunnel
                && stream.state.can_recv()
                && stream.datagram_id == quarter
        };
        let found = self.streams.find(id);
        let mut key = found.filter(|&key| self.streams.get(key).is_some_and(is_meant));
        if key.is_none() && self.has_flow_ids {
            let mut streams = self.streams.iter();
            key = streams.find_map(|(key, stream)| is_meant(stream).then_some(key));
        }
        Ok(key.map(|key| (key, datagram.len() - payload.len())))
    }

    /// Charges the peer for datagrams that belong to no tunnel. A few of them are normal: they arrive after the end of any
    /// tunnel.
    pub(crate) fn charge_lost_datagram(&mut self) {
        self.lost_datagrams = self.lost_datagrams.wrapping_add(1);
        if self.lost_datagrams.is_multiple_of(LOST_DATAGRAMS) {
            self.charge(cost::CONTROL);
        }
    }

    /// Writes the start of a datagram of a tunnel, which names the tunnel. Returns false if the peer does not accept
    /// datagrams, if its settings have not arrived, or if there is no tunnel.
    pub(crate) fn begin_datagram(&self, key: StreamKey, out: &mut Vec<u8>) -> bool {
        let takes = self.peer.is_some_and(|settings| settings.datagrams);
        let Some(stream) = self.streams.get(key) else {
            return false;
        };
        if !takes || !stream.is_tunnel || !stream.state.can_send() {
            return false;
        }
        crate::varint::encode(stream.datagram_id, out);
        true
    }
}
