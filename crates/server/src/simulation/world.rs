//! The simulated world: the server, its clients, and the time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::Memory;
use h2o_exchange::Order;
use h2o_testkit::Random;
use rustls::ClientConfig;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedSender;

use super::http1::Http1;
use super::http2::Http2;
use super::http3::Http3;
use super::plan::{self, Plan};
use super::wire::Wire;
use super::{Client, Run};
use crate::event::event_loop::EventLoop;
use crate::event::in_runtime::WatchedSet;
use crate::worker;

/// The simulated world: the server and its clients.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) run: Run,
    clients: Vec<Client>,
    site: Site,
    event_loop: Rc<RefCell<EventLoop>>,
    /// Number of turns that the server's event loop has run.
    turns: Rc<Cell<u64>>,
    /// The UDP port of the server, if the simulation has HTTP/3 clients.
    port: Option<u16>,
    /// How much more time may pass in a simulation with HTTP/3.
    time_left: Duration,
    _orders: UnboundedSender<Order>,
}

/// The data that all simulations share: the addresses of the server, and the certificates that clients trust.
#[derive(Clone)]
pub(super) struct Site {
    folder: Rc<TempDir>,
    clear: PathBuf,
    tls: PathBuf,
    client: Arc<ClientConfig>,
}

impl Site {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["sim.test".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("certificate"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key"), key.serialize_pem()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            clear: folder.path().join("clear"),
            tls: folder.path().join("tls"),
            folder: Rc::new(folder),
            client: Arc::new(client),
        }
    }

    fn config(&self, knobs: Knobs, port: Option<u16>) -> String {
        // Pacing is off: a paced connection sends a little more whenever it is run, so that the check for connections that sleep
        // although they could proceed would fail.
        let quic = port.map_or_else(String::new, |port| {
            format!(
                "  - {{ type: quic, host: 127.0.0.1, port: {port}, quic: {{ pacing: OFF }}, ssl: {{ certificate-file: {folder}/certificate, key-file: {folder}/key }} }}",
                folder = self.folder.path().display()
            )
        });
        let Knobs {
            buffer,
            window,
            concurrent,
            streaming,
            ..
        } = knobs;
        format!(
            "
num-threads: 1
connection-budget: 1000000000
http2-input-window-size: {window}
http2-max-concurrent-requests-per-connection: {concurrent}
http2-max-concurrent-streaming-requests-per-connection: {streaming}
http3-max-concurrent-streaming-requests-per-connection: {streaming}
temp-buffer-path: {folder}
listen:
  - {{ type: unix, port: {clear}, sndbuf: {buffer}, rcvbuf: {buffer} }}
  - {{ type: unix, port: {tls}, sndbuf: {buffer}, rcvbuf: {buffer},
      ssl: {{ certificate-file: {folder}/certificate, key-file: {folder}/key }} }}
{quic}
hosts: {{ default: {{ paths: {{ /: {{ test.act: ON }} }} }} }}
",
            folder = self.folder.path().display(),
            clear = self.clear.display(),
            tls = self.tls.display(),
        )
    }

    fn wire(&self, has_tls: bool, is_http2: bool) -> Wire {
        if !has_tls {
            return Wire::connect(&self.clear, None);
        }
        let mut config = ClientConfig::clone(&self.client);
        let protocol: &[u8] = if is_http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        Wire::connect(&self.tls, Some(Arc::new(config)))
    }
}

/// Settings of the server and the clients in one simulation.
#[derive(Clone, Copy)]
pub(super) struct Knobs {
    /// Whether the clients speak HTTP/3, and not HTTP/1 and HTTP/2.
    pub(super) is_http3: bool,
    /// Size of the buffer of a socket, in bytes.
    pub(super) buffer: usize,
    /// Value of `http2-input-window-size`.
    pub(super) window: usize,
    /// Largest number of requests that run at the same time per HTTP/2 connection; the next field is the largest number of those
    /// whose handlers pull their bodies.
    pub(super) concurrent: usize,
    pub(super) streaming: usize,
    /// Whether the server delays a client that resets many requests.
    pub(super) delays: bool,
    /// Whether time passes, so that the server may time out slow clients.
    pub(super) times_out: bool,
}

impl Knobs {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            buffer: random.pick(&[4608, 20_000, 200_000]),
            window: random.pick(&[65_535, 16_777_216]),
            concurrent: random.pick(&[2, 100]),
            streaming: random.pick(&[1, 2, 10]),
            delays: random.once_in(2),
            is_http3: false,
            times_out: random.once_in(3),
        }
    }
}

