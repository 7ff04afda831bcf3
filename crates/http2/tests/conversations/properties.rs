//! Tests of properties that hold for random input: windows in both directions, field sections split in any way, and time
//! limits.

use std::collections::BTreeMap;
use std::time::Duration;

use h2o_http2::Settings;

use crate::kit::frames::*;
use crate::kit::server::Conversation;

/// A client's view of what the server may send: the window of the connection, the initial window of streams, and the
/// streams.
struct SendModel {
    connection: i64,
    initial: i64,
    /// For each stream, its window and the bytes of content that the server still has to send on it.
    streams: BTreeMap<u32, (i64, usize)>,
}

impl SendModel {
    /// Deducts a DATA frame that was received from the windows, and checks that they allowed it.
    fn spend(&mut self, stream: u32, len: usize, seed: u64) {
        let (window, left) = self
            .streams
            .get_mut(&stream)
            .expect("the stream is open in the model");
        let bytes = i64::try_from(len).expect("the length fits into the type");
        *window -= bytes;
        *left -= len;
        self.connection -= bytes;
        let is_allowed = bytes == 0 || (*window >= 0 && self.connection >= 0);
        assert!(
            is_allowed,
            "seed {seed}: {len} bytes beyond the window on stream {stream}"
        );
    }

    /// Whether some stream has content to send and a window that allows it.
    fn can_go_on(&self) -> bool {
        self.connection > 0
            && self
                .streams
                .values()
                .any(|&(window, left)| window > 0 && left > 0)
    }
}

#[test]
fn content_never_passes_a_window_and_never_stops_short_of_it() {
    for seed in 0..120 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut talk = Conversation::new();
        let mut model = SendModel {
            connection: 65_535,
            initial: 65_535,
            streams: BTreeMap::new(),
        };
        let mut newest = 0;
        for _ in 0..60 {
            let streams: Vec<u32> = model.streams.keys().copied().collect();
            let some = |random: &mut fastrand::Rng| random.choice(&streams).copied();
            match random.u8(..8) {
                0 | 1 if model.streams.len() < 20 => {
                    newest = newest.max(1) + 2;
                    let len = random.usize(1..200_000);
                    talk.client_sends(get(newest)).respond_long(newest, len);
                    model.streams.insert(newest, (model.initial, len));
                }
                2 => {
                    let increment = random.u32(1..100_000);
                    talk.client_sends(window_update(0, increment));
                    model.connection += i64::from(increment);
                }
                3 => {
                    if let Some(stream) = some(&mut random) {
                        let increment = random.u32(1..50_000);
                        talk.client_sends(window_update(stream, increment));
                        model
                            .streams
                            .entry(stream)
                            .and_modify(|entry| entry.0 += i64::from(increment));
                    }
                }
                4 => {
                    let initial = random.u32(..120_000);
                    talk.client_sends(settings(&[(4, initial)]));
                    let shift = i64::from(initial) - model.initial;
                    model.initial = i64::from(initial);
                    model
                        .streams
                        .values_mut()
                        .for_each(|entry| entry.0 += shift);
                }
                5 => {
                    if let Some(stream) = some(&mut random) {
                        talk.client_sends(rst_stream(stream, 8)).release(stream);
                        model.streams.remove(&stream);
                    }
                }
                _ => {}
            }
            talk.send(random.usize(..6));
            let said = talk.output();
            for (stream, content) in std::mem::take(&mut talk.reader.content) {
                assert!(
                    content.len() <= 16_384,
                    "seed {seed}: a frame is longer than 16,384 bytes"
                );
                model.spend(stream, content.len(), seed);
            }
            let ends = said.iter().filter(|frame| frame.ends_with(" END"));
            for stream in ends.filter_map(|frame| frame.split(' ').nth(1)) {
                let stream = stream.parse().expect("the frame names a stream");
                let (_, left) = model
                    .streams
                    .remove(&stream)
                    .expect("the stream is open in the model");
                assert_eq!(left, 0, "seed {seed}: stream {stream} ended early");
                talk.release(stream);
            }
            assert_eq!(
                talk.connection.has_sendable(),
                model.can_go_on(),
                "seed {seed}"
            );
        }
    }
}

/// A client's view of a stream on which it uploads.
#[derive(Clone, Copy)]
struct Upload {
    window: i64,
    /// Bytes of content that the server has received and its handler has not used.
    held: usize,
}

