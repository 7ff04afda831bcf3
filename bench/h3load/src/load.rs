//! The requests that are sent, and the figures that are collected from their responses.

use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{Dir, Event, ReadError, StreamEvent, StreamId};

use crate::Fault;
use crate::client::{Client, Connection};
use crate::http3::{CONTROL, Response, request};
use crate::link::now;

/// Handshakes that run at the same time while connections are opened in advance.
const OPENING: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Requests over connections that were opened in advance.
    Requests,
    /// Requests on a new connection each.
    Connections { resumed: bool },
    /// Pages one after the other, each on a new connection: a document, then all other files at once.
    Pages,
}

/// The work that the command line asks for.
pub(crate) struct Plan {
    kind: Kind,
    /// Number of requests, connections or pages.
    count: u64,
    /// Number of connections that are open at the same time.
    connections: usize,
    streams: usize,
    paths: Vec<String>,
}

impl Plan {
    pub(crate) fn requests(count: u64, connections: usize, streams: usize, path: &str) -> Self {
        Self {
            kind: Kind::Requests,
            count,
            connections,
            streams,
            paths: vec![path.to_owned()],
        }
    }

    pub(crate) fn connections(count: u64, connections: usize, resumed: bool, path: &str) -> Self {
        Self {
            kind: Kind::Connections { resumed },
            ..Self::requests(count, connections, 1, path)
        }
    }

    /// A plan for pages. `path` must end in `/00000.txt`; the files of a page are numbered from there.
    pub(crate) fn pages(count: u64, path: &str, files: usize) -> Result<Self, Fault> {
        let stem = path.strip_suffix("00000.txt");
        let stem = stem.ok_or_else(|| {
            Fault(format!(
                "{path} does not end in 00000.txt, as the first of many files does"
            ))
        })?;
        Ok(Self {
            kind: Kind::Pages,
            paths: (0..files)
                .map(|number| format!("{stem}{number:05}.txt"))
                .collect(),
            ..Self::requests(count, 1, files, path)
        })
    }

    pub(crate) fn resumes(&self) -> bool {
        self.kind == Kind::Connections { resumed: true }
    }
}

/// The work in progress, and its figures.
#[derive(Default)]
pub(crate) struct Load {
    requests: Vec<Bytes>,
    /// Whether the measurement has begun, so that requests are sent over connections opened in advance.
    goes: bool,
    /// Number of connections, or pages, still to be begun.
    left: u64,
    connected: usize,
    /// Number of connections to be opened in this turn of the event loop.
    due: usize,
    done: u64,
    failed: u64,
    reused: u64,
    pub(crate) octets: u64,
    pub(crate) head_octets: u64,
    pub(crate) status: u16,
    seconds: f64,
    /// Microseconds that each request, connection or page took.
    durations: Vec<u32>,
}

impl Load {
    /// Opens the connections in advance, or gets the first TLS sessions.
    pub(crate) fn prepare(&mut self, client: &mut Client, plan: &Plan) -> Result<(), Fault> {
        let authority = client.authority.clone();
        let paths = plan.paths.iter();
        self.requests = paths.map(|path| request(&authority, path)).collect();
        match plan.kind {
            Kind::Requests => {
                let connections = u64::try_from(plan.connections)?;
                let (share, more) = (plan.count / connections, plan.count % connections);
                let mut opened = 0;
                while self.connected < plan.connections {
                    while opened < plan.connections && opened < self.connected + OPENING {
                        client.connect(share + u64::from((opened as u64) < more))?;
                        opened += 1;
                    }
                    client.turn(|connection, at| self.run(connection, plan, at))?;
                }
                Ok(())
            }
            Kind::Connections { .. } => {
                let warm_up = Plan {
                    count: u64::try_from(plan.connections)?,
                    paths: plan.paths.clone(),
                    ..*plan
                };
                self.go(client, &warm_up)?;
                let requests = std::mem::take(&mut self.requests);
                *self = Self {
                    requests,
                    ..Self::default()
                };
                Ok(())
            }
            Kind::Pages => Ok(()),
        }
    }

    /// Runs the measurement that the plan describes.
    pub(crate) fn go(&mut self, client: &mut Client, plan: &Plan) -> Result<(), Fault> {
        let (began, certificates) = (now(), client.certificates.seen());
        self.goes = true;
        if plan.kind == Kind::Requests {
            client.run_all();
        } else {
            self.left = plan.count;
            self.due = plan.connections.min(usize::try_from(plan.count)?);
        }
        while self.done + self.failed < plan.count {
            for _ in 0..std::mem::take(&mut self.due) {
                if self.left > 0 {
                    self.left -= 1;
                    client.connect(1)?;
                }
            }
            client.turn(|connection, at| self.run(connection, plan, at))?;
        }
        self.seconds = (now() - began).as_secs_f64();
        self.reused = plan
            .count
            .saturating_sub(client.certificates.seen() - certificates);
        Ok(())
    }