impl World {
    /// Starts a server that has no client yet.
    pub(super) fn start(site: &Site, plans: Vec<Plan>, knobs: Knobs, random: Random) -> Self {
        plan::stage(plans.clone());
        let (loaded, bound, port) = loop {
            let port = knobs.is_http3.then(free_port);
            let source = Memory::new().file("sim.conf", site.config(knobs, port));
            let features = crate::features_with(&[&plan::DIRECTIVES]);
            let loaded = crate::load_with(features, "sim.conf", &source).unwrap();
            for socket in [&site.clear, &site.tls] {
                let _ = std::fs::remove_file(socket);
            }
            match crate::bind(&loaded, 1) {
                Ok(bound) => break (loaded, bound, port),
                // Another process has taken the port in the meantime, so another port is tried.
                Err(_) if port.is_some() => {}
                Err(error) => panic!("{error}"),
            }
        };
        let (mut config, orders) = worker::only_config(&loaded, bound).unwrap();
        let settings = Arc::get_mut(&mut config.generation.settings).unwrap();
        // A small value, so that uploads go to temporary files.
        settings.temp_buffer_threshold = Some(30_000);
        settings.http2.dos_delay = Duration::from_millis(u64::from(knobs.delays) * 100);
        let event_loop = worker::event_loop(config).unwrap();
        let set = WatchedSet::of(&event_loop).unwrap();
        let event_loop = Rc::new(RefCell::new(event_loop));
        let turns = Rc::new(Cell::new(0));
        {
            let (event_loop, turns) = (Rc::clone(&event_loop), Rc::clone(&turns));
            let turn = poll_fn(move |task| {
                turns.set(turns.get() + 1);
                event_loop.borrow_mut().poll_in_runtime(&set, task)
            });
            tokio::task::spawn_local(tokio::task::coop::unconstrained(turn));
        }
        let run = Run {
            ends: vec![None; plans.len()],
            plans,
            times_out: knobs.times_out,
        };
        Self {
            random,
            run,
            clients: Vec::new(),
            site: site.clone(),
            event_loop,
            turns,
            port,
            time_left: Duration::from_secs(8),
            _orders: orders,
        }
    }

    /// Creates the clients and gives each request of the run to one of them.
    pub(super) fn share_out(&mut self) {
        let clients = self.random.below(4) + 1;
        let mut shares = vec![VecDeque::new(); clients];
        for id in 0..self.run.plans.len() {
            shares[self.random.below(clients)].push_back(id);
        }
        for todo in shares {
            self.connect(todo);
        }
    }

    fn connect(&mut self, todo: VecDeque<usize>) {
        if let Some(port) = self.port {
            let mut tls = ClientConfig::clone(&self.site.client);
            tls.alpn_protocols = vec![b"h3".to_vec()];
            let window = self.random.pick(&[100, 65_535, 1_000_000]);
            let loses = self.random.pick(&[0, 0, 5, 20]);
            let client = Http3::new(port, Arc::new(tls), todo, window, loses);
            self.clients.push(Client::Http3(Box::new(client)));
            return;
        }
        let (is_http2, has_tls) = (self.random.once_in(2), self.random.once_in(2));
        let wire = self.site.wire(has_tls, is_http2);
        self.clients.push(if is_http2 {
            let window = self.random.pick(&[0, 100, 65_535, 1_000_000]);
            Client::Http2(Box::new(Http2::new(wire, todo, has_tls, window)))
        } else {
            Client::Http1(Http1::new(wire, todo))
        });
    }

    /// Creates an HTTP/1 client in clear text that sends the requests `todo`.
    pub(super) fn http1(&self, todo: impl IntoIterator<Item = usize>) -> Http1 {
        Http1::new(self.site.wire(false, false), todo.into_iter().collect())
    }

    /// Creates an HTTP/2 client in clear text whose streams have the initial window `window`.
    pub(super) fn http2(&self, todo: impl IntoIterator<Item = usize>, window: u32) -> Http2 {
        let todo = todo.into_iter().collect();
        Http2::new(self.site.wire(false, true), todo, false, window)
    }

