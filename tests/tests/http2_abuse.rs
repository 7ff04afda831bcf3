//! HTTP/2 clients that cost a server more than they cost themselves. Each attack runs against a server of its own with one thread. The
//! server must end the attacker's connection soon and at little cost, while other clients are served as usual.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2o_tests::http2::{
    Answer, Frame, Http2, Indexing, Received, code, encode, encode_integer, encode_with, flag, get,
    kind, post, setting,
};
use h2o_tests::{Deadline, Server, Setup, binary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of hostile frames after which the server must have ended the connection.
const FRAMES: usize = 5000;

/// Number of hostile frames that make the server reset streams, after which the server must have ended the connection. It is smaller
/// than [`FRAMES`], because each reset costs the server more than other frames.
const RESETS: usize = 1000;

/// Processor time that an attack may cost a server that was built in release mode.
const CPU: Duration = Duration::from_millis(100);

/// Factor by which [`CPU`] is longer for a server that was built without optimisation. This project's crates are slow then, while
/// dependencies and the kernel are not, and attacks mostly cost the parsing of frames, which is this project's code. The factor is an
/// allowance, not a measurement.
const DEBUG_FACTOR: u32 = 6;

/// Bytes by which the server's memory may grow for each byte that it was sent, and (`MEMORY`) in addition to that.
const MEMORY_PER_BYTE: usize = 2;
const MEMORY: usize = 1024 * 1024;

/// Limit of the 99th percentile of a well-behaved client's latency during an attack, measured as processor time of the server between
/// request and response, because the machine may be busy with other processes.
const LATENCY: Duration = Duration::from_millis(50);

/// How long the server may take to read the last frames of an attack. It is shorter than the idle timeout, which ends connections too.
const LAST_FRAMES: Duration = Duration::from_secs(5);

/// Interval between the requests of the well-behaved client.
const PERIOD: Duration = Duration::from_millis(4);

/// Number of requests by which the usual latency is measured.
const USUAL: usize = 50;

const MOST: u32 = (1 << 31) - 1;

fn start(settings: &str) -> Server {
    Setup::new(&format!(
        "
{settings}
listen: @PORT@
num-threads: 1
limit-request-body: 10000
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /upload: {{ redirect: {{ url: 'http://elsewhere.example/', status: 302 }} }}
"
    ))
    .file("www/a.txt", "hello")
    .file("www/large", vec![b'x'; 20_000_000])
    .start()
}

/// One attack: the frames that the client sends, and how its connection must end.
struct Attack {
    name: &'static str,
    /// Settings that the client sends in its SETTINGS frame.
    settings: &'static [(u16, u32)],
    /// Returns the frames to send next; the argument is the number of calls before this one.
    frames: fn(u32) -> Vec<Frame>,
    replies: Replies,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Replies {
    Read,
    Unread,
}

/// How the connection of an attack must end.
#[derive(Clone, Copy)]
enum End {
    /// By GOAWAY or the end of the connection, before the client has sent this many frames.
    Within(usize),
    /// As [`End::Within`], but the client pauses after each frame so that the server can respond, which makes the count exact.
    Promptly(usize),
    /// The connection need not end: the client sends this many frames, and only their cost is checked.
    Harmless(usize),
}

impl Attack {
    const fn new(name: &'static str, end: End, frames: fn(u32) -> Vec<Frame>) -> Self {
        Self {
            name,
            settings: &[],
            frames,
            replies: Replies::Read,
            end,
        }
    }

    const fn with(mut self, settings: &'static [(u16, u32)]) -> Self {
        self.settings = settings;
        self
    }

    const fn unread(mut self) -> Self {
        self.replies = Replies::Unread;
        self
    }
}

const SHUT: &[(u16, u32)] = &[(setting::INITIAL_WINDOW_SIZE, 0)];

/// The stream id of the client's request number `n`.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

/// The head of a POST request whose content is to follow.
fn upload(n: u32) -> Frame {
    Frame::request_with_content(stream(n), post("/upload"))
}

/// The frames `first` and `each` for the first call (`n` is 0), and `each` alone for every other.
fn after(n: u32, first: Frame, each: Frame) -> Vec<Frame> {
    if n == 0 {
        vec![first, each]
    } else {
        vec![each]
    }
}

// --- the attacks ---------------------------------------------------------------------------------------------------

const CLIENT_RESETS: &[Attack] = &[
    Attack::new("rapid reset", End::Within(FRAMES), |n| {
        vec![
            Frame::request(stream(n), get("/a.txt")),
            Frame::rst_stream(stream(n), code::CANCEL),
        ]
    }),
    Attack::new("rapid reset of large answers", End::Within(FRAMES), |n| {
        vec![
            Frame::request(stream(n), get("/large")),
            Frame::rst_stream(stream(n), code::CANCEL),
        ]
    }),
    Attack::new("rapid reset of uploads", End::Within(FRAMES), |n| {
        vec![upload(n), Frame::rst_stream(stream(n), code::NO_ERROR)]
    }),
    Attack::new("RST_STREAM of what is over", End::Within(FRAMES), |n| {
        let reset = Frame::rst_stream(1, code::CANCEL);
        after(n, Frame::request(1, get("/a.txt")), reset)
    }),
];

const SERVER_RESETS: &[Attack] = &[
    Attack::new("WINDOW_UPDATE of 0", End::Within(RESETS), |n| {
        vec![upload(n), Frame::window_update(stream(n), 0)]
    }),
    Attack::new("WINDOW_UPDATE of 0 to answers", End::Within(RESETS), |n| {
        let get = Frame::request(stream(n), get("/large"));
        vec![get, Frame::window_update(stream(n), 0)]
    }),
    Attack::new(
        "WINDOW_UPDATE of 0 to small answers",
        End::Within(RESETS),
        |n| {
            let get = Frame::request(stream(n), get("/a.txt"));
            vec![get, Frame::window_update(stream(n), 0)]
        },
    )
    .with(SHUT),
    Attack::new("window overflow", End::Within(RESETS), |n| {
        vec![upload(n), Frame::window_update(stream(n), MOST)]
    }),
    Attack::new("content-length mismatch", End::Within(RESETS), |n| {
        let section = [post("/upload"), encode(&[("content-length", "3")])];
        vec![
            Frame::request_with_content(stream(n), section.concat()),
            Frame::data(stream(n), flag::END_STREAM, *b"four"),
        ]
    }),
    Attack::new("requests without :path", End::Within(RESETS), |n| {
        let section = encode(&[(":method", "GET"), (":scheme", "http")]);
        vec![Frame::request(stream(n), section)]
    }),
    Attack::new("requests without fields", End::Within(RESETS), |n| {
        vec![Frame::request(stream(n), [])]
    }),
    Attack::new("DATA on closed streams", End::Within(RESETS), |n| {
        vec![
            Frame::request(stream(n), get("/a.txt")),
            Frame::data(stream(n), 0, *b"x"),
        ]
    }),
    Attack::new("content above the limit", End::Within(RESETS), |n| {
        vec![upload(n), Frame::data(stream(n), 0, [b'x'; 10_001])]
    }),
    Attack::new("streams above the maximum", End::Within(RESETS), |n| {
        vec![Frame::request(stream(n), get("/large"))]
    })
    .with(SHUT),
];

/// A HEADERS frame without END_HEADERS for the first call (`n` is 0), and a CONTINUATION frame with `each` for every other.
fn continued(n: u32, begin: Vec<u8>, each: Vec<u8>) -> Vec<Frame> {
    match n {
        0 => vec![Frame::new(kind::HEADERS, flag::END_STREAM, 1, begin)],
        _ => vec![Frame::continuation(1, each)],
    }
}

/// The beginning of a field section with a value whose length is announced as a million bytes.
fn endless_value() -> Vec<u8> {
    let mut section = get("/a.txt");
    section.extend([0, 1, b'x']);
    encode_integer(&mut section, 0, 7, 1_000_000);
    section
}

const CONTINUATIONS: &[Attack] = &[
    // The server accepts at most eight CONTINUATION frames for a field section.
    Attack::new("empty CONTINUATION", End::Promptly(10), |n| {
        continued(n, get("/a.txt"), Vec::new())
    }),
    Attack::new("CONTINUATION of one byte", End::Promptly(10), |n| {
        continued(n, endless_value(), vec![b'x'])
    }),
    // With the fourth CONTINUATION frame the field section exceeds 64 KB.
    Attack::new("CONTINUATION of 16 KB", End::Promptly(5), |n| {
        let mut begin = endless_value();
        begin.resize(16_384, b'x');
        continued(n, begin, vec![b'x'; 16_384])
    }),
];

const BOMBS: &[Attack] = &[
    Attack::new("16,000 fields of one byte", End::Promptly(2), |n| {
        let section = [get("/a.txt"), vec![0x90; 16_000]].concat();
        vec![Frame::request(stream(n), section)]
    }),
    Attack::new("4 KB from the table 12,000 times", End::Promptly(2), |n| {
        let entry = encode_with(Indexing::Incremental, &[("x", &"y".repeat(4000))]);
        let section = [get("/a.txt"), entry, vec![0xbe; 12_000]].concat();
        vec![Frame::request(stream(n), section)]
    }),
    Attack::new("2,000 cookie crumbs", End::Promptly(2), |n| {
        let section = [get("/a.txt"), b"\x0f\x11\x03a=b".repeat(2000)].concat();
        vec![Frame::request(stream(n), section)]
    }),
    // Each section has fewer fields than the limit, but 360 KB when decoded, and a hundred requests are held open.
    Attack::new("4 KB from the table 90 times", End::Harmless(100), |n| {
        let entry = encode_with(Indexing::Incremental, &[("x", &"y".repeat(4000))]);
        let entry = if n == 0 { entry } else { Vec::new() };
        let section = [get("/large"), entry, vec![0xbe; 90]].concat();
        vec![Frame::request(stream(n), section)]
    })
    .with(SHUT),
    Attack::new("16,000 table sizes", End::Harmless(50), |n| {
        let sizes = [0x20, 0x3f, 0xe1, 0x1f].repeat(4000);
        vec![Frame::request(stream(n), [sizes, get("/a.txt")].concat())]
    }),
];

fn ping(n: u32) -> Vec<Frame> {
    vec![Frame::ping(u64::from(n).to_be_bytes())]
}

fn settings(n: u32) -> Vec<Frame> {
    vec![Frame::settings(&[(
        setting::HEADER_TABLE_SIZE,
        4096 - n % 2,
    )])]
}

fn no_settings(_: u32) -> Vec<Frame> {
    vec![Frame::settings(&[])]
}

const REPLIES: &[Attack] = &[
    Attack::new("PING", End::Within(FRAMES), ping),
    Attack::new("PING, replies unread", End::Within(FRAMES), ping).unread(),
    Attack::new("SETTINGS", End::Within(FRAMES), settings),
    Attack::new("SETTINGS, replies unread", End::Within(FRAMES), settings).unread(),
    Attack::new("empty SETTINGS", End::Within(FRAMES), no_settings),
    Attack::new(
        "SETTINGS that move 100 windows",
        End::Within(FRAMES),
        |n| match n {
            0..100 => vec![Frame::request(stream(n), get("/large"))],
            _ => vec![Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, n % 2)])],
        },
    )
    .with(SHUT),
];

