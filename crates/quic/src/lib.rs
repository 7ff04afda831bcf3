//! QUIC (RFC 9000, 9001, 9002, 9221) without input or output: datagrams and time go in, datagrams and events come out.
//!
//! Only this crate uses `quinn-proto`, the library that implements the protocol. No type of that library appears in this crate's
//! public interface.
//!
//! An [`Endpoint`] stands for one socket of one worker. It assigns received datagrams to connections by their connection ids, and
//! owns the [`Connection`]s. The caller
//! 1. hands over every datagram of a turn of its event loop ([`Endpoint::receive`]) and every deadline that has passed
//!    ([`Endpoint::on_timeout`]),
//! 2. takes the events of the connections concerned ([`Endpoint::poll_event`]) and reads and writes their streams,
//! 3. takes the datagrams that each connection wants to send ([`Endpoint::transmit`]), until there are no more or the connection
//!    has sent its share of the turn,
//! 4. notes when each connection wants to be woken ([`Endpoint::timeout`]).
//!
//! [`udp`] sends and receives batches of datagrams on a socket.

mod close;
mod config;
mod congestion;
mod connection;
mod costs;
mod endpoint;
mod few_streams;
pub mod forward;
mod frames;
mod id;
mod keys;
mod output;
mod parameters;
mod paths;
mod shared;
mod stats;
mod stream;
mod tail;
mod tls;
mod token;
mod trace;
pub mod udp;

// Not used: the feature `release_max_level_off` of the crate compiles the traces of quinn-proto, which nothing would read, out of
// release builds.
use tracing as _;

pub use close::{CloseReason, ConnectError};
pub use config::{
    CongestionControl, EndpointConfig, Neighbours, Ratio, ServerRole, TransportSettings,
};
pub use congestion::KnownPaths;
pub use connection::{Connection, Event, SendDatagramError};
pub use endpoint::{Admission, ConnectionIndex, Datagram, Ecn, Endpoint, Received, Transmit};
pub use id::{IdReader, Placement};
pub use keys::Keys;
pub use output::{Output, Tails};
pub use shared::SharedConnection;
pub use stats::{Frames, Stats, Totals};
pub use stream::{Read, StreamId, Write};
pub use tls::{ClientTls, Handshake, TlsChooser};
pub use token::UsedTokens;
pub use trace::header as trace_header;

/// Entry points for fuzzing QUIC.
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
