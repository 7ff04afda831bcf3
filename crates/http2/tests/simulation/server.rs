//! The server's end of a simulated connection: a program that uses the engine in the server role.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::{BodyLength, Headers, RequestHead, ResponseHead, StatusCode};
use h2o_http2::{ErrorCode, Received, ServerConnection, StreamKey, StreamState};
use h2o_testkit::Random;

use crate::Wire;
use crate::plan::{Plan, list};

pub(crate) struct Server<'p> {
    plan: &'p Plan,
    pub(crate) engine: ServerConnection,
    pub(crate) input: Vec<u8>,
    head: RequestHead,
    served: BTreeMap<usize, Served>,
    requests: usize,
}

struct Served {
    key: StreamKey,
    at: usize,
    content: Vec<u8>,
    is_accepted: bool,
    is_read: bool,
    unused: usize,
    interims: usize,
    has_head: bool,
    sent: usize,
    is_over: bool,
}

impl<'p> Server<'p> {
    pub(crate) fn new(plan: &'p Plan, now: Instant) -> Self {
        Self {
            plan,
            engine: ServerConnection::new(Arc::new(plan.server.clone()), None, now),
            input: Vec::new(),
            head: RequestHead::default(),
            served: BTreeMap::new(),
            requests: 0,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.served.is_empty()
    }

    pub(crate) fn pass_time(&mut self, now: Instant, wire: &mut Wire) {
        let mut out = Vec::new();
        let passed = self.engine.on_timeout(now, true, &mut out);
        assert_eq!(passed, None, "no time limit is set, so no timeout fires");
        wire.send(&out);
    }

    pub(crate) fn receive(&mut self, now: Instant, wire: &mut Wire) {
        let mut out = Vec::new();
        loop {
            self.head.clear();
            let step = self
                .engine
                .receive(&self.input, &mut self.head, now, &mut out)
                .expect("the client role of the engine breaks no rules");
            let is_done = step.received == Received::NeedMore;
            self.engine.take_costs();
            self.on_received(step.received);
            self.input.drain(..step.taken);
            if is_done {
                break;
            }
        }
        if self
            .plan
            .shut_down_after
            .is_some_and(|after| self.requests >= after)
        {
            self.engine.shut_down(now, &mut out);
        }
        wire.send(&out);
    }

    fn of(&mut self, stream: StreamKey) -> &mut Served {
        self.served
            .get_mut(&stream.index())
            .expect("the event names a stream that was not released")
    }

    fn on_received(&mut self, received: Received) {
        match received {
            Received::NeedMore | Received::Charged => {}
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                assert_eq!(refusal, None);
                let target = std::str::from_utf8(self.head.target())
                    .expect("the target of the request is a number");
                let at: usize = target[1..]
                    .parse()
                    .expect("the target of the request is a number");
                self.check_head(at, end_stream);
                self.requests += 1;
                let served = Served {
                    key: stream,
                    at,
                    content: Vec::new(),
                    is_accepted: false,
                    is_read: false,
                    unused: 0,
                    interims: 0,
                    has_head: false,
                    sent: 0,
                    is_over: false,
                };
                let before = self.served.insert(stream.index(), served);
                assert!(before.is_none(), "two streams have the same key");
                if end_stream {
                    self.on_end(stream, None);
                }
            }
            Received::Data {
                stream,
                data,
                end_stream,
            } => {
                let content = self.input[data].to_vec();
                let window = self.plan.server.input_window.max(65_535) as usize;
                let served = self.of(stream);
                served.unused += content.len();
                assert!(
                    served.unused <= window,
                    "the peer sent more bytes than the window allows"
                );
                served.content.extend(content);
                if end_stream {
                    self.on_end(stream, None);
                }
            }
            Received::Trailers { stream } => {
                let trailers = list(&self.head.headers);
                self.on_end(stream, Some(trailers));
            }
            Received::Reset { stream, by_us, .. } => {
                assert!(
                    !by_us,
                    "the client role of the engine sends nothing malformed"
                );
                self.of(stream).is_over = true;
            }
        }
    }

    fn check_head(&self, at: usize, end_stream: bool) {
        let request = &self.plan.exchanges[at].request;
        let head = &self.head;
        assert_eq!(
            (&head.method, head.scheme),
            (&request.head.method, request.head.scheme)
        );
        assert_eq!(head.authority(), request.head.authority());
        assert_eq!(list(&head.headers), list(&request.head.headers));
        assert_eq!(head.body, request.head.body);
        assert_eq!(end_stream, request.is_bare);
        assert_eq!(head.body == BodyLength::None, request.is_bare);
    }