    /// The figures as a line of JSON.
    pub(crate) fn told(&mut self) -> String {
        self.durations.sort_unstable();
        let percentile = |per_cent: usize| {
            let rank = (self.durations.len() * per_cent).div_ceil(100);
            let rank = rank.clamp(1, self.durations.len().max(1)) - 1;
            self.durations.get(rank).copied().unwrap_or(0)
        };
        format!(
            "{{\"seconds\": {}, \"done\": {}, \"failed\": {}, \"reused\": {}, \"octets\": {}, \"head_octets\": {}, \
             \"latency_p50_us\": {}, \"latency_p90_us\": {}, \"latency_p99_us\": {}, \"latency_max_us\": {}}}",
            self.seconds,
            self.done,
            self.failed,
            self.reused,
            self.octets,
            self.head_octets,
            percentile(50),
            percentile(90),
            percentile(99),
            percentile(100),
        )
    }

    fn run(&mut self, connection: &mut Connection, plan: &Plan, at: Instant) -> Result<(), Fault> {
        while let Some(event) = connection.quic.poll() {
            match event {
                Event::Connected => {
                    connection.is_connected = true;
                    self.connected += 1;
                    let control = connection.quic.streams().open(Dir::Uni);
                    let control = control
                        .ok_or_else(|| Fault("the server allows no control stream".to_owned()))?;
                    connection.quic.send_stream(control).write(CONTROL)?;
                }
                Event::ConnectionLost { reason } if !connection.is_over => {
                    return Err(reason.into());
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(stream) = connection.quic.streams().accept(Dir::Uni) {
                        discard(connection, stream)?;
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => {
                    if id.dir() == Dir::Uni {
                        discard(connection, id)?;
                    } else {
                        self.read(connection, plan, id, at)?;
                    }
                }
                _ => {}
            }
        }
        if connection.is_connected && !connection.is_over {
            self.ask(connection, plan, at)?;
        }
        Ok(())
    }

    /// Sends requests on a connection until as many are in progress as the plan allows.
    fn ask(&self, connection: &mut Connection, plan: &Plan, at: Instant) -> Result<(), Fault> {
        while self.goes && connection.left > 0 && connection.exchanges.len() < plan.streams {
            let Some(stream) = connection.quic.streams().open(Dir::Bi) else {
                break;
            };
            connection.left -= 1;
            let number = match plan.kind {
                Kind::Pages if connection.done > 0 => {
                    plan.paths.len() - 1 - usize::try_from(connection.left)?
                }
                _ => 0,
            };
            let mut sender = connection.quic.send_stream(stream);
            let mut bytes = self.requests[number].clone();
            let len = bytes.len();
            if sender.write_chunks(std::slice::from_mut(&mut bytes))?.bytes < len {
                return Err(Fault(
                    "the server's flow-control window is too small for a request".to_owned(),
                ));
            }
            sender.finish()?;
            connection
                .exchanges
                .insert(stream, (at, Response::default()));
        }
        Ok(())
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        plan: &Plan,
        stream: StreamId,
        at: Instant,
    ) -> Result<(), Fault> {
        let Some((began, response)) = connection.exchanges.get_mut(&stream) else {
            return Ok(());
        };
        let mut reader = connection.quic.recv_stream(stream);
        let mut chunks = reader.read(true)?;
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => response.receive(&chunk.bytes)?,
                Ok(None) => break,
                Err(ReadError::Blocked) => {
                    let _ = chunks.finalize();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let _ = chunks.finalize();
        self.status = response.status()?;
        self.octets += response.body_len;
        self.head_octets += response.head_len;
        let began = *began;
        connection.exchanges.remove(&stream);
        connection.done += 1;
        let is_good = self.status == 200;
        match plan.kind {
            Kind::Requests => self.count(is_good, began, at),
            Kind::Connections { .. } => {
                self.count(is_good, connection.began, at);
                self.due += 1;
                connection.close(at);
            }
            Kind::Pages => {
                if !is_good {
                    return Err(Fault(format!(
                        "a file of the page has status {}",
                        self.status
                    )));
                }
                if connection.done == 1 {
                    connection.left = u64::try_from(plan.paths.len())? - 1;
                }
                if connection.left == 0 && connection.exchanges.is_empty() {
                    self.count(true, connection.began, at);
                    self.due += 1;
                    connection.close(at);
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, is_good: bool, began: Instant, at: Instant) {
        self.done += u64::from(is_good);
        self.failed += u64::from(!is_good);
        let duration = at.saturating_duration_since(began).as_micros();
        self.durations
            .push(u32::try_from(duration).unwrap_or(u32::MAX));
    }
}

/// Reads and drops what the server sends on its unidirectional streams.
fn discard(connection: &mut Connection, stream: StreamId) -> Result<(), Fault> {
    let mut reader = connection.quic.recv_stream(stream);
    let mut chunks = reader.read(true)?;
    while let Ok(Some(_)) = chunks.next(usize::MAX) {}
    let _ = chunks.finalize();
    Ok(())
}