const USELESS: &[Attack] = &[
    Attack::new("empty DATA", End::Within(FRAMES), |n| {
        after(n, upload(0), Frame::data(1, 0, []))
    }),
    Attack::new("DATA of padding", End::Within(FRAMES), |n| {
        after(n, upload(0), Frame::data(1, 0, []).padded(0))
    }),
    Attack::new("PRIORITY of a stream", End::Within(FRAMES), |n| {
        let weight = if n.is_multiple_of(2) { 1 } else { 256 };
        let each = Frame::priority(1, true, 0, weight);
        after(n, Frame::request(1, get("/large")), each)
    })
    .with(SHUT),
    Attack::new("PRIORITY of idle streams", End::Within(FRAMES), |n| {
        // The ten streams depend on each other in a chain, whose order each frame changes.
        let (child, parent) = (n % 10, (n + 1) % 10);
        vec![Frame::priority(stream(child), true, stream(parent), 16)]
    }),
    Attack::new("PRIORITY of closed streams", End::Within(FRAMES), |n| {
        let each = Frame::priority(1, true, 0, 16);
        after(n, Frame::request(11, get("/a.txt")), each)
    }),
    Attack::new("PRIORITY_UPDATE of a stream", End::Within(FRAMES), |n| {
        let value = if n.is_multiple_of(2) { "u=1" } else { "u=2, i" };
        let each = Frame::priority_update(1, value);
        after(n, Frame::request(1, get("/large")), each)
    })
    .with(SHUT),
    Attack::new(
        "PRIORITY_UPDATE of idle streams",
        End::Within(FRAMES),
        |n| vec![Frame::priority_update(stream(n), "u=1")],
    ),
    Attack::new("unknown frames", End::Within(FRAMES), |n| {
        vec![Frame::new(0xfa, 0, n % 7, [])]
    }),
    Attack::new("WINDOW_UPDATE of 1", End::Within(FRAMES), |_| {
        vec![Frame::window_update(0, 1)]
    }),
    Attack::new("one-byte windows", End::Within(FRAMES), |n| {
        let each = Frame::window_update(1, 1);
        after(n, Frame::request(1, get("/large")), each)
    })
    .with(&[(setting::INITIAL_WINDOW_SIZE, 1)]),
];

