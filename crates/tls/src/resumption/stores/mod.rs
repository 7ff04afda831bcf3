//! Stores that several servers share: memcached and Redis.
//!
//! A conversation with a store is two or three commands on a connection of its own, with limits of time and size. Libraries for
//! memcached and Redis do not have such limits, so none is used.

mod memcached;
mod redis;
mod wire;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use h2o_config::{Attribute, Error, Kinds, Node};

pub(crate) use crate::resumption::stores::memcached::MemcachedProtocol;
use crate::resumption::stores::wire::{Stored, Wire};

/// The attributes of the configuration of `memcached`.
pub(crate) const MEMCACHED_ATTRIBUTES: [Attribute; 3] = [
    Attribute::required(
        "host",
        Kinds::SCALAR,
        "HOST",
        "The name or address of the memcached server.",
    ),
    Attribute::optional(
        "port",
        Kinds::SCALAR,
        "PORT",
        "11211",
        "The port of the memcached server.",
    ),
    Attribute::optional(
        "protocol",
        Kinds::SCALAR,
        "BINARY|ASCII",
        "BINARY",
        "In which of the two protocols of memcached h2o sends commands to the memcached server.",
    ),
];

/// The attributes of the configuration of `redis`.
pub(crate) const REDIS_ATTRIBUTES: [Attribute; 2] = [
    Attribute::required(
        "host",
        Kinds::SCALAR,
        "HOST",
        "The name or address of the Redis server.",
    ),
    Attribute::optional(
        "port",
        Kinds::SCALAR,
        "PORT",
        "6379",
        "The port of the Redis server.",
    ),
];

/// The software of a store that several servers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Memcached(MemcachedProtocol),
    Redis,
}

/// A store that several servers share: its software and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedStore {
    pub(crate) kind: StoreKind,
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
}

impl SharedStore {
    /// Reads the settings of a memcached server from `node`.
    ///
    /// # Errors
    /// A message that says what is wrong, and where.
    pub(crate) fn memcached(node: &Node) -> Result<Self, Error> {
        let attributes = node.attributes(&MEMCACHED_ATTRIBUTES)?;
        let protocol = match attributes.get("protocol") {
            None => MemcachedProtocol::Binary,
            Some(node) => match node.one_of(&["BINARY", "ASCII"])? {
                0 => MemcachedProtocol::Binary,
                _ => MemcachedProtocol::Ascii,
            },
        };
        Ok(Self {
            kind: StoreKind::Memcached(protocol),
            host: attributes.require("host")?.scalar()?.into(),
            port: port(attributes.get("port"), 11211)?,
        })
    }

    /// Reads the settings of a Redis server from `node`.
    ///
    /// # Errors
    /// A message that says what is wrong, and where.
    pub(crate) fn redis(node: &Node) -> Result<Self, Error> {
        let attributes = node.attributes(&REDIS_ATTRIBUTES)?;
        Ok(Self {
            kind: StoreKind::Redis,
            host: attributes.require("host")?.scalar()?.into(),
            port: port(attributes.get("port"), 6379)?,
        })
    }

    /// The name and address of the store, for messages.
    pub(crate) fn address(&self) -> String {
        let software = match self.kind {
            StoreKind::Memcached(_) => "memcached",
            StoreKind::Redis => "redis",
        };
        format!("{software}:{}:{}", self.host, self.port)
    }

