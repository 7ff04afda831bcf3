//! Tests with random steps on several streams at once, compared with a model that knows what each stream may do next.

use std::collections::BTreeMap;

use h2o_http3::{Settings, StreamState};
use h2o_testkit::{Random, run_seeds};

use crate::kit::server::Conversation;
use crate::kit::{CONNECT, CONTROL, GET, POST, data, frame, headers};

const MAX_STREAMS: u32 = 4;

/// How far the client has come on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The stream is open, but the client has sent nothing on it.
    Silent,
    Content,
    Trailers,
    Ended,
    GivenUp,
}

#[derive(Clone, Copy, Debug)]
struct Model {
    client: Client,
    is_tunnel: bool,
    /// Whether the server has ended its response.
    is_answered: bool,
    /// Whether the engine has reported the stream, and the stream is not released yet.
    is_held: bool,
}

impl Model {
    fn state(self) -> StreamState {
        match (self.client, self.is_answered) {
            (Client::GivenUp, _) | (Client::Ended, true) => StreamState::Closed,
            (Client::Ended, false) => StreamState::HalfClosedRemote,
            (_, true) => StreamState::HalfClosedLocal,
            (_, false) => StreamState::Open,
        }
    }
}

struct Walk {
    talk: Conversation,
    random: Random,
    streams: BTreeMap<u64, Model>,
    next: u64,
    requests: usize,
    released: usize,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let talk = Conversation::with(Settings {
            max_streams: MAX_STREAMS,
            ..Settings::default()
        });
        Self {
            talk,
            random: Random::new(seed),
            streams: BTreeMap::new(),
            next: 0,
            requests: 0,
            released: 0,
        }
    }

    /// The events of one call, in words; none may close the connection.
    fn events(&mut self) -> Vec<String> {
        let events = std::mem::take(&mut self.talk.events);
        let closes = events.iter().any(|event| event.starts_with("close"));
        assert!(
            !closes,
            "the connection was closed although the client breaks no rule: {events:?}"
        );
        events
    }

    fn pick(&mut self) -> Option<(u64, Model)> {
        let all: Vec<_> = self
            .streams
            .iter()
            .map(|(&id, &model)| (id, model))
            .collect();
        let at = self.random.below(all.len().max(1));
        all.get(at).copied()
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0 | 1 => self.opens(),
            2 => self.speaks_of_priority(),
            3 => self.releases(),
            4 => self.answers(),
            5 => self.gives_up(),
            _ => self.sends(),
        }
        for (&id, model) in &self.streams {
            if model.is_held {
                let state = self.talk.state(id);
                assert_eq!(state, model.state(), "stream {id}: {model:?}");
            }
        }
        let held = self.talk.connection.streams().count();
        assert_eq!(
            held,
            self.streams.values().filter(|model| model.is_held).count()
        );
    }

    fn opens(&mut self) {
        let id = self.next;
        self.next += 4;
        let is_full = self.streams.len() >= MAX_STREAMS as usize;
        self.talk.opens(id);
        let events = self.events();
        if is_full {
            assert_eq!(events.len(), 3, "{events:?}");
            assert_eq!(events[0], "rejected H3_REQUEST_REJECTED");
            self.talk.ends(id, headers(GET));
            assert_eq!(
                self.events(),
                [""; 0],
                "frames on a rejected stream are dropped"
            );
            return;
        }
        assert_eq!(events, [""; 0]);
        let model = Model {
            client: Client::Silent,
            is_tunnel: false,
            is_answered: false,
            is_held: false,
        };
        self.streams.insert(id, model);
    }

    /// Sends the next part of the message on a random stream.
    fn sends(&mut self) {
        let Some((id, mut model)) = self.pick() else {
            return;
        };
        let ends = self.random.once_in(3);
        let grease = self.random.once_in(5);
        let mut bytes = if grease {
            frame(0x21, b"x")
        } else {
            Vec::new()
        };
        let (said, client) = match model.client {
            Client::Silent => {
                model.is_tunnel = !ends && self.random.once_in(4);
                let (fields, words) = match (model.is_tunnel, ends) {
                    (true, _) => (CONNECT, "CONNECT http://b.example:443b.example:443"),
                    (false, true) => (GET, "GET https://a.example/"),
                    (false, false) => (POST, "POST https://a.example/"),
                };
                bytes.extend(headers(fields));
                model.is_held = true;
                self.requests += 1;
                (words.to_owned(), Client::Content)
            }
            Client::Content if !model.is_tunnel && self.random.once_in(4) => {
                bytes.extend(headers(&[("x", "y")]));
                ("trailers x=y".to_owned(), Client::Trailers)
            }
            Client::Content => {
                bytes.extend(data(b"abc"));
                ("data abc".to_owned(), Client::Content)
            }
            // Only unknown frames and the end of the stream may follow trailers.
            Client::Trailers => (String::new(), Client::Trailers),
            Client::Ended | Client::GivenUp => {
                bytes.extend(data(b"late"));
                (String::new(), model.client)
            }
        };
        let is_open = !matches!(model.client, Client::Ended | Client::GivenUp);
        self.talk.said(id, &bytes, ends);
        let is_told = ends && client == Client::Content;
        model.client = if ends && is_open {
            Client::Ended
        } else {
            client
        };
        let want = match said.as_str() {
            "" => Vec::new(),
            said if is_told => vec![format!("{id} {said} END")],
            said => vec![format!("{id} {said}")],
        };
        assert_eq!(self.events(), want, "stream {id}: {model:?}");
        self.streams.insert(id, model);
    }

    fn gives_up(&mut self) {
        let Some((id, mut model)) = self.pick() else {
            return;
        };
        let resets = self.random.once_in(2);
        let before = model.state();
        if resets {
            self.talk.resets(id, 0x10c);
        } else {
            self.talk.stops(id, 0x10c);
        }
        let events = self.events();
        let counts = match before {
            StreamState::Open => true,
            StreamState::HalfClosedLocal => resets,
            StreamState::HalfClosedRemote => !resets,
            StreamState::Closed => false,
        };
        if !counts {
            assert_eq!(events, [""; 0], "{before:?}");
            return;
        }
        let is_reported = events.contains(&format!("{id} reset H3_REQUEST_CANCELLED"));
        assert_eq!(is_reported, model.is_held, "{events:?}");
        if model.is_held {
            model.client = Client::GivenUp;
            self.streams.insert(id, model);
        } else {
            self.streams.remove(&id);
        }
    }

    fn answers(&mut self) {
        let Some((id, mut model)) = self.pick() else {
            return;
        };
        if !model.is_held {
            return;
        }
        let can = !model.is_answered && model.client != Client::GivenUp;
        let said = self.talk.responds(id, 200, &[], None, true);
        assert_eq!(said.len(), usize::from(can));
        model.is_answered |= can;
        self.streams.insert(id, model);
        assert_eq!(self.events(), [""; 0]);
    }

    fn releases(&mut self) {
        let Some((id, model)) = self.pick() else {
            return;
        };
        if !model.is_held {
            return;
        }
        let state = model.state();
        self.talk.release(id);
        let stop = format!("STOP_SENDING {id}");
        let reset = format!("RESET_STREAM {id}");
        let events = self.events();
        let has = |what: &str| events.iter().any(|event| event.starts_with(what));
        let stops = matches!(state, StreamState::Open | StreamState::HalfClosedLocal);
        let resets = matches!(state, StreamState::Open | StreamState::HalfClosedRemote);
        assert_eq!(
            (has(&stop), has(&reset)),
            (stops, resets),
            "{state:?}: {events:?}"
        );
        self.streams.remove(&id);
        self.released += 1;
    }

    fn speaks_of_priority(&mut self) {
        let ahead = 4 * self.random.below(3) as u64;
        let id = (self.next + ahead).saturating_sub(4 * self.random.below(6) as u64);
        let value = ["u=1", "u=7, i", ""][self.random.below(3)];
        let update = h2o_testkit::http3::Frame::priority_update(id, value).bytes();
        self.talk.sends(CONTROL, update);
        let is_held = self.streams.get(&id).is_some_and(|model| model.is_held);
        assert_eq!(self.events().len(), usize::from(is_held));
    }
}

#[test]
fn streams_do_what_a_model_says_whatever_happens_to_others() {
    run_seeds(150, |seed| {
        let mut walk = Walk::new(seed);
        for _ in 0..400 {
            walk.step();
        }
        let ids: Vec<u64> = walk.streams.keys().copied().collect();
        for id in ids {
            if walk.streams[&id].is_held {
                walk.talk.release(id);
            } else {
                walk.talk.resets(id, 0x10c);
            }
        }
        walk.events();
        assert!(
            !walk.talk.connection.has_streams(),
            "all streams are released"
        );
        walk.talk.connection.shrink();
        let retained = walk.talk.connection.retained();
        assert!(retained < 2048, "the connection holds {retained} bytes");
        (walk.released, walk.requests)
    });
}
