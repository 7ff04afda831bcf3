//! A simulated HTTP/1 client that pipelines, stalls and disconnects at random, as the seed decides.

use std::collections::VecDeque;

use h2o_testkit::Random;

use super::wire::Wire;
use super::{Ended, Run};

pub(super) struct Http1 {
    wire: Wire,
    todo: VecDeque<usize>,
    /// The request whose body the client is sending, and how many bytes of the body it has sent.
    sending: Option<(usize, usize)>,
    /// Whether the client waits for 100 (Continue) before it sends the body.
    is_held: bool,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Requests whose responses are not complete, in the order in which they were sent.
    awaited: VecDeque<usize>,
    response: Option<Response>,
    /// Whether the server has sent `Connection: close`, so that no further request can be sent.
    is_closing: bool,
    /// Whether the server may close the connection now without that being an error.
    may_close: bool,
    has_left: bool,
}

struct Response {
    len: usize,
    framing: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    /// The body of the response is in chunks; this many bytes are left of the current one.
    Chunk(usize),
    ChunkHead,
    ToTheEnd,
}

impl Http1 {
    pub(super) fn new(wire: Wire, todo: VecDeque<usize>) -> Self {
        Self {
            wire,
            todo,
            sending: None,
            is_held: false,
            out: Vec::new(),
            input: Vec::new(),
            awaited: VecDeque::new(),
            response: None,
            is_closing: false,
            may_close: false,
            has_left: false,
        }
    }

    pub(super) const fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(super) fn describe(&self) -> String {
        let response = self.response.as_ref();
        format!(
            "HTTP/1: to do {:?}, sending {:?} (held: {}), {} bytes to send, {} not parsed, awaited {:?}, response {:?}, may close: {}, left: {}, ended: {}, in the kernel {:?}",
            self.todo,
            self.sending,
            self.is_held,
            self.out.len(),
            self.input.len(),
            self.awaited,
            response.map(|response| (response.len, response.framing)),
            self.may_close,
            self.has_left,
            self.wire.is_ended,
            self.wire.in_kernel(),
        )
    }

    /// If the connection is closed: returns the requests that the client has not sent on it, so that another connection can send
    /// them.
    pub(super) fn remaining(&mut self) -> Option<VecDeque<usize>> {
        let is_over = self.wire.is_ended && !self.has_left && !self.todo.is_empty();
        is_over.then(|| std::mem::take(&mut self.todo))
    }

    /// Takes one random action, such as to send, to receive or to disconnect.
    pub(super) fn act(&mut self, run: &mut Run, random: &mut Random) {
        match random.below(40) {
            0..8 => self.begin(run),
            8..16 => {
                let most = random.pick(&[1, 50, 5000, 100_000]);
                self.produce(run, random.below(most) + 1);
            }
            16..27 => {
                let most = random.pick(&[1, 20, 3000, 200_000]);
                self.wire.send(&mut self.out, random.below(most) + 1);
            }
            27..39 => {
                let most = random.pick(&[1, 20, 3000, 200_000]);
                self.receive(run, random.below(most) + 1);
            }
            _ if random.once_in(3) => self.leave(run, random.once_in(2)),
            _ => {}
        }
    }

    /// Sends and receives as many bytes as possible. Returns whether any moved.
    pub(super) fn cooperate(&mut self, run: &mut Run) -> bool {
        let mut has_moved = false;
        loop {
            self.begin(run);
            self.produce(run, 10_000);
            let mut moved = self.wire.send(&mut self.out, usize::MAX);
            moved |= self.receive(run, 100_000);
            if !moved {
                return has_moved;
            }
            has_moved = true;
        }
    }

    /// Sends the encoded output.
    pub(super) fn flush(&mut self) {
        while self.wire.send(&mut self.out, usize::MAX) {}
    }

    /// Sends the head of the next request, if the client can send one now.
    pub(super) fn begin(&mut self, run: &Run) {
        let is_over = self.is_closing || self.has_left || self.wire.is_ended;
        if is_over || self.sending.is_some() || self.awaited.len() >= 4 {
            return;
        }
        let Some(id) = self.todo.pop_front() else {
            return;
        };
        let plan = &run.plans[id];
        let method = match plan.upload {
            Some(_) => "POST",
            None if plan.is_head => "HEAD",
            None => "GET",
        };
        let mut head = format!("{method} /{id} HTTP/1.1\r\nhost: sim.test\r\n");
        if let Some(len) = plan.upload {
            if plan.is_announced {
                head += &format!("content-length: {len}\r\n");
            } else {
                head += "transfer-encoding: chunked\r\n";
            }
            if plan.expects {
                head += "expect: 100-continue\r\n";
                self.is_held = len > 0 || !plan.is_announced;
            }
            self.sending = Some((id, 0));
        }
        head += "\r\n";
        self.out.extend_from_slice(head.as_bytes());
        self.awaited.push_back(id);
        self.produce(run, 0);
    }

    /// Appends up to `most` bytes of the request body to the output.
    pub(super) fn produce(&mut self, run: &Run, most: usize) {
        let Some((id, at)) = self.sending else {
            return;
        };
        // The client does not begin a new chunk of the body while much output is waiting.
        if self.is_held || self.out.len() > 500_000 {
            return;
        }
        let plan = &run.plans[id];
        let total = plan.upload.unwrap_or(0);
        let end = (at + most).min(total);
        if end > at {
            if !plan.is_announced {
                self.out
                    .extend_from_slice(format!("{:x}\r\n", end - at).as_bytes());
            }
            self.out.extend((at..end).map(|at| plan.request_byte(at)));
            if !plan.is_announced {
                self.out.extend_from_slice(b"\r\n");
            }
        }
        self.sending = Some((id, end));
        if end == total {
            if !plan.is_announced {
                self.out.extend_from_slice(b"0\r\n\r\n");
            }
            self.sending = None;
        }
    }