#[test]
fn windows_open_for_content_that_is_used_up_and_for_no_more() {
    const WINDOW: u32 = 100_000;
    for seed in 0..120 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut talk = Conversation::with(Settings {
            input_window: WINDOW,
            ..Settings::default()
        });
        let mut connection = i64::from(h2o_http2::CONNECTION_WINDOW);
        let mut uploads: BTreeMap<u32, Upload> = BTreeMap::new();
        let mut newest = 0;
        for _ in 0..80 {
            let ids: Vec<u32> = uploads.keys().copied().collect();
            match (random.u8(..6), random.choice(&ids).copied()) {
                (0, _) if uploads.len() < 10 => {
                    newest = newest.max(1) + 2;
                    talk.client_sends(post(newest));
                    let upload = Upload {
                        window: 65_535,
                        held: 0,
                    };
                    uploads.insert(newest, upload);
                }
                (1, Some(id)) => {
                    (talk.connection).accept_content(talk.key(id), &mut talk.out);
                }
                (2 | 3, Some(id)) => {
                    let upload = uploads
                        .get_mut(&id)
                        .expect("the stream is open in the model");
                    let room = upload.window.min(connection).min(16_384);
                    let len =
                        random.usize(..=usize::try_from(room).expect("the window is not negative"));
                    let padding = random.u8(..);
                    let is_padded = random.bool() && len > usize::from(padding);
                    let input = if is_padded {
                        let content = vec![b'x'; len - 1 - usize::from(padding)];
                        let padded =
                            [&[padding][..], &content, &vec![0; usize::from(padding)]].concat();
                        upload.held += content.len();
                        data(id, PADDED, &padded)
                    } else {
                        upload.held += len;
                        data(id, 0, &vec![b'x'; len])
                    };
                    let bytes = i64::try_from(len).expect("the length fits into the type");
                    upload.window -= bytes;
                    connection -= bytes;
                    talk.client_sends(input);
                }
                (4 | 5, Some(id)) => {
                    let upload = uploads
                        .get_mut(&id)
                        .expect("the stream is open in the model");
                    // Sometimes the caller gives back more bytes than it received.
                    let len = random.usize(..=upload.held) + random.usize(..2) * 1_000_000;
                    upload.held -= len.min(upload.held);
                    (talk.connection).release_content(talk.key(id), len, &mut talk.out);
                }
                _ => {}
            }
            for words in talk.output() {
                let Some(update) = words.strip_prefix("WINDOW_UPDATE ") else {
                    assert!(!words.starts_with("GOAWAY"), "seed {seed}: {words}");
                    continue;
                };
                let (id, increment) = update
                    .split_once(' ')
                    .expect("WINDOW_UPDATE is shown with two numbers");
                let increment: i64 = increment.parse().expect("the text is a number");
                match uploads.get_mut(&id.parse().expect("the frame names a stream")) {
                    Some(upload) => upload.window += increment,
                    None => connection += increment,
                }
            }
            for (id, upload) in &uploads {
                let held = i64::try_from(upload.held).expect("the length fits into the type");
                assert!(
                    upload.window + held <= i64::from(WINDOW),
                    "seed {seed}, stream {id}"
                );
            }
        }
        // Once all content is used, the window is open again, so that no upload gets stuck.
        for (id, upload) in uploads {
            talk.output();
            (talk.connection).accept_content(talk.key(id), &mut talk.out);
            (talk.connection).release_content(talk.key(id), upload.held, &mut talk.out);
            let left = talk
                .connection
                .streams()
                .find(|stream| stream.id.get() == id);
            let left = left.expect("the stream is open in the model").recv_window;
            assert!(
                left >= WINDOW / 2,
                "seed {seed}, stream {id}: the window has shrunk to {left} bytes"
            );
        }
    }
}

/// What the engine reports for a request in `bytes`, in words: the event, the pseudo-header fields and the fields.
fn heard(talk: &mut Conversation, bytes: &[u8]) -> String {
    talk.client_sends_one(bytes);
    let mut words = std::mem::take(&mut talk.events).join("; ");
    for field in talk.head.headers.iter() {
        words += &format!(" {}={}", field.name.as_str(), field.value.escape_ascii());
    }
    words
}