#[test]
fn clients_that_reset_streams_are_cut_off() {
    withstand(CLIENT_RESETS);
}

#[test]
fn clients_that_make_the_server_reset_streams_are_cut_off() {
    withstand(SERVER_RESETS);
}

#[test]
fn field_sections_without_end_are_cut_off() {
    withstand(CONTINUATIONS);
}

#[test]
fn field_sections_that_grow_when_decoded_are_cut_off() {
    withstand(BOMBS);
}

#[test]
fn clients_that_make_the_server_reply_are_cut_off() {
    withstand(REPLIES);
}

#[test]
fn clients_that_send_frames_of_no_use_are_cut_off() {
    withstand(USELESS);
}

// --- how they are played -------------------------------------------------------------------------------------------

/// Runs every attack against a server of its own, and fails with a list of all faults.
fn withstand(attacks: &[Attack]) {
    let faults: Vec<String> = attacks.iter().flat_map(play).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn play(attack: &Attack) -> Vec<String> {
    let server = start("");
    let cost = Cost::of(&server, || strike(&server, attack));
    eprintln!("{}: {}, {cost}", attack.name, cost.outcome);
    let mut faults = cost.faults(cost.outcome.bytes);
    faults.extend(cost.outcome.fault(attack.end));
    if !faults.is_empty() && !cost.outcome.story.is_empty() {
        faults.push(cost.outcome.story.clone());
    }
    let named = faults
        .into_iter()
        .map(|fault| format!("* {}: {fault}", attack.name));
    named.collect()
}

/// What the attacker saw.
struct Outcome {
    frames: usize,
    bytes: usize,
    is_ended: bool,
    story: String,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.is_ended { "ended" } else { "not ended" };
        write!(
            f,
            "{end} after {} frames, {} bytes",
            self.frames, self.bytes
        )
    }
}

