//! A simulated HTTP/2 client that keeps windows shut, stalls, resets requests and disconnects at random, as the seed
//! decides.

use std::collections::{BTreeMap, VecDeque};

use h2o_http2::frame::{self, FrameHeader, HEADER_LEN, PREFACE, flags};
use h2o_http2::hpack::{Decoder, Encoder, HpackError, Pseudo};
use h2o_http2::{ErrorCode, FrameType, StreamId};
use h2o_testkit::Random;

use super::wire::Wire;
use super::{Ended, Run};

pub(super) struct Http2 {
    wire: Wire,
    todo: VecDeque<usize>,
    streams: BTreeMap<u32, Stream>,
    next: u32,
    encoder: Encoder,
    decoder: Decoder,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes that the client may still send on the connection, by the server's flow-control window.
    window: i64,
    /// Bytes that the client has received on the connection and for which it has not sent WINDOW_UPDATE.
    owed: u32,
    scheme: &'static str,
    has_left: bool,
    is_going: bool,
}

#[derive(Debug)]
struct Stream {
    id: usize,
    window: i64,
    owed: u32,
    /// Bytes of the request body that the client has sent; the next field says whether it has sent END_STREAM.
    sent: usize,
    is_sent: bool,
    is_held: bool,
    /// Whether the client has opened the stream's window, so that the server may send the whole response.
    is_open: bool,
    received: usize,
    has_response: bool,
    is_received: bool,
}

/// The initial flow control window of a stream and of the connection, in bytes.
const WINDOW: i64 = 65_535;

impl Http2 {
    pub(super) fn new(
        wire: Wire,
        todo: VecDeque<usize>,
        has_tls: bool,
        initial_window: u32,
    ) -> Self {
        let mut out = PREFACE.to_vec();
        frame::settings(&mut out, &[(4, initial_window)]);
        Self {
            wire,
            todo,
            streams: BTreeMap::new(),
            next: 1,
            encoder: Encoder::new(),
            decoder: Decoder::new(4096),
            out,
            input: Vec::new(),
            window: WINDOW,
            owed: 0,
            scheme: if has_tls { "https" } else { "http" },
            has_left: false,
            is_going: false,
        }
    }

