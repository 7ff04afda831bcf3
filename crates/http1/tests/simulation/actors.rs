//! The two ends of a simulated connection: a client and a server, each with an engine of its role.

use std::sync::Arc;
use std::time::Instant;

use h2o_http::{ClientResponse, Headers, RequestHead, ResponseHead, Scheme, StatusCode};
use h2o_http1::{
    ClientConnection, ClientReceived, ClientRequest, ClientSettings, EndedPart, Next, Received,
    ServerConnection, Settings,
};
use h2o_testkit::Random;

use crate::Wire;
use crate::plan::{Exchange, Plan, list};

pub(crate) struct Client<'p> {
    plan: &'p Plan,
    /// Index in the plan of the exchange in progress, or of the next one.
    at: usize,
    engine: ClientConnection,
    pub(crate) input: Vec<u8>,
    head: ClientResponse,
    progress: Option<Asked>,
    completed: usize,
    is_over: bool,
}

/// How far the client is with one exchange.
#[derive(Default)]
struct Asked {
    sent: usize,
    is_sent: bool,
    may_send: bool,
    interims: usize,
    has_head: bool,
    content: Vec<u8>,
    is_answered: bool,
}

impl<'p> Client<'p> {
    pub(crate) fn new(plan: &'p Plan, from: usize) -> Self {
        Self {
            plan,
            at: from,
            engine: ClientConnection::new(Arc::new(ClientSettings::default())),
            input: Vec::new(),
            head: ClientResponse::new(),
            progress: None,
            completed: 0,
            is_over: false,
        }
    }

    /// Whether nothing more happens on the client's connection.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Index of the exchange with which the client begins its next connection. A failed exchange is not retried.
    pub(crate) const fn next_exchange(&self) -> usize {
        self.at
    }

    pub(crate) const fn completed(&self) -> usize {
        self.completed
    }