    fn leave(&mut self, run: &mut Run, is_half: bool) {
        self.has_left = true;
        self.out.clear();
        self.sending = None;
        if is_half {
            // Only the client's direction ends: a response 100 (Continue) may still come.
            self.wire.finish();
        } else {
            self.wire.is_ended = true;
            self.wire.finish();
        }
        for id in self.awaited.drain(..).chain(self.todo.drain(..)) {
            run.end(id, Ended::Cut);
        }
        self.response = None;
    }

    pub(super) fn receive(&mut self, run: &mut Run, most: usize) -> bool {
        let moved = self.wire.receive(&mut self.input, most);
        if self.has_left {
            self.input.clear();
            return moved;
        }
        while self.step(run) {}
        if self.wire.is_ended && moved {
            self.on_end(run);
        }
        moved
    }

    /// Reads the next part of a response from the input. Returns whether a part was complete.
    fn step(&mut self, run: &mut Run) -> bool {
        let Some(&id) = self.awaited.front() else {
            assert!(self.input.is_empty(), "bytes after the last response");
            return false;
        };
        let Some(response) = &mut self.response else {
            return self.head(run, id);
        };
        let plan = &run.plans[id];
        let mut take = |input: &mut Vec<u8>, most: usize| {
            let len = input.len().min(most);
            for byte in input.drain(..len) {
                assert_eq!(byte, plan.response_byte(response.len), "response {id}");
                response.len += 1;
            }
            len
        };
        match response.framing {
            Framing::Length(0) => self.on_complete(run, id),
            Framing::Length(left) => {
                let len = take(&mut self.input, left);
                response.framing = Framing::Length(left - len);
                return len > 0;
            }
            Framing::ToTheEnd => return take(&mut self.input, usize::MAX) > 0,
            Framing::Chunk(0) => {
                if self.input.len() < 2 {
                    return false;
                }
                self.input.drain(..2);
                response.framing = Framing::ChunkHead;
            }
            Framing::Chunk(left) => {
                let len = take(&mut self.input, left);
                response.framing = Framing::Chunk(left - len);
                return len > 0;
            }
            Framing::ChunkHead => {
                let Some(end) = self.input.windows(2).position(|end| end == b"\r\n") else {
                    return false;
                };
                let len = std::str::from_utf8(&self.input[..end]).unwrap();
                let Ok(len) = usize::from_str_radix(len, 16) else {
                    assert!(plan.fails(), "chunks of response {id}");
                    return false;
                };
                if len > 0 {
                    self.input.drain(..end + 2);
                    response.framing = Framing::Chunk(len);
                } else if self.input.len() < end + 4 {
                    return false;
                } else {
                    self.input.drain(..end + 4);
                    self.on_complete(run, id);
                }
            }
        }
        true
    }

    fn head(&mut self, run: &Run, id: usize) -> bool {
        let Some(end) = self.input.windows(4).position(|end| end == b"\r\n\r\n") else {
            return false;
        };
        let head: Vec<u8> = self.input.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let is_mine = self.sending.is_some_and(|(sending, _)| sending == id);
        if head.starts_with("http/1.1 100") {
            if is_mine {
                self.is_held = false;
            }
            return true;
        }
        assert!(head.starts_with("http/1.1 200"), "response {id}: {head}");
        if is_mine && self.is_held {
            // The final response came in place of 100 (Continue): the server does not want the body.
            self.is_held = false;
            self.sending = None;
            self.is_closing = true;
        }
        self.is_closing |= head.contains("connection: close");
        self.may_close |= self.is_closing;
        // The server may close the connection after a response that it cuts off, or after a response that it sends before most of a
        // long request body has come.
        let plan = &run.plans[id];
        self.may_close |= plan.fails() || plan.upload.is_some_and(|len| len > 65_536);
        let length = head.split("content-length: ").nth(1);
        let length = length.map(|rest| rest.split('\r').next().unwrap().parse().unwrap());
        let framing = match length {
            _ if run.plans[id].is_head => Framing::Length(0),
            Some(length) => Framing::Length(length),
            None if head.contains("transfer-encoding: chunked") => Framing::ChunkHead,
            None => Framing::ToTheEnd,
        };
        self.response = Some(Response { len: 0, framing });
        true
    }

    fn on_complete(&mut self, run: &mut Run, id: usize) {
        let response = self.response.take().unwrap();
        let plan = &run.plans[id];
        if !plan.is_head {
            assert_eq!(response.len, plan.response_len(), "response {id}");
        }
        self.awaited.pop_front();
        run.end(id, Ended::Complete);
    }

    fn on_end(&mut self, run: &mut Run) {
        assert!(
            self.awaited.is_empty() || self.may_close || run.times_out,
            "closed early: {}; {:#?}",
            self.describe(),
            run.plans
        );
        for id in self.awaited.drain(..) {
            run.end(id, Ended::Cut);
        }
        self.sending = None;
        self.response = None;
        self.input.clear();
        self.out.clear();
    }
}