    pub(super) const fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "HTTP/2: to do {:?}, {} bytes to send, {} not parsed, window {}, left: {}, going: {}, ended: {}, in the kernel {:?}, streams {:#?}",
            self.todo,
            self.out.len(),
            self.input.len(),
            self.window,
            self.has_left,
            self.is_going,
            self.wire.is_ended,
            self.wire.in_kernel(),
            self.streams,
        )
    }

    pub(super) fn remaining(&mut self) -> Option<VecDeque<usize>> {
        let is_over = self.wire.is_ended && !self.has_left && !self.todo.is_empty();
        is_over.then(|| std::mem::take(&mut self.todo))
    }

    pub(super) fn act(&mut self, run: &mut Run, random: &mut Random) {
        match random.below(50) {
            0..10 => {
                self.begin(run);
            }
            10..18 => {
                let most = random.pick(&[1, 50, 5000, 100_000]);
                let len = random.below(most) + 1;
                self.produce(run, random, len);
            }
            18..28 => {
                let most = random.pick(&[1, 20, 3000, 200_000]);
                let _ = self.wire.send(&mut self.out, random.below(most) + 1);
            }
            28..40 => {
                let most = random.pick(&[1, 20, 3000, 200_000]);
                let _ = self.receive(run, random.below(most) + 1);
            }
            40..46 => self.credit(random),
            46 => self.ping(),
            47 => self.cancel(run, random),
            _ if random.once_in(20) => self.leave(run),
            _ => {}
        }
    }

    pub(super) fn cooperate(&mut self, run: &mut Run) -> bool {
        let mut has_moved = false;
        loop {
            while self.begin(run) {}
            self.open_windows();
            let open: Vec<u32> = self.streams.keys().copied().collect();
            for &stream in &open {
                self.produce_on(run, stream, 20_000);
            }
            let mut moved = self.wire.send(&mut self.out, usize::MAX);
            moved |= self.receive(run, 100_000);
            moved |= self.credit_all();
            if !moved {
                return has_moved;
            }
            has_moved = true;
        }
    }

    /// Opens the flow-control windows of all streams.
    fn open_windows(&mut self) {
        for (&stream, state) in &mut self.streams {
            if !state.is_received && !std::mem::replace(&mut state.is_open, true) {
                frame::window_update(&mut self.out, StreamId::new(stream), 1 << 20);
            }
        }
    }

    pub(super) fn ping(&mut self) {
        if !self.has_left {
            frame::ping(&mut self.out, 0, *b"simulate");
        }
    }

    /// Sends the encoded output.
    pub(super) fn flush(&mut self) {
        while self.wire.send(&mut self.out, usize::MAX) {}
    }

    pub(super) fn begin(&mut self, run: &Run) -> bool {
        if self.has_left || self.is_going || self.wire.is_ended || self.streams.len() >= 100 {
            return false;
        }
        let Some(id) = self.todo.pop_front() else {
            return false;
        };
        let plan = &run.plans[id];
        let method = match plan.upload {
            Some(_) => "POST",
            None if plan.is_head => "HEAD",
            None => "GET",
        };
        let path = format!("/{id}");
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in [
            (Pseudo::Method, method),
            (Pseudo::Scheme, self.scheme),
            (Pseudo::Authority, "sim.test"),
            (Pseudo::Path, &path),
        ] {
            self.encoder.pseudo(name, value.as_bytes(), &mut block);
        }
        let mut field = |name: &str, value: &str| {
            let name = h2o_http::Name::from_lower(name);
            self.encoder.field(name, value.as_bytes(), &mut block);
        };
        if let Some(len) = plan.upload.filter(|_| plan.is_announced) {
            field("content-length", &len.to_string());
        }
        if plan.expects {
            field("expect", "100-continue");
        }
        let end = if plan.upload.is_none() {
            flags::END_STREAM
        } else {
            0
        };
        let stream = self.next;
        self.next += 2;
        self.frame(FrameType::HEADERS, flags::END_HEADERS | end, stream, &block);
        self.streams.insert(
            stream,
            Stream {
                id,
                window: WINDOW,
                owed: 0,
                sent: 0,
                is_sent: plan.upload.is_none(),
                // The simulated HTTP/2 client does not wait for 100 (Continue).
                is_held: false,
                is_open: false,
                received: 0,
                has_response: false,
                is_received: false,
            },
        );
        true
    }

    fn frame(&mut self, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
        let head = frame::header(payload.len(), kind, flags, StreamId::new(stream));
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(payload);
    }

    fn produce(&mut self, run: &Run, random: &mut Random, most: usize) {
        let open: Vec<u32> = self.streams.keys().copied().collect();
        if !open.is_empty() {
            self.produce_on(run, random.pick(&open), most);
        }
    }

    pub(super) fn produce_on(&mut self, run: &Run, stream: u32, most: usize) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.is_sent || state.is_held || self.out.len() > 500_000 {
            return;
        }
        let plan = &run.plans[state.id];
        let total = plan.upload.unwrap_or(0);
        let window = state.window.min(self.window).max(0);
        let len = most
            .min(total - state.sent)
            .min(usize::try_from(window).unwrap())
            .min(16_384);
        let is_end = state.sent + len == total;
        if len == 0 && !is_end {
            return;
        }
        let piece: Vec<u8> = (state.sent..state.sent + len)
            .map(|at| plan.request_byte(at))
            .collect();
        state.sent += len;
        state.is_sent = is_end;
        state.window -= i64::try_from(len).unwrap();
        self.window -= i64::try_from(len).unwrap();
        let is_over = is_end && state.is_received;
        let end = if is_end { flags::END_STREAM } else { 0 };
        self.frame(FrameType::DATA, end, stream, &piece);
        if is_over {
            self.streams.remove(&stream);
        }
    }

    fn credit(&mut self, random: &mut Random) {
        let open: Vec<u32> = self.streams.keys().copied().collect();
        if random.once_in(3) || open.is_empty() {
            if self.owed > 0 {
                frame::window_update(&mut self.out, StreamId::CONNECTION, self.owed);
                self.owed = 0;
            }
            return;
        }
        let stream = random.pick(&open);
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        let extra = u32::try_from(random.pick(&[0, 1, 50, 20_000])).unwrap();
        let increment = std::mem::take(&mut state.owed) + extra;
        if increment > 0 {
            frame::window_update(&mut self.out, StreamId::new(stream), increment);
        }
    }

    /// Sends WINDOW_UPDATE for all bytes received. Returns whether there were any.
    pub(super) fn credit_all(&mut self) -> bool {
        let mut moved = false;
        if self.owed > 0 {
            frame::window_update(&mut self.out, StreamId::CONNECTION, self.owed);
            self.owed = 0;
            moved = true;
        }
        for (&stream, state) in &mut self.streams {
            if state.owed > 0 {
                frame::window_update(&mut self.out, StreamId::new(stream), state.owed);
                state.owed = 0;
                moved = true;
            }
        }
        moved
    }

    fn cancel(&mut self, run: &mut Run, random: &mut Random) {
        let open: Vec<u32> = self.streams.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let stream = random.pick(&open);
        frame::rst_stream(&mut self.out, StreamId::new(stream), ErrorCode::CANCEL);
        if let Some(state) = self.streams.remove(&stream)
            && !state.is_received
        {
            run.end(state.id, Ended::Cut);
        }
    }

    fn leave(&mut self, run: &mut Run) {
        self.has_left = true;
        for id in self.todo.drain(..) {
            run.end(id, Ended::Cut);
        }
        self.out.clear();
        self.wire.finish();
        self.wire.is_ended = true;
        self.end_all(run);
    }

    fn end_all(&mut self, run: &mut Run) {
        for (_, state) in std::mem::take(&mut self.streams) {
            if !state.is_received {
                run.end(state.id, Ended::Cut);
            }
        }
    }

    pub(super) fn receive(&mut self, run: &mut Run, most: usize) -> bool {
        let moved = self.wire.receive(&mut self.input, most);
        if self.has_left {
            self.input.clear();
            return moved;
        }
        while let Some(header) = FrameHeader::parse(&self.input)
            && self.input.len() >= HEADER_LEN + header.len
        {
            let frame: Vec<u8> = self.input.drain(..HEADER_LEN + header.len).collect();
            self.on_frame(run, &header, &frame[HEADER_LEN..]);
        }
        if self.wire.is_ended && moved {
            assert!(
                self.streams.is_empty() || run.times_out || self.is_going,
                "closed before the end of {:?}",
                self.streams.keys()
            );
            self.end_all(run);
            self.out.clear();
        }
        moved
    }

    fn on_frame(&mut self, run: &mut Run, header: &FrameHeader, payload: &[u8]) {
        let id = header.stream.get();
        let is_end = header.has(flags::END_STREAM);
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        match header.kind {
            FrameType::SETTINGS if !header.has(flags::ACK) => frame::settings_ack(&mut self.out),
            FrameType::WINDOW_UPDATE if id == 0 => self.window += i64::from(number(0)),
            FrameType::WINDOW_UPDATE => {
                if let Some(state) = self.streams.get_mut(&id) {
                    state.window += i64::from(number(0));
                }
            }
            FrameType::HEADERS => {
                let mut is_interim = false;
                self.decoder
                    .decode(payload, |field| {
                        if field.name.as_bytes() == b":status" {
                            is_interim = field.value.starts_with(b"1");
                            assert!(is_interim || field.value == b"200", "stream {id}");
                        }
                        Ok::<(), HpackError>(())
                    })
                    .unwrap();
                if let Some(state) = self.streams.get_mut(&id) {
                    state.is_held = false;
                    state.has_response |= !is_interim;
                }
                if is_end {
                    self.on_end(run, id);
                }
            }
            FrameType::DATA => {
                self.owed += u32::try_from(payload.len()).unwrap();
                if let Some(state) = self.streams.get_mut(&id) {
                    state.owed += u32::try_from(payload.len()).unwrap();
                    let plan = &run.plans[state.id];
                    for &byte in payload {
                        assert_eq!(byte, plan.response_byte(state.received), "stream {id}");
                        state.received += 1;
                    }
                }
                if is_end {
                    self.on_end(run, id);
                }
            }
            FrameType::RST_STREAM => {
                if let Some(state) = self.streams.remove(&id)
                    && !state.is_received
                {
                    assert!(
                        run.plans[state.id].fails() || run.times_out,
                        "stream {id} was reset: {}",
                        number(0)
                    );
                    run.end(state.id, Ended::Cut);
                }
            }
            FrameType::GOAWAY => {
                assert!(run.times_out, "GOAWAY {}", number(4));
                self.is_going = true;
            }
            _ => {}
        }
    }

    fn on_end(&mut self, run: &mut Run, id: u32) {
        let Some(state) = self.streams.get_mut(&id) else {
            return;
        };
        let plan = &run.plans[state.id];
        assert!(state.has_response);
        if !plan.is_head {
            assert_eq!(state.received, plan.response_len(), "stream {id}");
        }
        state.is_received = true;
        run.end(state.id, Ended::Complete);
        if state.is_sent {
            self.streams.remove(&id);
        }
    }
}