impl Outcome {
    fn fault(&self, end: End) -> Option<String> {
        match end {
            End::Within(most) | End::Promptly(most) => {
                let is_soon = self.is_ended && self.frames <= most;
                (!is_soon).then(|| format!("{self}, not within {most}"))
            }
            End::Harmless(_) => None,
        }
    }
}

/// Sends the attack's frames until the server ends the connection, or a few more than the limit allows. Also returns the peak of the
/// server's memory.
fn strike(server: &Server, attack: &Attack) -> (Outcome, usize) {
    let mut connection = Http2::open(server.port(), attack.settings);
    // How many calls of `frames` are sent at once, so that the server does not wake for each; how long to wait after them; and the limit.
    let (batch, pause, most) = match attack.end {
        End::Within(most) => (
            most.div_ceil(100),
            Duration::from_millis(1),
            most + most / 4,
        ),
        End::Promptly(most) => (1, Duration::from_millis(30), most),
        End::Harmless(most) => (1, Duration::from_millis(2), most),
    };
    let batch = u32::try_from(batch).expect("batches are small");
    let mut outcome = Outcome {
        frames: 0,
        bytes: 0,
        is_ended: false,
        story: String::new(),
    };
    let mut turn = 0;
    let mut memory_peak = 0;
    while outcome.frames < most && !outcome.is_ended {
        let frames: Vec<Frame> = (turn..turn + batch).flat_map(attack.frames).collect();
        turn += batch;
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        let all_taken = connection.try_send(&bytes);
        outcome.frames += frames.len();
        outcome.bytes += bytes.len();
        outcome.is_ended = !all_taken || has_ended(&mut connection, attack.replies, pause);
        memory_peak = memory_peak.max(memory(server.pid()));
    }
    // The server may not have read the last frames yet.
    if !outcome.is_ended && !matches!(attack.end, End::Harmless(_)) {
        outcome.is_ended = has_ended(&mut connection, attack.replies, LAST_FRAMES);
    }
    let still_open = outcome.is_ended && !closes(&mut connection);
    if still_open || !outcome.is_ended {
        outcome.story = connection.story();
    }
    outcome.is_ended &= !still_open;
    (outcome, memory_peak.max(memory(server.pid())))
}

