//! The client's end of a simulated connection: a program that uses the engine in the client role.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use h2o_http::ClientResponse;
use h2o_http2::{ClientConnection, ClientReceived, ErrorCode, StreamKey, StreamState};
use h2o_testkit::Random;

use crate::Wire;
use crate::plan::{Plan, list};

/// How an exchange of the simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Complete,
    Cancelled,
    /// The server aborted the exchange.
    Aborted,
    /// The connection was cut.
    Cut,
}

pub(crate) struct Client<'p> {
    plan: &'p Plan,
    pub(crate) engine: ClientConnection,
    pub(crate) input: Vec<u8>,
    head: ClientResponse,
    asked: BTreeMap<usize, Asked>,
}

/// How far the client is with one exchange.
struct Asked {
    key: StreamKey,
    at: usize,
    sent: usize,
    is_sent: bool,
    interims: usize,
    has_head: bool,
    content: Vec<u8>,
    trailers: Option<Vec<(String, Vec<u8>)>>,
    is_answered: bool,
    /// Number of content bytes that were received and are not used yet.
    unused: usize,
}

impl<'p> Client<'p> {
    pub(crate) fn new(plan: &'p Plan, now: Instant, wire: &mut Wire) -> Self {
        let mut out = Vec::new();
        let engine = ClientConnection::new(Arc::new(plan.client.clone()), now, &mut out);
        wire.send(&out);
        Self {
            plan,
            engine,
            input: Vec::new(),
            head: ClientResponse::new(),
            asked: BTreeMap::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// The indices of the exchanges in progress, which the end of the connection ends.
    pub(crate) fn outstanding(&self) -> Vec<usize> {
        self.asked.values().map(|asked| asked.at).collect()
    }

    /// Performs one random action of a client.
    pub(crate) fn act(
        &mut self,
        random: &mut Random,
        open: &mut Vec<usize>,
        results: &mut [Option<Ended>],
        wire: &mut Wire,
    ) {
        let mut out = Vec::new();
        match random.below(5) {
            0 | 1 => self.ask(random, open, &mut out),
            2 => self.send(random, &mut out),
            3 => self.use_content(random, &mut out),
            _ if random.once_in(20) => self.engine.ping([7; 8], &mut out),
            _ => self.give_up_some(results, &mut out),
        }
        self.end_some(random, results, &mut out);
        assert!(
            self.engine.retained() < 1 << 20,
            "the engine holds a bounded amount of memory"
        );
        wire.send(&out);
    }

    fn ask(&mut self, random: &mut Random, open: &mut Vec<usize>, out: &mut Vec<u8>) {
        if open.is_empty() {
            return;
        }
        let index = random.below(open.len());
        let request = &self.plan.exchanges[open[index]].request;
        let Some(key) = self.engine.request(&request.head, request.is_bare, out) else {
            assert!(!self.engine.can_request());
            return;
        };
        let asked = Asked {
            key,
            at: open.swap_remove(index),
            sent: 0,
            is_sent: request.is_bare,
            interims: 0,
            has_head: false,
            content: Vec::new(),
            trailers: None,
            is_answered: false,
            unused: 0,
        };
        let before = self.asked.insert(key.index(), asked);
        assert!(before.is_none(), "two streams have the same key");
    }

    fn send(&mut self, random: &mut Random, out: &mut Vec<u8>) {
        for asked in self.asked.values_mut().filter(|asked| !asked.is_sent) {
            let request = &self.plan.exchanges[asked.at].request;
            let is_open = matches!(
                self.engine.state(asked.key),
                StreamState::Open | StreamState::HalfClosedRemote
            );
            if !is_open {
                asked.is_sent = true;
            } else if asked.sent == request.content.len() {
                self.engine
                    .finish(asked.key, request.trailers.as_ref(), out);
                asked.is_sent = true;
            } else {
                self.engine.set_content(asked.key, !random.once_in(10));
            }
        }
        for _ in 0..random.below(10) {
            let Some((key, max)) = self.engine.poll_send() else {
                break;
            };
            let asked = self
                .asked
                .get_mut(&key.index())
                .expect("the event names a stream that the client opened");
            let request = &self.plan.exchanges[asked.at].request;
            let left = &request.content[asked.sent..];
            let len = max.min(left.len());
            let len = if random.once_in(4) {
                random.below(len) + 1
            } else {
                len
            };
            let is_end = len == left.len() && request.trailers.is_none();
            self.engine.send_data(key, &left[..len], is_end, out);
            asked.sent += len;
            asked.is_sent = is_end;
            if len == left.len() {
                self.engine.set_content(key, false);
            }
        }
    }

    fn use_content(&mut self, random: &mut Random, out: &mut Vec<u8>) {
        for asked in self.asked.values_mut() {
            let len = random.below(asked.unused + 1);
            asked.unused -= len;
            self.engine.release_content(asked.key, len, out);
        }
    }

    /// Cancels exchanges where the plan says so.
    fn give_up_some(&mut self, results: &mut [Option<Ended>], out: &mut Vec<u8>) {
        self.asked.retain(|_, asked| {
            let cancelled_at = self.plan.exchanges[asked.at].request.cancelled_at;
            if asked.is_answered || cancelled_at.is_none_or(|len| len > asked.content.len()) {
                return true;
            }
            self.engine.reset(asked.key, ErrorCode::CANCEL, out);
            self.engine.release(asked.key, out);
            results[asked.at] = Some(Ended::Cancelled);
            false
        });
    }

    /// Ends exchanges whose response is complete; sometimes before the request is complete.
    fn end_some(&mut self, random: &mut Random, results: &mut [Option<Ended>], out: &mut Vec<u8>) {
        self.asked.retain(|_, asked| {
            let is_over = asked.is_answered && (asked.is_sent || random.once_in(10));
            if is_over {
                check(self.plan, asked);
                results[asked.at] = Some(Ended::Complete);
                self.engine.release(asked.key, out);
            }
            !is_over
        });
    }

    pub(crate) fn receive(
        &mut self,
        now: Instant,
        open: &mut Vec<usize>,
        results: &mut [Option<Ended>],
        wire: &mut Wire,
    ) {
        let mut out = Vec::new();
        loop {
            let step = self
                .engine
                .receive(&self.input, &mut self.head, now, &mut out)
                .expect("the server role of the engine breaks no rules");
            let is_done = step.received == ClientReceived::NeedMore;
            self.engine.take_costs();
            self.on_received(step.received, open, results, &mut out);
            self.input.drain(..step.taken);
            if is_done {
                break;
            }
        }
        wire.send(&out);
    }

    fn of(&mut self, stream: StreamKey) -> &mut Asked {
        self.asked
            .get_mut(&stream.index())
            .expect("the event names a stream that was not released")
    }

    fn on_received(
        &mut self,
        received: ClientReceived,
        open: &mut Vec<usize>,
        results: &mut [Option<Ended>],
        out: &mut Vec<u8>,
    ) {
        match received {
            ClientReceived::NeedMore
            | ClientReceived::Charged
            | ClientReceived::GoAway { .. }
            | ClientReceived::Pong { .. } => {}
            ClientReceived::Informational { stream } => self.of(stream).interims += 1,
            ClientReceived::Response { stream, end_stream } => {
                let head = std::mem::take(&mut self.head);
                let plan = self.plan;
                let asked = self.of(stream);
                let response = &plan.exchanges[asked.at].response;
                assert!(
                    !std::mem::replace(&mut asked.has_head, true),
                    "two final responses to one request"
                );
                assert_eq!(head.status, response.status);
                assert_eq!(list(&head.headers), list(&response.headers));
                assert_eq!(asked.interims, response.interims);
                asked.is_answered = end_stream;
            }
            ClientReceived::Data {
                stream,
                data,
                end_stream,
            } => {
                let content = self.input[data].to_vec();
                let window = self.plan.client.window as usize;
                let asked = self.of(stream);
                asked.unused += content.len();
                assert!(
                    asked.unused <= window,
                    "the peer sent more bytes than the window allows"
                );
                asked.content.extend(content);
                asked.is_answered = end_stream;
            }
            ClientReceived::Trailers { stream } => {
                let trailers = list(&self.head.headers);
                let asked = self.of(stream);
                asked.trailers = Some(trailers);
                asked.is_answered = true;
            }
            ClientReceived::Reset {
                stream,
                code,
                by_us,
            } => {
                assert!(
                    !by_us,
                    "the server role of the engine sends nothing malformed"
                );
                let asked = self
                    .asked
                    .remove(&stream.index())
                    .expect("the event names a stream that was not released");
                let result = if asked.is_answered {
                    assert_eq!(code, ErrorCode::NO_ERROR, "RFC 9113 §8.1");
                    check(self.plan, &asked);
                    Ended::Complete
                } else {
                    let response = &self.plan.exchanges[asked.at].response;
                    assert!(
                        response.aborted_at.is_some(),
                        "a stream was reset whose response was not aborted: {code:?}"
                    );
                    Ended::Aborted
                };
                results[asked.at] = Some(result);
                self.engine.release(stream, out);
            }
            ClientReceived::Refused { stream } => {
                let asked = self
                    .asked
                    .remove(&stream.index())
                    .expect("the event names a stream that was not released");
                assert!(
                    !asked.has_head && asked.interims == 0,
                    "a refused stream has got no part of a response"
                );
                open.push(asked.at);
                self.engine.release(stream, out);
            }
        }
    }
}

/// Checks that a response that appears complete is the planned one.
fn check(plan: &Plan, asked: &Asked) {
    let response = &plan.exchanges[asked.at].response;
    assert!(asked.has_head);
    assert!(
        asked.content == response.content,
        "the content differs from the planned content"
    );
    assert_eq!(asked.trailers, response.trailers.as_ref().map(list));
    assert_eq!(
        response.aborted_at, None,
        "an aborted response passed for complete"
    );
}