#[test]
fn a_request_is_the_same_however_its_section_is_cut() {
    let names = ["accept", "x-a", "cookie", "user-agent", "x-long-name"];
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let path = format!("/{}", "p".repeat(random.usize(..50)));
        let values: Vec<String> = (0..random.usize(..12))
            .map(|_| "v".repeat(random.usize(1..200)))
            .collect();
        let mut fields = vec![
            (":method", "GET"),
            (":scheme", "https"),
            (":path", &path[..]),
        ];
        fields.insert(random.usize(..3), (":authority", "a.example"));
        fields.extend(
            values
                .iter()
                .map(|value| (names[random.usize(..5)], &value[..])),
        );
        let section = block(&fields);
        let whole = heard(
            &mut Conversation::new(),
            &frame(HEADERS, WHOLE, 1, &section),
        );
        assert!(whole.starts_with("1 GET /"), "seed {seed}: {whole}");

        let mut at: Vec<usize> = (0..random.usize(..8))
            .map(|_| random.usize(..=section.len()))
            .collect();
        at.sort_unstable();
        let starts: Vec<usize> = std::iter::once(0).chain(at.iter().copied()).collect();
        let ends: Vec<usize> = at.into_iter().chain([section.len()]).collect();
        let mut input = Vec::new();
        for (number, (start, end)) in starts.iter().zip(&ends).enumerate() {
            let last = if number + 1 == ends.len() {
                END_HEADERS
            } else {
                0
            };
            let piece = &section[*start..*end];
            if number > 0 {
                input.extend(frame(CONTINUATION, last, 1, piece));
                continue;
            }
            let (mut flags, mut payload) = (END_STREAM | last, Vec::new());
            let padding = random.u8(..);
            if random.bool() {
                flags |= PADDED;
                payload.push(padding);
            }
            if random.bool() {
                flags |= WITH_PRIORITY;
                payload.extend(dependency(
                    random.u32(2..9),
                    random.u16(1..=256),
                    random.bool(),
                ));
            }
            payload.extend_from_slice(piece);
            if flags & PADDED != 0 {
                payload.extend(vec![0; usize::from(padding)]);
            }
            input.extend(frame(HEADERS, flags, 1, &payload));
        }
        let cut = heard(&mut Conversation::new(), &input);
        assert_eq!(cut, whole, "seed {seed}: {} frames in pieces", ends.len());
    }
}

#[test]
fn what_a_client_makes_us_keep_is_bounded_by_what_it_has_sent() {
    // Memory that a connection may hold, whatever it receives: for settings, a few windows and the tables of both
    // directions.
    const BASE: usize = 64 * 1024;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut talk = Conversation::new();
        let (mut sent, mut newest) = (0, 1);
        for _ in 0..200 {
            let input = match random.u8(..8) {
                0 => {
                    newest += 2;
                    get(newest)
                }
                1 => {
                    newest += 2;
                    let name = format!("x-{}", random.u32(..));
                    let value = "v".repeat(random.usize(..3_000));
                    let mut section = block(GET);
                    // A literal field that enters the dynamic table.
                    let mut literal = block(&[(&name, &value)]);
                    literal[0] = 0x40;
                    section.extend(literal);
                    frame(HEADERS, WHOLE, newest, &section)
                }
                2 => priority(random.u32(1..1000) * 2 + 1, 0, random.u16(1..=256), false),
                3 => priority_update(random.u32(1..1000) * 2 + 1, "u=1"),
                4 => rst_stream(newest, 8),
                5 => settings(&[(1, random.u32(..70_000))]),
                6 => frame(PING, 0, 0, b"12345678"),
                _ => window_update(0, 1),
            };
            sent += input.len();
            talk.client_sends(input);
            talk.out.clear();
            for id in talk.keys.keys().copied().collect::<Vec<_>>() {
                if random.u8(..4) == 0 {
                    talk.release(id);
                }
            }
            talk.out.clear();
            let retained = talk.connection.retained();
            assert!(
                retained <= BASE + 2 * sent,
                "seed {seed}: the connection holds {retained} bytes for {sent} bytes received"
            );
        }
    }
}

#[test]
fn a_connection_asks_for_a_time_that_comes_and_then_for_another() {
    // If the engine asked for the same time again after that time has come, the driver would call it in an endless loop.
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut talk = Conversation::with(Settings {
            idle_timeout: Duration::from_secs(random.u64(1..20)),
            graceful_shutdown_timeout: random
                .bool()
                .then(|| Duration::from_secs(random.u64(1..20))),
            ..Settings::default()
        });
        let mut newest = 1;
        for _ in 0..30 {
            match random.u8(..6) {
                0 => {
                    newest += 2;
                    talk.client_sends(get(newest));
                    talk.connection.on_activity(talk.now);
                }
                1 => talk.connection.shut_down(talk.now, &mut talk.out),
                2 => talk.is_waiting_for_us = random.bool(),
                _ => {}
            }
            let waits = talk.is_waiting_for_us;
            if let Some(at) = talk.connection.next_timeout(waits) {
                assert!(talk.connection.is_over() || at > talk.now, "seed {seed}");
                talk.now = at;
                let passed = talk.connection.on_timeout(at, waits, &mut talk.out);
                if passed.is_some() {
                    break;
                }
                let next = talk.connection.next_timeout(waits);
                assert!(
                    next.is_none_or(|next| next > at),
                    "seed {seed}: next_timeout gives the time that has passed"
                );
            }
        }
    }
}