/// Whether the server has sent GOAWAY or closed the connection. Handles what the server sends until nothing comes for `pause`.
fn has_ended(connection: &mut Http2, replies: Replies, pause: Duration) -> bool {
    match replies {
        Replies::Read => loop {
            match connection.read(pause) {
                Received::Frame(_) if connection.goaway.is_some() => return true,
                Received::Frame(_) => {}
                Received::Closed => return true,
                Received::Nothing => return false,
            }
        },
        Replies::Unread => is_hung_up(connection, pause),
    }
}

/// Whether the server closes the connection within `pause`; received bytes are not read.
fn is_hung_up(connection: &Http2, pause: Duration) -> bool {
    let mut sockets = [PollFd::new(connection.socket(), PollFlags::RDHUP)];
    let pause = Timespec::try_from(pause).expect("the pause fits into a Timespec");
    poll(&mut sockets, Some(&pause)).expect("one socket can be polled");
    !sockets[0].revents().is_empty()
}

/// Whether the server closes the connection within five seconds.
fn closes(connection: &mut Http2) -> bool {
    connection.read_while_waiting(Duration::from_secs(5), |connection| connection.is_closed)
}

/// What an attack costs the server and its other clients.
struct Cost<T> {
    outcome: T,
    /// Processor time of the server, including some 10 ms a second for the requests of the well-behaved client.
    cpu: Duration,
    memory: usize,
    /// Latencies of the well-behaved client's requests before the attack and (`meanwhile`) during it.
    usual: Vec<Duration>,
    meanwhile: Vec<Duration>,
}

impl<T> Cost<T> {
    /// Runs `attack`, which returns its outcome and the peak of the server's memory, while a well-behaved client requests a small file
    /// again and again on a connection of its own.
    fn of(server: &Server, attack: impl FnOnce() -> (T, usize)) -> Self {
        let pid = server.pid();
        // These requests make the server allocate what it allocates once, such as caches, before its memory is measured.
        for path in ["/large", "/a.txt", "/none"] {
            let _ = server.ask(&format!("GET {path}"));
        }
        let mut neighbour = Neighbour::new(server);
        let _ = neighbour.ask_while(pid, |asked| asked < USUAL);
        let usual = neighbour.ask_while(pid, |asked| asked < USUAL);

        let memory_before = memory(pid);
        let cpu_before = cpu(pid);
        let is_over = AtomicBool::new(false);
        let (outcome, memory_peak, meanwhile) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                neighbour.ask_while(pid, |asked| asked < 20 || !is_over.load(Ordering::Relaxed))
            });
            let over = Over(&is_over);
            let (outcome, memory_peak) = attack();
            drop(over);
            let meanwhile = asking
                .join()
                .expect("the thread of the other clients does not panic");
            (outcome, memory_peak, meanwhile)
        });
        let cpu = cpu(pid).saturating_sub(cpu_before);
        assert!(
            !server.messages().contains("panicked"),
            "{}",
            server.messages()
        );
        Self {
            outcome,
            cpu,
            memory: memory_peak.saturating_sub(memory_before),
            usual,
            meanwhile,
        }
    }

    /// Each cost that exceeds its limit; `bytes` is how many bytes the attacker sent.
    fn faults(&self, bytes: usize) -> Vec<String> {
        let mut faults = Vec::new();
        let is_debug = binary()
            .components()
            .any(|part| part.as_os_str() == "debug");
        let limit = if is_debug { CPU * DEBUG_FACTOR } else { CPU };
        if self.cpu > limit {
            faults.push(format!("{:?} of the processor, not {limit:?}", self.cpu));
        }
        let limit = MEMORY + MEMORY_PER_BYTE * bytes;
        if self.memory > limit {
            faults.push(format!("{} bytes of memory, not {limit}", self.memory));
        }
        faults.extend(self.latency_fault());
        faults
    }

    fn latency_fault(&self) -> Option<String> {
        let latency = percentile_99(&self.meanwhile);
        (latency > LATENCY).then(|| format!("others waited for {latency:?}, not {LATENCY:?}"))
    }
}