    /// Begins a conversation, which may take as long as `limit`. Connecting to each address may take as long, too.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub(crate) fn connect(&self, limit: Duration) -> io::Result<Conversation<Connection>> {
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for address in (&*self.host, self.port).to_socket_addrs()? {
            let deadline = now() + limit;
            match Connection::open(address, deadline) {
                Ok(connection) => return Ok(self.converse(connection)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Like [`Self::connect`], over a stream that is connected already.
    pub(crate) fn converse<S: Read + Write>(&self, stream: S) -> Conversation<S> {
        Conversation {
            kind: self.kind,
            wire: Wire::new(stream),
        }
    }
}

fn port(node: Option<&Node>, default: u16) -> Result<u16, Error> {
    node.map_or(Ok(default), |node| {
        node.integer("%hu", 1..=u64::from(u16::MAX))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the threads that talk to stores have no worker's clock, and their commands are rare"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A connection to a store that fails at a fixed time, however slowly the store sends.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    deadline: Instant,
}

impl Connection {
    fn open(address: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let limit = deadline.saturating_duration_since(now());
        if limit.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let stream = TcpStream::connect_timeout(&address, limit)?;
        Ok(Self {
            stream,
            address,
            deadline,
        })
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

/// Names the error of a call that has reached the time limit of its socket: the system says that the call would block.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends commands to a store and reads its answers.
#[derive(Debug)]
pub(crate) struct Conversation<S> {
    kind: StoreKind,
    wire: Wire<S>,
}

impl Conversation<Connection> {
    /// Sets the time at which the conversation fails if it is not complete.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.wire.stream_mut().deadline = deadline;
    }

    /// Connects again to the address of the store, before the deadline that was set last.
    ///
    /// # Errors
    /// If the store cannot be connected to.
    pub(crate) fn reconnect(&mut self) -> io::Result<()> {
        let connection = self.wire.stream_mut();
        let again = Connection::open(connection.address, connection.deadline)?;
        self.wire = Wire::new(again);
        Ok(())
    }
}

impl<S: Read + Write> Conversation<S> {
    /// Reads the entry with this key; `None` if the store has none.
    ///
    /// # Errors
    /// If the store does not answer, or gives an answer that its protocol does not allow.
    pub(crate) fn get(&mut self, key: &str) -> io::Result<Option<Stored>> {
        match self.kind {
            StoreKind::Memcached(protocol) => memcached::get(&mut self.wire, protocol, key),
            StoreKind::Redis => redis::get(&mut self.wire, key),
        }
    }

    /// Writes an entry that the store keeps for `lifetime_secs`. If another server has changed the entry since `before` was read,
    /// memcached keeps that server's value.
    ///
    /// # Errors
    /// If the store does not answer, or gives an answer that its protocol does not allow.
    pub(crate) fn replace(
        &mut self,
        key: &str,
        before: Option<&Stored>,
        value: &[u8],
        lifetime_secs: u64,
        now: u64,
    ) -> io::Result<()> {
        match self.kind {
            StoreKind::Memcached(protocol) => {
                let expires = memcached::expiration(lifetime_secs, now);
                let version = before.map(|stored| stored.version);
                memcached::replace(&mut self.wire, protocol, key, version, value, expires)
            }
            StoreKind::Redis => redis::set(&mut self.wire, key, value, lifetime_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated store: the answers that it gives, and the commands that it was sent.
    struct Script(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs a conversation with a simulated store. Returns its result, and the commands that were sent.
    fn run<T>(
        kind: StoreKind,
        answer: &[u8],
        talk: impl FnOnce(&mut Conversation<Script>) -> io::Result<T>,
    ) -> (Result<T, String>, Vec<u8>) {
        let store = SharedStore {
            kind,
            host: "h".into(),
            port: 1,
        };
        let script = Script(io::Cursor::new(answer.to_vec()), Vec::new());
        let mut conversation = store.converse(script);
        let result = talk(&mut conversation).map_err(|error| error.to_string());
        (result, conversation.wire.stream().1.clone())
    }

    fn stored(value: &[u8], version: u64) -> Stored {
        Stored {
            value: value.to_vec(),
            version,
        }
    }

    const ASCII: StoreKind = StoreKind::Memcached(MemcachedProtocol::Ascii);
    const BINARY: StoreKind = StoreKind::Memcached(MemcachedProtocol::Binary);

    fn packet(status: u16, extras: &[u8], value: &[u8], version: u64) -> Vec<u8> {
        let mut packet = vec![0x81, 0, 0, 0, u8::try_from(extras.len()).unwrap(), 0];
        packet.extend(status.to_be_bytes());
        packet.extend(
            u32::try_from(extras.len() + value.len())
                .unwrap()
                .to_be_bytes(),
        );
        packet.extend([0; 4]);
        packet.extend(version.to_be_bytes());
        packet.extend(extras);
        packet.extend(value);
        packet
    }

    #[test]
    fn entries_are_read() {
        let found = Ok(Some(stored(b"a\r\nb", 7)));
        let (got, sent) = run(ASCII, b"VALUE k 0 4 7\r\na\r\nb\r\nEND\r\n", |store| {
            store.get("k")
        });
        assert_eq!((got, &*sent), (found.clone(), &b"gets k\r\n"[..]));
        assert_eq!(run(ASCII, b"END\r\n", |store| store.get("k")).0, Ok(None));
        let (got, sent) = run(BINARY, &packet(0, &[0; 4], b"a\r\nb", 7), |store| {
            store.get("k")
        });
        let mut want = vec![0x80, 0, 0, 1];
        want.extend([0; 7]);
        want.push(1);
        want.extend([0; 12]);
        want.push(b'k');
        assert_eq!((got, sent), (found, want));
        let missing = packet(1, &[], b"Not found", 0);
        assert_eq!(run(BINARY, &missing, |store| store.get("k")).0, Ok(None));
        let (got, sent) = run(StoreKind::Redis, b"$4\r\na\r\nb\r\n", |store| {
            store.get("k")
        });
        assert_eq!(got, Ok(Some(stored(b"a\r\nb", 0))));
        assert_eq!(sent, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert_eq!(
            run(StoreKind::Redis, b"$-1\r\n", |store| store.get("k")).0,
            Ok(None)
        );
    }

    #[test]
    fn entries_are_written_unless_another_server_was_faster() {
        let put = |kind, answer: &[u8], before: Option<&Stored>| {
            run(kind, answer, |store| {
                store.replace("k", before, b"v", 3600, 1000)
            })
        };
        let before = stored(b"", 7);
        for (before, command) in [
            (None, "add k 0 3600 1"),
            (Some(&before), "cas k 0 3600 1 7"),
        ] {
            for answer in ["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"] {
                let (result, sent) = put(ASCII, format!("{answer}\r\n").as_bytes(), before);
                assert_eq!(result, Ok(()));
                assert_eq!(sent, format!("{command}\r\nv\r\n").as_bytes());
            }
            for status in [0, 1, 2, 5] {
                assert_eq!(put(BINARY, &packet(status, &[], b"", 0), before).0, Ok(()));
            }
        }
        let (result, sent) = put(BINARY, &packet(0, &[], b"", 0), Some(&before));
        assert_eq!(result, Ok(()));
        assert_eq!((sent[1], &sent[16..24]), (1, &7u64.to_be_bytes()[..]));
        assert_eq!(
            &sent[24..],
            [&[0; 4][..], &3600u32.to_be_bytes(), b"kv"].concat()
        );
        let (result, sent) = put(StoreKind::Redis, b"+OK\r\n", None);
        assert_eq!(result, Ok(()));
        assert_eq!(
            sent,
            b"*4\r\n$5\r\nSETEX\r\n$1\r\nk\r\n$4\r\n3600\r\n$1\r\nv\r\n"
        );
    }

    #[test]
    fn long_lifetimes_are_a_time_for_memcached() {
        assert_eq!(memcached::expiration(2_592_000, 1000), 2_592_000);
        assert_eq!(memcached::expiration(2_592_001, 1000), 2_593_001);
    }

    #[test]
    fn other_answers_are_errors() {
        let huge = packet(0, &[0; 4], b"", 0);
        let mut huge = huge;
        huge[8..12].fill(0xff);
        let long = vec![b'x'; 2000];
        for answer in [
            &b""[..],
            b"\r\n",
            b"ERROR\r\n",
            b"-NOAUTH\r\n",
            b"VALUE k 0 9999999999999 1\r\n",
            b"VALUE k 0 1 1\r\nabc\r\nEND\r\n",
            b"VALUE k 0 1\r\na\r\nEND\r\n",
            b"$99999999999\r\n",
            b"$-2\r\n",
            b"$3\r\nab",
            b":1\r\n",
            &huge,
            &packet(0, &[], b"", 0),
            &packet(0x20, &[], b"Auth", 0),
            &long,
        ] {
            for kind in [ASCII, BINARY, StoreKind::Redis] {
                assert!(
                    run(kind, answer, |store| store.get("k")).0.is_err(),
                    "{kind:?} {answer:?}"
                );
                let put = run(kind, answer, |store| store.replace("k", None, b"v", 1, 1)).0;
                let is_ok_in_binary = kind == BINARY && answer.get(6..8) == Some(&[0, 0]);
                assert!(put.is_err() || is_ok_in_binary, "{kind:?} {answer:?}");
            }
        }
    }
}