    fn exchange(&self) -> &'p Exchange {
        &self.plan.exchanges[self.at]
    }

    /// Sends a small part of the request in progress, or begins the next request.
    pub(crate) fn act(&mut self, random: &mut Random, wire: &mut Wire) {
        let request = &self.exchange().request;
        let mut out = Vec::new();
        match &mut self.progress {
            None => {
                let ask = ClientRequest {
                    method: &request.method,
                    target: &request.target,
                    host: request.host.as_bytes(),
                    headers: &request.headers,
                    body: request.body,
                    keep_alive: request.keep_alive,
                    upgrade: None,
                    expects_continue: request.expects_continue,
                };
                self.engine.send_request(&ask, &mut out);
                self.progress = Some(Asked {
                    may_send: !request.expects_continue,
                    ..Asked::default()
                });
            }
            // A client that has waited too long for 100 Continue sends its content anyway (RFC 9110 §10.1.1).
            Some(asked) if !asked.may_send => asked.may_send = random.once_in(50),
            Some(asked) if !asked.is_sent => {
                let left = &request.content[asked.sent..];
                let len = random.below(left.len() + 1);
                if random.once_in(2) {
                    self.engine.send_data(&left[..len], &mut out);
                } else {
                    assert_eq!(self.engine.begin_data(len, &mut out), len);
                    out.extend_from_slice(&left[..len]);
                    self.engine.end_data(&mut out);
                }
                asked.sent += len;
                if asked.sent == request.content.len() {
                    self.engine.finish(None, &mut out);
                    asked.is_sent = true;
                }
            }
            Some(_) => {}
        }
        if !wire.is_closed {
            wire.bytes.extend(out);
        }
        self.move_on();
    }

    pub(crate) fn receive(&mut self) {
        while !self.is_over
            && self
                .progress
                .as_ref()
                .is_some_and(|asked| !asked.is_answered)
        {
            let received = self.engine.receive(&self.input, &mut self.head);
            let exchange = self.exchange();
            let Some(asked) = &mut self.progress else {
                return;
            };
            let taken = match received {
                Ok(ClientReceived::NeedMore { taken }) => {
                    self.input.drain(..taken);
                    break;
                }
                Ok(ClientReceived::Interim { taken }) => {
                    let is_continue = self.head.status == StatusCode::CONTINUE;
                    asked.may_send |= is_continue;
                    asked.interims += usize::from(!is_continue);
                    taken
                }
                Ok(ClientReceived::Response { taken }) => {
                    assert!(!asked.has_head, "two final responses to one request");
                    check_response(&self.head, exchange);
                    assert_eq!(asked.interims, exchange.response.interims);
                    asked.has_head = true;
                    taken
                }
                Ok(ClientReceived::Data { taken, data }) => {
                    asked.content.extend_from_slice(&self.input[data]);
                    taken
                }
                Ok(ClientReceived::BodyEnd { taken }) => taken,
                Err(_) => {
                    assert!(exchange.response.aborted_at.is_some(), "{received:?}");
                    self.give_up();
                    return;
                }
            };
            self.input.drain(..taken);
            if self.engine.is_response_done() {
                asked.is_answered = true;
                let response = &exchange.response;
                assert_eq!(
                    response.aborted_at, None,
                    "an aborted response passed for complete"
                );
                assert_eq!(
                    asked.content, response.content,
                    "the content differs from the planned content"
                );
            }
        }
        self.move_on();
    }

    pub(crate) fn on_closed(&mut self) {
        if self.is_over {
            return;
        }
        match &self.progress {
            Some(asked) if !asked.is_answered => {
                // The response is incomplete because the connection was cut or the server aborted the response; the engine
                // must have noticed that.
                assert!(
                    self.engine.on_closed().is_err(),
                    "a truncated response passed for complete"
                );
                let response = &self.exchange().response;
                assert!(response.content.starts_with(&asked.content));
                self.give_up();
            }
            Some(_) => self.give_up(),
            None => {
                assert_eq!(self.engine.on_closed(), Ok(EndedPart::Nothing));
                self.is_over = true;
            }
        }
    }

    /// Moves to the next exchange if this one is complete in both directions.
    fn move_on(&mut self) {
        let is_answered = self
            .progress
            .as_ref()
            .is_some_and(|asked| asked.is_answered);
        if is_answered && self.engine.is_request_done() {
            self.progress = None;
            self.at += 1;
            self.completed += 1;
            let is_last = self.at == self.plan.exchanges.len();
            self.is_over = is_last || !self.engine.is_reusable(&self.input);
        }
    }

    fn give_up(&mut self) {
        self.at += 1;
        self.is_over = true;
    }
}

fn check_response(head: &ClientResponse, exchange: &Exchange) {
    let response = &exchange.response;
    assert_eq!(head.status, response.status);
    let reason = response.reason.unwrap_or(response.status.reason());
    assert_eq!(head.reason(), reason.as_bytes());
    assert_eq!(list(&head.headers), list(&response.headers));
}

pub(crate) struct Server<'p> {
    plan: &'p Plan,
    at: usize,
    pub(crate) engine: ServerConnection,
    pub(crate) input: Vec<u8>,
    head: RequestHead,
    progress: Option<Answering>,
    is_closed: bool,
}

/// How far the server is with its answer in one exchange.
#[derive(Default)]
struct Answering {
    content: Vec<u8>,
    interims: usize,
    is_head_sent: bool,
    sent: usize,
    is_sent: bool,
}

impl<'p> Server<'p> {
    pub(crate) fn new(plan: &'p Plan, from: usize, now: Instant) -> Self {
        Self {
            plan,
            at: from,
            engine: ServerConnection::new(Arc::new(Settings::default()), Scheme::Http, now),
            input: Vec::new(),
            head: RequestHead::default(),
            progress: None,
            is_closed: false,
        }
    }