impl<T> std::fmt::Display for Cost<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (latency, usual) = (percentile_99(&self.meanwhile), percentile_99(&self.usual));
        write!(
            f,
            "{:?} CPU, {} KB, others' p99 {latency:.1?}, {:.1} of usual",
            self.cpu,
            self.memory / 1024,
            latency.as_secs_f64() / usual.as_secs_f64()
        )
    }
}

fn percentile_99(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100);
    times[at.saturating_sub(1)]
}

/// A well-behaved client, on a connection of its own.
struct Neighbour {
    connection: Http2,
    asked: u32,
}

impl Neighbour {
    fn new(server: &Server) -> Self {
        Self {
            connection: Http2::open(server.port(), &[]),
            asked: 0,
        }
    }

    /// Requests a small file every few milliseconds while `goes_on` is true. Returns for each request the processor time that the server
    /// used, for all clients, until the response came.
    fn ask_while(&mut self, pid: u32, goes_on: impl Fn(usize) -> bool) -> Vec<Duration> {
        let mut times = Vec::new();
        while goes_on(times.len()) {
            let before = processor_time(pid);
            let answer: Answer = self.connection.ask(stream(self.asked), &get("/a.txt"));
            times.push(processor_time(pid).saturating_sub(before));
            assert_eq!((answer.status(), &*answer.text()), (200, "hello"));
            self.asked += 1;
            // The pause is the client's behaviour; the test waits for nothing here.
            std::thread::sleep(PERIOD);
        }
        times
    }
}