    /// Checks that a request that appears complete is the planned one.
    fn on_end(&mut self, stream: StreamKey, trailers: Option<Vec<(String, Vec<u8>)>>) {
        let plan = self.plan;
        let served = self.of(stream);
        let request = &plan.exchanges[served.at].request;
        assert!(
            served.content == request.content,
            "the content differs from the planned content"
        );
        assert_eq!(trailers, request.trailers.as_ref().map(list));
        served.is_read = true;
    }

    /// Makes a little progress on some streams, and sends content.
    pub(crate) fn act(&mut self, random: &mut Random, wire: &mut Wire) {
        let mut out = Vec::new();
        let keys: Vec<_> = self.served.keys().copied().collect();
        for key in keys {
            if random.once_in(2) {
                self.serve(key, random, &mut out);
            }
        }
        self.send(random, &mut out);
        self.served.retain(|_, served| {
            if served.is_over {
                self.engine.release(served.key, &mut out);
            }
            !served.is_over
        });
        assert!(
            self.engine.retained() < 1 << 20,
            "the engine holds a bounded amount of memory"
        );
        wire.send(&out);
    }

    fn serve(&mut self, key: usize, random: &mut Random, out: &mut Vec<u8>) {
        let served = self
            .served
            .get_mut(&key)
            .expect("the stream is in the list");
        let response = &self.plan.exchanges[served.at].response;
        if served.is_over {
            return;
        }
        if !served.is_accepted && random.once_in(3) {
            served.is_accepted = true;
            self.engine.accept_content(served.key, out);
        }
        let len = random.below(served.unused + 1);
        served.unused -= len;
        self.engine.release_content(served.key, len, out);
        if !served.is_read && !response.is_early {
            return;
        }
        let is_given_up = response.aborted_at.is_some_and(|len| len <= served.sent);
        if is_given_up && (served.has_head || random.once_in(2)) {
            self.engine
                .reset(served.key, ErrorCode::INTERNAL_ERROR, out);
            served.is_over = true;
        } else if served.interims < response.interims {
            served.interims += 1;
            self.engine.send_informational(
                served.key,
                StatusCode::EARLY_HINTS,
                &Headers::new(),
                out,
            );
        } else if !served.has_head {
            // A response that the server is going to abort must not end with its head: the client would take it for
            // complete.
            let is_end = response.content.is_empty()
                && response.trailers.is_none()
                && response.aborted_at.is_none();
            let head = ResponseHead {
                status: response.status,
                reason: None,
                headers: &response.headers,
                length: response
                    .is_length_known
                    .then_some(response.content.len() as u64),
                server: None,
            };
            self.engine.respond(served.key, &head, is_end, out);
            served.has_head = true;
            served.is_over = is_end;
        } else if served.sent == response.content.len() {
            if response.aborted_at.is_none() {
                self.engine
                    .finish(served.key, response.trailers.as_ref(), out);
                served.is_over = true;
            }
        } else {
            self.engine.set_content(served.key, !random.once_in(10));
        }
    }

    fn send(&mut self, random: &mut Random, out: &mut Vec<u8>) {
        for _ in 0..random.below(10) {
            let Some((key, max)) = self.engine.poll_send() else {
                break;
            };
            let served = self
                .served
                .get_mut(&key.index())
                .expect("the call names a stream that the client opened");
            assert!(!served.is_over && self.engine.state(key) != StreamState::Closed);
            let response = &self.plan.exchanges[served.at].response;
            let end = response.aborted_at.unwrap_or(response.content.len());
            let left = &response.content[served.sent..end];
            let is_end = |len| {
                len == left.len() && response.trailers.is_none() && response.aborted_at.is_none()
            };
            let len = max.min(left.len());
            let len = if random.once_in(4) {
                random.below(len + 1)
            } else {
                len
            };
            let is_sent = self.engine.send_data_with(key, max, out, |out| {
                out.extend_from_slice(&left[..len]);
                Ok::<_, ()>(Some((len, is_end(len))))
            });
            assert_eq!(is_sent, Ok(Some((len, is_end(len)))));
            served.sent += len;
            served.is_over = is_end(len);
            if len == left.len() {
                self.engine.set_content(key, false);
            }
        }
    }
}
