//! A simulation of the client role against the server role, over a transport that splits the bytes and orders the streams
//! as the seed of the run decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use h2o_http::{
    BodyLength, ClientResponse, Headers, Method, Name, RequestHead, ResponseHead, StatusCode,
};
use h2o_http3::{
    ClientConnection, ClientReceived, ClientSettings, Command, ErrorCode, LocalStream, Received,
    ServerConnection, Settings, StreamId, StreamKey,
};
use h2o_testkit::{Random, run_seeds};

type List = Vec<(String, Vec<u8>)>;

/// The plan of one exchange.
#[derive(Clone, Debug)]
struct Plan {
    fields: List,
    content: Vec<u8>,
    trailers: Option<List>,
    interim: bool,
    status: u16,
    response_fields: List,
    response: Vec<u8>,
    response_trailers: Option<List>,
    knows_length: bool,
    /// Whether the client cancels the request at a random time.
    is_cancelled: bool,
}

fn list(random: &mut Random) -> List {
    (0..random.below(6))
        .map(|_| {
            let name = ["x-a", "x-b", "accept", "user-agent", "etag"][random.below(5)];
            let value = match random.below(3) {
                0 => format!("value {}", random.below(4)),
                1 => format!("value {}", random.below(10_000)),
                _ => "a rather long value that is the same each time".to_owned(),
            };
            (name.to_owned(), value.into_bytes())
        })
        .collect()
}

fn content(random: &mut Random) -> Vec<u8> {
    let len = [0, 1, 100, 5000][random.below(4)];
    (0..random.below(len + 1))
        .map(|at| at.to_le_bytes()[0])
        .collect()
}

impl Plan {
    fn new(random: &mut Random) -> Self {
        Self {
            fields: list(random),
            content: content(random),
            trailers: random.once_in(4).then(|| list(random)),
            interim: random.once_in(4),
            status: [200, 404, 503, 299][random.below(4)],
            response_fields: list(random),
            response: content(random),
            response_trailers: random.once_in(4).then(|| list(random)),
            knows_length: random.once_in(2),
            is_cancelled: random.once_in(8),
        }
    }
}

fn headers(list: &List) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in list {
        headers.push(Name::from_lower(name), value);
    }
    headers
}

fn read(headers: &Headers) -> List {
    let fields = headers.iter();
    fields
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect()
}

/// The bytes under way in one direction of a stream.
#[derive(Debug, Default)]
struct Pipe {
    bytes: Vec<u8>,
    has_ended: bool,
    /// Whether the end or a reset was delivered to the receiver.
    is_over: bool,
    reset: Option<ErrorCode>,
    /// Bytes that were delivered and that the receiver has not taken.
    rest: Vec<u8>,
    is_blocked: bool,
}

impl Pipe {
    fn has_something(&self) -> bool {
        !self.is_over
            && !self.is_blocked
            && (!self.bytes.is_empty() || self.has_ended || self.reset.is_some())
    }
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    fields: List,
    content: Vec<u8>,
    trailers: Option<List>,
    has_interim: bool,
    is_complete: bool,
}