    /// Lets `time` pass.
    pub(super) async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
        self.settle().await;
    }

    /// The numbers of the requests in progress.
    pub(super) fn live(&self) -> Vec<usize> {
        self.event_loop.borrow().live()
    }

    /// Lets the server, its handlers and the disk proceed as far as they can.
    pub(super) async fn settle(&self) {
        loop {
            let before = self.turns.get();
            loop {
                let before = self.turns.get();
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                if self.turns.get() == before {
                    break;
                }
            }
            // There is only one disk thread, so that all earlier jobs are done when this one runs.
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            if self.turns.get() == before {
                return;
            }
        }
    }

    /// A value that differs if any handler has taken a step or any byte has moved: the steps, and the bytes in the kernel.
    pub(super) fn progress(&self) -> (u64, Vec<(i32, i32)>) {
        let kernel = self.clients.iter().map(|client| client.in_kernel());
        (plan::steps(), kernel.collect())
    }

    /// Runs every connection without an event. If a connection then proceeds, it has slept although it could proceed, which is an
    /// error.
    pub(super) async fn nudge(&self) {
        let before = self.progress();
        self.event_loop.borrow_mut().run_all();
        self.settle().await;
        let after = self.progress();
        assert_eq!(
            before,
            after,
            "a connection slept although it had work to do: {}",
            self.describe()
        );
    }

    pub(super) async fn act(&mut self) {
        let at = self.random.below(self.clients.len() + 1);
        if let Some(client) = self.clients.get_mut(at) {
            client.act(&mut self.run, &mut self.random);
        } else if self.port.is_some() && self.random.once_in(2) {
            let millis = self.random.pick(&[1, 1, 5, 30]);
            self.let_pass(Duration::from_millis(millis)).await;
        } else if self.run.times_out && self.random.once_in(6) {
            let millis = self.random.pick(&[50, 1000, 7000]);
            tokio::time::advance(Duration::from_millis(millis)).await;
        } else {
            let waiting = plan::waiting();
            if !waiting.is_empty() {
                plan::happen(self.random.pick(&waiting));
            }
        }
        if self.random.once_in(2) {
            self.settle().await;
            if self.random.once_in(6) {
                self.nudge().await;
            }
        }
    }

    /// Has the clients and backends do everything that the server may wait for, until nothing happens any more.
    pub(super) async fn cooperate(&mut self) {
        loop {
            let mut moved = false;
            for client in &mut self.clients {
                moved |= client.cooperate(&mut self.run);
            }
            for id in plan::waiting() {
                plan::happen(id);
                moved = true;
            }
            let before = self.progress();
            self.settle().await;
            moved |= self.progress() != before;
            let clients = self.clients.iter_mut();
            let remaining: Vec<_> = clients.filter_map(Client::remaining).collect();
            if !moved && remaining.is_empty() {
                self.nudge().await;
                return;
            }
            for todo in remaining {
                self.connect(todo);
            }
        }
    }

    /// Lets `time` pass, if the time limit of the simulation allows it.
    async fn let_pass(&mut self, time: Duration) {
        if let Some(left) = self.time_left.checked_sub(time) {
            self.time_left = left;
            tokio::time::advance(time).await;
        }
    }

    /// Makes every request end without time passing, except what QUIC needs for retransmissions.
    pub(super) async fn finish(&mut self) {
        self.cooperate().await;
        // From here on no datagram is lost. The loop leaves time for a few round trips, and for QUIC's probes, which lead to the
        // retransmission of lost packets.
        for _ in 0..2000 {
            if self.port.is_none() || self.run.ends.iter().all(Option::is_some) {
                break;
            }
            tokio::time::advance(Duration::from_millis(5)).await;
            self.settle().await;
            self.cooperate().await;
        }
        if self.run.ends.iter().any(Option::is_none) {
            // The server may still delay clients that have reset requests: 400 ms are longer than that delay.
            tokio::time::advance(Duration::from_millis(400)).await;
            self.settle().await;
            self.cooperate().await;
        }
        let open: Vec<_> = (0..self.run.plans.len())
            .filter(|id| self.run.ends[*id].is_none())
            .map(|id| &self.run.plans[id])
            .collect();
        if !open.is_empty() {
            panic!(
                "requests that wait for ever: {open:#?}; {}; waiting for events: {:?}",
                self.describe(),
                plan::waiting()
            );
        }
    }

    /// Has the clients stop, or only send PINGs, while the backends answer. Every request must end, and so must every connection
    /// once its client sends nothing at all.
    pub(super) async fn freeze(&mut self) {
        self.run.times_out = true;
        let mut pretends = self.random.once_in(2);
        for round in 0..170 {
            if round == 150 {
                // A handler that echoes the request body may do so as slowly as the client sends it.
                let mut live = self.event_loop.borrow().live();
                live.retain(|id| !self.run.plans[*id].is_talk());
                assert!(
                    live.is_empty(),
                    "requests that never end, {live:?}: {}",
                    self.describe()
                );
                pretends = false;
            }
            for id in plan::waiting() {
                plan::happen(id);
            }
            for client in &mut self.clients {
                if let Client::Http2(client) = client
                    && pretends
                {
                    client.ping();
                    client.flush();
                }
            }
            self.settle().await;
            tokio::time::advance(Duration::from_secs(4)).await;
            self.settle().await;
        }
        let left = self.event_loop.borrow().count();
        assert_eq!(left, 0, "connections that never end: {}", self.describe());
    }

    pub(super) fn describe(&self) -> String {
        let clients: Vec<String> = self.clients.iter().map(Client::describe).collect();
        format!("{}; {:#?}", clients.join("\n"), self.run.plans)
    }

    /// Ends the simulation, and checks that no connection, request or memory remains.
    pub(super) async fn end(mut self) {
        self.clients.clear();
        self.settle().await;
        // HTTP/3 gets more time: the idle timeout of QUIC is at least three probe timeouts, which are long because clients have let
        // seconds pass before they answered.
        let rounds = if self.port.is_some() { 100 } else { 20 };
        for _ in 0..rounds {
            tokio::time::advance(Duration::from_secs(4)).await;
            for id in plan::waiting() {
                plan::happen(id);
            }
            self.settle().await;
        }
        let event_loop = self.event_loop.borrow();
        assert_eq!(
            event_loop.count(),
            0,
            "connections are left whose clients have gone"
        );
        assert_eq!(
            event_loop.live(),
            [0; 0],
            "requests are left whose connections have ended"
        );
        assert_eq!(
            event_loop.held(),
            (0, 0),
            "buffers or temporary files are still held"
        );
    }
}

/// Finds a UDP port that is not in use at the moment.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}