    pub(crate) fn receive(&mut self, now: Instant) {
        while !self.is_closed {
            let received = self.engine.receive(&self.input, now, &mut self.head);
            let taken = match received.expect("the simulated client sends valid HTTP/1") {
                Received::NeedMore { taken } => {
                    self.input.drain(..taken);
                    return;
                }
                Received::Request { taken } => {
                    assert!(
                        self.progress.is_none(),
                        "a request begins before the one before has ended"
                    );
                    self.check_request();
                    self.progress = Some(Answering::default());
                    taken
                }
                Received::Data { taken, data } => {
                    let progress = self
                        .progress
                        .as_mut()
                        .expect("content arrives only after the head of a request");
                    progress.content.extend_from_slice(&self.input[data]);
                    taken
                }
                Received::BodyEnd { taken } => taken,
                Received::Http2Preface => panic!("the simulated client sends no HTTP/2 preface"),
            };
            self.input.drain(..taken);
            if self.engine.is_body_done() {
                self.check_content();
            }
        }
    }

    fn check_request(&self) {
        let request = &self.plan.exchanges[self.at].request;
        assert_eq!(self.head.method, request.method);
        assert_eq!(self.head.target(), request.target);
        assert_eq!(self.head.authority(), request.host.as_bytes());
        assert_eq!(self.head.body, request.body);
        assert_eq!(list(&self.head.headers), list(&request.headers));
    }

    fn check_content(&self) {
        let progress = self
            .progress
            .as_ref()
            .expect("content arrives only after the head of a request");
        assert_eq!(
            progress.content,
            self.plan.exchanges[self.at].request.content
        );
        assert_eq!(progress.content.len() as u64, self.engine.body_received());
    }

    /// Sends a small part of the response in progress.
    pub(crate) fn act(&mut self, random: &mut Random, now: Instant, wire: &mut Wire) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        let response = &self.plan.exchanges[self.at].response;
        let mut out = Vec::new();
        let may_start = self.engine.is_body_done() || response.is_early;
        if !progress.is_head_sent && self.engine.wants_continue() && !response.is_early {
            self.engine.send_continue(&mut out, now);
        } else if progress.interims < response.interims {
            let status = StatusCode::EARLY_HINTS;
            self.engine
                .send_informational(status, &Headers::new(), &mut out);
            progress.interims += 1;
        } else if !progress.is_head_sent && may_start {
            let length = response.content.len() as u64;
            let head = ResponseHead {
                status: response.status,
                reason: response.reason,
                headers: &response.headers,
                length: response.is_length_known.then_some(length),
                server: None,
            };
            self.engine.respond(&head, &mut out, now);
            progress.is_head_sent = true;
        } else if progress.is_head_sent && !progress.is_sent {
            let until = response.aborted_at.unwrap_or(response.content.len());
            let left = &response.content[progress.sent..until];
            let len = random.below(left.len() + 1);
            self.engine.send_data(&left[..len], &mut out);
            progress.sent += len;
            if progress.sent == until {
                match response.aborted_at {
                    Some(_) => self.engine.abort(&mut out),
                    None => self.engine.finish(response.trailers().as_ref(), &mut out),
                }
                progress.is_sent = true;
            }
        }
        self.engine.on_written(out.len(), false, now);
        if !wire.is_closed {
            wire.bytes.extend(out);
        }
        if self
            .progress
            .as_ref()
            .is_some_and(|progress| progress.is_sent)
        {
            self.end_exchange(now, wire);
        }
    }

    fn end_exchange(&mut self, now: Instant, wire: &mut Wire) {
        let is_aborted = self.plan.exchanges[self.at].response.aborted_at.is_some();
        if !self.engine.is_body_done() && !is_aborted {
            return;
        }
        self.progress = None;
        self.at += 1;
        match self.engine.next(now) {
            Next::Request => self.receive(now),
            Next::Close => {
                self.is_closed = true;
                wire.is_closed = true;
            }
        }
    }
}
