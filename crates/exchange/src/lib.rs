//! The contract between protocol engines, handlers and server.
//!
//! An *exchange* is one request with its response ([`Exchange`]). The [`Handler`]s of a path run in order; each returns
//! an [`Outcome`] without blocking. The [`Response`] passes the path's [`Filter`]s in their fixed order, and an engine
//! sends it, *pulling* its [`Body`]. The configuration is turned into an immutable [`Site`] through [`Scope`].

pub mod body;
mod body_source;
mod byte_queue;
mod certificates;
mod client;
mod clock;
mod connection;
mod counters;
mod datagram_pipe;
mod descriptors;
mod exchange;
mod failure_counter;
pub mod file;
mod forwarded;
mod host_table;
mod http2;
mod http3;
mod outcome;
mod path_check;
mod path_pattern;
mod premise;
mod protocol;
mod request_body;
mod scope;
mod settings_map;
mod site;
mod socket_watch;
mod spool;
mod sub_request;
pub mod temp_file;
mod temp_files;
mod timers;
mod worker;

pub use body::{Body, retained};
pub use body_source::{BodyError, BodySource, SpliceSource, Trailers};
pub use byte_queue::ByteQueue;
pub use certificates::{CertificateInfo, Certificates};
pub use client::ClientOrigin;
pub use clock::Clock;
pub use connection::{Address, ConnectionInfo, Endpoint, TlsInfo, Transport};
pub use counters::{Counter, Counters, LiveCounters};
pub use datagram_pipe::DatagramPipe;
pub use descriptors::{Descriptor, Descriptors};
pub use exchange::{
    EnvCommands, Exchange, MimeHint, OriginalRequest, ScriptPath, SentResponse, Timings,
};
pub use file::{FileRange, FileReader, OpenFile};
pub use forwarded::{ForwardedRequest, KeepsServerField, ServerSoftware, Trace};
pub use host_table::HostTable;
pub use http2::{DebugState, Http2Stream, PushOrder, StreamPriority};
pub use http3::Http3Stream;
pub use outcome::{
    BodyUse, CompressHint, Continuation, EarlyReroute, Filter, FilterResult, Handler,
    LinkHeaderUse, LocalBoxFuture, Logger, NamedBy, Outcome, Reroute, RerouteFields, RerouteKind,
    Reroutes, Response, Restore, Successor,
};
pub use path_check::{PathCheck, PathChecks, PathNeed, RunningUser};
pub use path_pattern::{PathPattern, PathRegex};
pub use premise::Premise;
pub use protocol::Protocol;
pub use request_body::{BodyPipe, RequestBody};
pub use scope::{
    BackgroundService, BackgroundServices, ConfiguredUser, Features, FilterFactory, GuardFactory,
    PlacedResource, Resource, Resources, Scope, Sweep, WorkerStart, WorkerStarts,
};
pub use settings_map::{Setting, SettingsMap};
pub use site::{Host, HostName, LocalSite, PathRoute, RerouteLimits, Route, Site};
pub use socket_watch::{SocketWatch, WatchSocket, WatchedSocket};
pub use spool::Spool;
pub use sub_request::{ErrorSink, SubRequest, SubRequestService, SubRequestStart, SubRequests};
pub use temp_file::{TempFile, WriteError};
pub use temp_files::TempFiles;
pub use timers::{TimedOut, Timer, TimerKey, Timers};
pub use worker::{
    BufferLimits, ConnectionLimits, ExchangeRef, NoTransport, Order, Reloads, Shared, Worker,
    WorkerHandle, WorkerTask,
};