struct World {
    random: Random,
    client: ClientConnection,
    server: ServerConnection,
    /// For each stream, the bytes under way to the server; those under way to the client are in `down`.
    up: BTreeMap<u64, Pipe>,
    down: BTreeMap<u64, Pipe>,
    opened: [u64; 2],
    opened_by_server: u64,
    plans: Vec<Plan>,
    keys: BTreeMap<u64, StreamKey>,
    server_keys: BTreeMap<u64, StreamKey>,
    requests: BTreeMap<u64, Seen>,
    responses: BTreeMap<u64, Seen>,
    cancelled: BTreeSet<u64>,
    done: BTreeSet<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let capacity = [0, 200, 4096, 16_384];
        let settings = Settings {
            qpack_decoder_capacity: capacity[random.below(4)],
            qpack_encoder_capacity: capacity[random.below(4)],
            ..Settings::default()
        };
        let client_settings = ClientSettings {
            qpack_decoder_capacity: capacity[random.below(4)],
            qpack_encoder_capacity: capacity[random.below(4)],
            ..ClientSettings::default()
        };
        let plans = (0..40).map(|_| Plan::new(&mut random)).collect();
        Self {
            random,
            client: ClientConnection::new(Arc::new(client_settings), true),
            server: ServerConnection::new(Arc::new(settings), true),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            opened: [0, 2],
            opened_by_server: 3,
            plans,
            keys: BTreeMap::new(),
            server_keys: BTreeMap::new(),
            requests: BTreeMap::new(),
            responses: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            done: BTreeSet::new(),
        }
    }

    fn run(&mut self) -> (usize, usize) {
        let mut asked = 0;
        self.flush();
        loop {
            let is_idle = !self.deliver();
            let in_flight = self
                .keys
                .keys()
                .filter(|id| !self.done.contains(id))
                .count();
            let may_ask = asked < self.plans.len() && in_flight < 20;
            if may_ask && (is_idle || self.random.once_in(10)) {
                self.ask(asked);
                asked += 1;
            } else if is_idle {
                break;
            }
            self.maybe_cancel();
            self.flush();
        }
        assert_eq!(asked, self.plans.len(), "every planned request was sent");
        self.check();
        (self.done.len(), self.plans.len())
    }

    fn plan(&self, id: u64) -> &Plan {
        &self.plans[usize::try_from(id / 4).expect("the stream id fits into a usize")]
    }

    fn ask(&mut self, number: usize) {
        let id = 4 * number as u64;
        let plan = self.plan(id).clone();
        let mut head = RequestHead::default();
        head.method = Method::Post;
        head.scheme = h2o_http::Scheme::Https;
        head.headers = headers(&plan.fields);
        let target = head.headers.store(format!("/{number}").as_bytes());
        head.set_target(target);
        let authority = head.headers.store(b"a.example");
        head.set_authority(authority);
        let has_more = !plan.content.is_empty() || plan.trailers.is_some();
        head.body = if plan.knows_length {
            BodyLength::Known(plan.content.len() as u64)
        } else {
            BodyLength::Unknown
        };
        let mut out = Vec::new();
        let key = self
            .client
            .request(StreamId::new(id), &head, !has_more, &mut out)
            .expect("the server allows another request");
        self.keys.insert(id, key);
        if has_more {
            for piece in plan.content.chunks(1000) {
                self.client.send_data(key, piece, false, &mut out);
            }
            let trailers = plan.trailers.as_ref().map(headers);
            self.client.finish(key, trailers.as_ref(), &mut out);
        }
        let pipe = self.up.entry(id).or_default();
        pipe.bytes.extend(out);
        pipe.has_ended = true;
        self.responses.insert(id, Seen::default());
    }

    fn answer(&mut self, id: u64) {
        let plan = self.plan(id).clone();
        let key = self.server_keys[&id];
        let mut out = Vec::new();
        let fields = headers(&plan.response_fields);
        if plan.interim {
            let hints = StatusCode::new(103).expect("the number is a valid status code");
            self.server.inform(key, hints, &Headers::new(), &mut out);
        }
        let has_more = !plan.response.is_empty() || plan.response_trailers.is_some();
        let head = ResponseHead {
            status: StatusCode::new(plan.status).expect("the number is a valid status code"),
            reason: None,
            headers: &fields,
            length: plan.knows_length.then_some(plan.response.len() as u64),
            server: None,
        };
        self.server.respond(key, &head, !has_more, &mut out);
        if has_more {
            for piece in plan.response.chunks(700) {
                self.server.send_data(key, piece, false, &mut out);
            }
            let trailers = plan.response_trailers.as_ref().map(headers);
            self.server.finish(key, trailers.as_ref(), &mut out);
        }
        let pipe = self.down.entry(id).or_default();
        pipe.bytes.extend(out);
        pipe.has_ended = true;
    }

    fn maybe_cancel(&mut self) {
        let ids: Vec<u64> = self.keys.keys().copied().collect();
        let Some(&id) = ids.get(self.random.below(ids.len() + 1)) else {
            return;
        };
        if self.plan(id).is_cancelled && self.random.once_in(20) {
            let key = self
                .keys
                .remove(&id)
                .expect("the simulation has the stream");
            self.client.release(key);
            self.cancelled.insert(id);
        }
    }

    /// Passes the pending bytes and the commands of both engines to the transport.
    fn flush(&mut self) {
        for (number, local) in LocalStream::ALL.into_iter().enumerate() {
            let id = 4 * number as u64 + 2;
            let len = self.client.pending(local).len();
            let len = self.random.below(len + 1);
            let pipe = self.up.entry(id).or_default();
            pipe.bytes.extend(&self.client.pending(local)[..len]);
            self.client.advance(local, len);
            let len = self.server.pending(local).len();
            let pipe = self.down.entry(id + 1).or_default();
            pipe.bytes.extend(self.server.pending(local));
            self.server.advance(local, len);
        }
        while let Some(command) = self.client.poll_command() {
            match command {
                Command::Reset { stream, code } => Self::reset(&mut self.up, stream, code),
                Command::StopSending { stream, code } => {
                    self.down.entry(stream.get()).or_default().is_over = true;
                    let stopped = self.server.on_stop_sending(stream, code);
                    self.on_received(
                        stream.get(),
                        stopped.expect("the engine reports no error"),
                        &[],
                        &RequestHead::default(),
                    );
                }
            }
        }
        while let Some(command) = self.server.poll_command() {
            match command {
                Command::Reset { stream, code } => Self::reset(&mut self.down, stream, code),
                Command::StopSending { stream, code } => {
                    self.up.entry(stream.get()).or_default().is_over = true;
                    self.client
                        .on_stop_sending(stream, code)
                        .expect("the engine reports no error");
                }
            }
        }
        self.server.take_costs();
        self.server.take_rejected();
        self.client.take_costs();
    }

    fn reset(pipes: &mut BTreeMap<u64, Pipe>, stream: StreamId, code: ErrorCode) {
        let pipe = pipes.entry(stream.get()).or_default();
        pipe.bytes.clear();
        pipe.has_ended = false;
        pipe.reset = Some(code);
    }

    /// Delivers a random piece of one of the streams. Returns false if nothing is under way.
    fn deliver(&mut self) -> bool {
        let ready = |pipes: &BTreeMap<u64, Pipe>, is_up: bool| -> Vec<(u64, bool)> {
            let pipes = pipes.iter().filter(|(_, pipe)| pipe.has_something());
            pipes.map(|(&id, _)| (id, is_up)).collect()
        };
        let mut all = ready(&self.up, true);
        all.extend(ready(&self.down, false));
        if all.is_empty() {
            return false;
        }
        let (id, is_up) = all[self.random.below(all.len())];
        let pipes = if is_up { &mut self.up } else { &mut self.down };
        let pipe = pipes.get_mut(&id).expect("the simulation has the stream");
        let reset = pipe.reset.take();
        let len = 1 + self.random.below(pipe.bytes.len().max(1));
        let piece: Vec<u8> = pipe.bytes.drain(..len.min(pipe.bytes.len())).collect();
        pipe.rest.extend(piece);
        let has_ended = pipe.has_ended && pipe.bytes.is_empty();
        pipe.is_over = has_ended || reset.is_some();
        if is_up {
            self.open(id);
        } else {
            while id & 2 != 0 && self.opened_by_server <= id {
                self.client
                    .open(StreamId::new(self.opened_by_server))
                    .expect("the engine reports no error");
                self.opened_by_server += 4;
            }
        }
        match (is_up, reset) {
            (true, Some(code)) => {
                let received = self.server.on_reset(StreamId::new(id), code);
                self.on_received(
                    id,
                    received.expect("the engine reports no error"),
                    &[],
                    &RequestHead::default(),
                );
            }
            (false, Some(code)) => {
                self.client
                    .on_reset(StreamId::new(id), code)
                    .expect("the engine reports no error");
            }
            (true, None) => self.server_gets(id, has_ended),
            (false, None) => self.client_gets(id, has_ended),
        }
        true
    }

    fn open(&mut self, id: u64) {
        let kind = usize::from(id & 2 != 0);
        while self.opened[kind] <= id {
            self.server
                .open(StreamId::new(self.opened[kind]))
                .expect("the engine reports no error");
            self.opened[kind] += 4;
        }
    }

    fn server_gets(&mut self, id: u64, has_ended: bool) {
        loop {
            let rest = std::mem::take(&mut self.up.entry(id).or_default().rest);
            let mut head = RequestHead::default();
            let step = self
                .server
                .receive(StreamId::new(id), &rest, has_ended, &mut head);
            let step = step.expect("the client breaks no rule");
            let goes_on = !matches!(step.received, Received::NeedMore | Received::Blocked);
            let pipe = self.up.entry(id).or_default();
            pipe.rest = rest[step.taken..].to_vec();
            pipe.is_blocked = step.received == Received::Blocked;
            self.on_received(id, Some(step.received), &rest, &head);
            if !goes_on {
                break;
            }
        }
        while let Some(unblocked) = self.server.poll_unblocked() {
            let pipe = self.up.entry(unblocked.get()).or_default();
            pipe.is_blocked = false;
            let has_ended = pipe.is_over && pipe.bytes.is_empty();
            self.server_gets(unblocked.get(), has_ended);
        }
    }

    fn on_received(
        &mut self,
        id: u64,
        received: Option<Received>,
        input: &[u8],
        head: &RequestHead,
    ) {
        let Some(received) = received else { return };
        let seen = self.requests.entry(id).or_default();
        match received {
            Received::Request {
                stream,
                end_stream,
                refusal,
            } => {
                assert_eq!(refusal, None);
                assert_eq!(head.target(), format!("/{}", id / 4).as_bytes());
                assert_eq!(
                    (head.authority(), &head.method),
                    (&b"a.example"[..], &Method::Post)
                );
                seen.fields = read(&head.headers);
                seen.is_complete = end_stream;
                self.server_keys.insert(id, stream);
            }
            Received::Data {
                data, end_stream, ..
            } => {
                seen.content.extend_from_slice(&input[data]);
                seen.is_complete = end_stream;
            }
            Received::Trailers { .. } => {
                seen.trailers = Some(read(&head.headers));
                seen.is_complete = true;
            }
            Received::Reset { stream, by_us, .. } => {
                assert!(!by_us);
                self.server.release(stream);
                self.server_keys.remove(&id);
                return;
            }
            _ => return,
        }
        if seen.is_complete {
            let plan =
                &self.plans[usize::try_from(id / 4).expect("the stream id fits into a usize")];
            assert_eq!(seen.fields, plan.fields);
            assert_eq!(seen.content, plan.content);
            assert_eq!(seen.trailers, plan.trailers);
            self.answer(id);
            let key = self
                .server_keys
                .remove(&id)
                .expect("the simulation has the stream");
            self.server.release(key);
        }
    }

    fn client_gets(&mut self, id: u64, has_ended: bool) {
        loop {
            let rest = std::mem::take(&mut self.down.entry(id).or_default().rest);
            let mut head = ClientResponse::new();
            let step = self
                .client
                .receive(StreamId::new(id), &rest, has_ended, &mut head);
            let step = step.expect("the server breaks no rule");
            let goes_on = !matches!(
                step.received,
                ClientReceived::NeedMore | ClientReceived::Blocked
            );
            let pipe = self.down.entry(id).or_default();
            pipe.rest = rest[step.taken..].to_vec();
            pipe.is_blocked = step.received == ClientReceived::Blocked;
            self.on_answer(id, step.received, &rest, &head);
            if !goes_on {
                break;
            }
        }
        while let Some(unblocked) = self.client.poll_unblocked() {
            let pipe = self.down.entry(unblocked.get()).or_default();
            pipe.is_blocked = false;
            let has_ended = pipe.is_over && pipe.bytes.is_empty();
            self.client_gets(unblocked.get(), has_ended);
        }
    }

    fn on_answer(
        &mut self,
        id: u64,
        received: ClientReceived,
        input: &[u8],
        head: &ClientResponse,
    ) {
        let seen = self.responses.entry(id).or_default();
        match received {
            ClientReceived::Informational { .. } => {
                assert_eq!(head.status.as_u16(), 103);
                seen.has_interim = true;
            }
            ClientReceived::Response { end_stream, .. } => {
                seen.fields = read(&head.headers);
                seen.is_complete = end_stream;
                assert_eq!(
                    head.status.as_u16(),
                    self.plans[usize::try_from(id / 4).expect("the stream id fits into a usize")]
                        .status
                );
            }
            ClientReceived::Data {
                data, end_stream, ..
            } => {
                seen.content.extend_from_slice(&input[data]);
                seen.is_complete = end_stream;
            }
            ClientReceived::Trailers { .. } => {
                seen.trailers = Some(read(&head.headers));
                seen.is_complete = true;
            }
            ClientReceived::Reset { .. } | ClientReceived::Refused { .. } => {
                panic!("stream {id} was reset or refused: {received:?}");
            }
            _ => return,
        }
        if seen.is_complete {
            // The stream is only noted here: releasing it before its end is received would cancel the request.
            self.done.insert(id);
        }
    }

    fn check(&mut self) {
        for number in 0..self.plans.len() {
            let id = 4 * number as u64;
            if self.cancelled.contains(&id) {
                continue;
            }
            let plan = &self.plans[number];
            let want = Seen {
                fields: plan.response_fields.clone(),
                content: plan.response.clone(),
                trailers: plan.response_trailers.clone(),
                has_interim: plan.interim,
                is_complete: true,
            };
            assert_eq!(self.responses[&id], want, "exchange {number}");
            let key = self
                .keys
                .remove(&id)
                .expect("the simulation has the stream");
            self.client.release(key);
            assert_eq!(
                self.client.poll_command(),
                None,
                "no command waits to be sent"
            );
        }
        assert!(
            !self.server.has_streams(),
            "{:?}",
            self.server.streams().collect::<Vec<_>>()
        );
        assert_eq!(self.client.open_streams(), 0);
    }
}

#[test]
fn exchanges_arrive_as_they_were_sent_however_they_are_cut() {
    let sums = run_seeds(60, |seed| World::new(seed).run());
    if let Some((done, planned)) = sums {
        assert!(
            done * 10 > planned * 8,
            "{done} of {planned} exchanges were completed"
        );
    }
}