/// Sets the flag when it is dropped, so also when the attack panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Processor time of a process: all its threads, also those that have ended.
fn cpu(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    // The name in parentheses may contain blanks. Behind it, utime and stime are the 12th and 13th column.
    let (_, fields) = text
        .rsplit_once(") ")
        .expect("the second column of stat is a name in parentheses");
    let times = fields.split(' ').skip(11).take(2);
    let ticks: u64 = times.map(|time| time.parse::<u64>().unwrap_or(0)).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Processor time of the threads that the process has now, with the resolution of nanoseconds that schedstat has.
fn processor_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the server runs");
    let times = threads.filter_map(|thread| {
        // A thread may end between the listing and this read.
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}

/// Bytes of a process's anonymous memory.
fn memory(pid: u32) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let kilobytes = text.lines().find_map(|line| {
        let rest = line.strip_prefix("RssAnon:")?;
        rest.trim().strip_suffix(" kB")?.parse::<usize>().ok()
    });
    kilobytes.expect("the kernel accounts memory") * 1024
}

// --- clients that do not send or read ------------------------------------------------------------------------------

#[test]
fn clients_that_hold_their_windows_shut_are_gone_with_the_idle_timeout() {
    const IDLE: Duration = Duration::from_secs(2);
    let server = start("http2-idle-timeout: 2");
    let frames = (0..100).flat_map(|n| Frame::request(stream(n), get("/large")).bytes());
    let bytes: Vec<u8> = frames.collect();
    let cost = Cost::of(&server, || {
        let clock = Deadline::after_secs(10);
        let mut connection = Http2::open(server.port(), SHUT);
        connection.send(&bytes);
        connection.read_until("the heads of all 100 responses", |connection| {
            connection.answers.len() == 100
        });
        let memory = memory(server.pid());
        connection.read_to_end();
        (clock.elapsed(), memory)
    });
    eprintln!("gone after {:.1?}, {cost}", cost.outcome);
    // Without the directive the idle timeout would be 10 s, which the assertion excludes.
    let slack = Duration::from_secs(6);
    assert!(
        (IDLE..IDLE + slack).contains(&cost.outcome),
        "{:?}",
        cost.outcome
    );
    let faults = cost.faults(bytes.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The server may wait a minute for a client that does not read; this test is about the memory it uses meanwhile.
#[test]
fn answers_that_are_never_read_are_not_held_in_memory() {
    let server = start("");
    let window = [(setting::INITIAL_WINDOW_SIZE, MOST)];
    let frames = (0..100).flat_map(|n| Frame::request(stream(n), get("/large")).bytes());
    let bytes: Vec<u8> = frames.collect();
    let cost = Cost::of(&server, || {
        let mut connection = Http2::open(server.port(), &window);
        let receive_buffer = 64 * 1024;
        rustix::net::sockopt::set_socket_recv_buffer_size(connection.socket(), receive_buffer)
            .expect("the receive buffer can have 64 KB");
        connection.send_frame(&Frame::window_update(0, MOST - 65_535));
        connection.send(&bytes);
        let mut peak = 0;
        for _ in 0..50 {
            // The pause is needed because memory is watched over a time: no event is awaited.
            std::thread::sleep(Duration::from_millis(20));
            peak = peak.max(memory(server.pid()));
        }
        assert!(!is_hung_up(&connection, Duration::from_millis(1)));
        ((), peak)
    });
    eprintln!("{cost}");
    let faults = cost.faults(bytes.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn requests_whose_answers_nobody_reads_are_not_taken_without_end() {
    let server = start("");
    let window = [(setting::INITIAL_WINDOW_SIZE, MOST)];
    let cost = Cost::of(&server, || {
        let connection = Http2::open(server.port(), &window);
        rustix::net::sockopt::set_socket_recv_buffer_size(connection.socket(), 64 * 1024)
            .expect("the receive buffer can have 64 KB");
        let mut sent = 0;
        let mut peak = 0;
        // Sends requests for a second, or until the kernel accepts no more bytes.
        let clock = Deadline::after_secs(1);
        let socket = connection.socket();
        socket
            .set_nonblocking(true)
            .expect("the descriptor is a socket");
        for n in 0.. {
            let bytes = Frame::request(stream(n), get("/a.txt")).bytes();
            match rustix::io::write(socket, &bytes) {
                Ok(count) if count == bytes.len() => sent += count,
                Ok(_) | Err(_) => break,
            }
            peak = peak.max(if n % 100 == 0 {
                memory(server.pid())
            } else {
                0
            });
            if clock.has_passed() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        (sent, peak.max(memory(server.pid())))
    });
    eprintln!("{} bytes sent, {cost}", cost.outcome);
    let limit = MEMORY + MEMORY_PER_BYTE * cost.outcome;
    assert!(cost.memory <= limit, "{} bytes, not {limit}", cost.memory);
    assert_eq!(cost.latency_fault(), None);
}

/// The responses of a backend use up the budget when they have been sent, and not when the client's frames are processed.
#[test]
fn a_client_whose_requests_a_backend_refuses_is_told_before_it_is_cut_off() {
    let backend = start("");
    let front = Setup::new(&format!(
        "
connection-budget: 50
connection-budget.per-second: 0
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /: {{ proxy.reverse.url: 'http://127.0.0.1:{}/' }}
",
        backend.port()
    ))
    .start();
    let mut connection = Http2::open(front.port(), &[]);
    for n in 0..20 {
        connection.send_frame(&Frame::request(stream(n), get("/none")));
        connection.read_while_waiting(LAST_FRAMES, |connection| {
            connection.is_closed || connection.answer(stream(n)).is_over()
        });
        if connection.is_closed {
            break;
        }
    }
    let goaway = connection.goaway.as_ref().map(|goaway| goaway.code);
    assert_eq!(
        (goaway, connection.is_closed),
        (Some(code::ENHANCE_YOUR_CALM), true),
        "{}",
        connection.story()
    );
    front.wait_for_message("ends: its client has used up `connection-budget`");
}
