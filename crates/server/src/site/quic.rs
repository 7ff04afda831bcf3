//! The attributes of a `listen` entry for QUIC: its `quic` mapping, `cc` and `initcwnd`.

use std::path::Path;

use h2o_config::{Attribute, Attributes, Command, Error, Kinds, Node, Unit};
use h2o_exchange::{PathCheck, PathChecks, PathNeed, Scope};
use h2o_quic::Ratio;

use crate::site::quic_settings::{Controller, QuicSettings};
use crate::site::warnings::warn;

/// UDP payload in bytes that every QUIC path must carry (RFC 9000 §14).
const MIN_UDP_PAYLOAD: u64 = 1200;

/// The largest number of bytes that a server may send for each byte received from an address that is not validated (RFC 9000 §8).
const MAX_AMPLIFICATION: u16 = 3;

const fn attribute(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Attribute {
    Attribute::optional(name, Kinds::SCALAR, value, default, help)
}

/// The attributes of the `quic` mapping.
pub(crate) const ATTRIBUTES: &[Attribute] = &[
    attribute(
        "retry",
        "ON|OFF",
        "OFF",
        "Whether each new client must prove, by answering a Retry packet, that it receives packets at its address. This costs the client \
         a round trip, unless it has a token from an earlier connection. While a thread has 24 or more handshakes in progress, new \
         clients must do so in any case.",
    ),
    attribute(
        "sndbuf",
        "BYTES",
        "the kernel's choice",
        "Send buffer of the UDP sockets. Linux doubles the size, to have room for its own bookkeeping. The kernel reduces a \
         size above its limit, and the server warns of that.",
    ),
    attribute(
        "rcvbuf",
        "BYTES",
        "the kernel's choice",
        "Receive buffer of the UDP sockets. Linux doubles the size, as for `sndbuf`. The kernel reduces a size above \
         its limit, and the server warns of that.",
    ),
    attribute(
        "amp-limit",
        "NUMBER",
        "3",
        "How many bytes the server may send to an address that is not validated, as a multiple of the bytes received from it: 1 to \
         3, the limit of RFC 9000 §8. `0` means 1, and a number above 3 means 3, with a warning.",
    ),
    attribute(
        "max-streams-bidi",
        "NUMBER",
        "100",
        "How many requests a client may have open at the same time on a connection. Every client is told this number from the \
         start, also for early data; a connection takes the memory for them (5 KB for 100) once the client has used more than four \
         streams.",
    ),
    attribute(
        "max-udp-payload-size",
        "BYTES",
        "1472",
        "Largest UDP payload in bytes, in either direction; 1200 to 65527.",
    ),
    attribute(
        "handshake-timeout-rtt-multiplier",
        "NUMBER",
        "400",
        "How many round trips a handshake may take, each of them counted as at least 66 milliseconds; then its connection is \
         closed. `0`: only `handshake-timeout` limits the handshake.",
    ),
    attribute(
        "max-initial-handshake-packets",
        "NUMBER",
        "1000",
        "How many packets the server may send during one handshake; if more are needed, it closes the connection. It also does so \
         if more than 64 of these packets have acknowledgements, which is a fixed limit.",
    ),
    attribute(
        "qpack-encoder-table-capacity",
        "BYTES",
        "16384",
        "Capacity in bytes of the QPACK dynamic table for the fields of responses; `0` for no table.",
    ),
    attribute(
        "qpack-decoder-table-capacity",
        "BYTES",
        "16384",
        "Capacity in bytes of the QPACK dynamic table that clients may use for the fields of requests; `0` for no table.",
    ),
    attribute(
        "ecn",
        "ON|OFF|0..255",
        "ON",
        "Whether packets are marked as capable of explicit congestion notification (ECN). A number stands for that many of 255 connections.",
    ),
    attribute(
        "pacing",
        "ON|OFF|0..255",
        "ON",
        "Whether packets are paced, that is, spread over the round-trip time. A number stands for that many of 255 connections.",
    ),
    attribute(
        "respect-app-limited",
        "ON|OFF|0..255",
        "ON",
        "Whether the congestion window does not grow while the server does not use it fully. A number stands for that many of 255 \
         connections. `OFF` and numbers have an effect with `cc: reno` and `cc: cubic` only; with other controllers the window \
         never grows while it is not used fully.",
    ),
    attribute(
        "jumpstart-default",
        "PACKETS",
        "0",
        "Congestion window in packets for a new client once its round-trip time is measured, if this number is larger than \
         `initcwnd`. The packets are paced, so `pacing` must not be `OFF`. If some of these packets are lost, the window shrinks \
         to the amount that the path has delivered. `0`: the window begins with `initcwnd`.",
    ),
    attribute(
        "jumpstart-max",
        "PACKETS",
        "0",
        "A returning client gets half of the congestion window that it had before, but at most this many packets, as soon as its \
         round-trip time shows that the path is the same. `0`: a returning client begins like a new one. The server remembers a \
         client for ten minutes.",
    ),
    attribute(
        "non-resume-jumpstart-ratio",
        "ON|OFF|0..255",
        "ON",
        "On how many of 255 connections with new clients the server uses `jumpstart-default`; the others begin with `initcwnd`.",
    ),
    attribute(
        "resume-jumpstart-ratio",
        "ON|OFF|0..255",
        "ON",
        "On how many of 255 connections with returning clients the server uses `jumpstart-max`; the others begin like those with \
         new clients.",
    ),
    attribute(
        "qlog",
        "DIRECTORY",
        "none",
        "Writes a trace of each connection into a file of the directory, as qlog 0.3, which qvis shows: datagrams, losses, round \
         trip times and windows. The user that the server runs as must be allowed to write there. At most 256 connections are \
         traced at the same time, with at most 16 MiB each. Once a process has written 1 GiB, it writes no more traces. The server \
         never deletes the files.",
    ),
    attribute(
        "rapid-start",
        "ON|OFF|0..255",
        "OFF",
        "On how many of 255 connections the congestion window triples in a round trip, instead of doubling, until round trips \
         become longer or a packet is lost. The first loss then lowers the window as if it had been only as large as what the \
         client acknowledged in one round trip. For `cc: reno` and `cc: cubic`; with other controllers `rapid-start` has no \
         effect, and a warning says so.",
    ),
];

/// Reads the attributes of a `listen` entry for QUIC.
pub(crate) fn parse(
    listen: &Attributes<'_>,
    scope: &mut Scope,
    command: &Command<'_>,
) -> Result<QuicSettings, Error> {
    let mut settings = QuicSettings::default();
    if let Some(node) = listen.get("cc") {
        settings.controller = controller(node)?;
    }
    if let Some(node) = listen.get("initcwnd") {
        settings.initial_window = node.integer("%u", 2..=1_000_000)?;
    }
    let Some(mapping) = listen.get("quic") else {
        return Ok(settings);
    };
    let attributes = mapping.attributes(ATTRIBUTES)?;
    let get = |name| attributes.get(name);
    let buffer = |name| {
        get(name)
            .map(|node| node.quantity(Unit::Bytes, "%u", 1..=u64::from(i32::MAX as u32)))
            .transpose()
    };
    settings.send_buffer = buffer("sndbuf")?;
    settings.receive_buffer = buffer("rcvbuf")?;
    if let Some(node) = get("retry") {
        settings.retry = node.on_off()?;
    }
    if let Some(node) = get("amp-limit") {
        let limit = node.integer::<u16>("%hu", 0..=u64::from(u16::MAX))?;
        settings.amplification_limit = limit.clamp(1, MAX_AMPLIFICATION);
        if settings.amplification_limit != limit {
            let used = settings.amplification_limit;
            let text = format!("`amp-limit` is 1 to {MAX_AMPLIFICATION}: {used} is used");
            warn(scope, command, node, &text);
        }
    }
    if let Some(node) = get("max-streams-bidi") {
        // QUIC has 2^60 numbers for the streams of one kind (RFC 9000 §4.6).
        settings.max_streams = node.integer("%lu", 1..=1 << 60)?;
    }
    if let Some(node) = get("max-udp-payload-size") {
        settings.max_udp_payload = node.quantity(Unit::Bytes, "%lu", MIN_UDP_PAYLOAD..=65_527)?;
    }
    if let Some(node) = get("handshake-timeout-rtt-multiplier") {
        settings.handshake_rtts = node.integer("%u", 0..=u64::from(u32::MAX))?;
        if settings.handshake_rtts == 0 {
            warn(
                scope,
                command,
                node,
                "`handshake-timeout-rtt-multiplier: 0` leaves only `handshake-timeout` to limit handshakes",
            );
        }
    }
    if let Some(node) = get("max-initial-handshake-packets") {
        settings.max_handshake_packets = node.integer("%lu", 0..=u64::MAX)?;
        if settings.max_handshake_packets == 0 {
            return Err(node.error("max Initial/Handshake packets must be greater than 0"));
        }
    }
    let table = |name, to: &mut u32| -> Result<(), Error> {
        if let Some(node) = get(name) {
            *to = node.quantity(Unit::Bytes, "%u", 0..=u64::from(u32::MAX))?;
        }
        Ok(())
    };
    table("qpack-encoder-table-capacity", &mut settings.encoder_table)?;
    table("qpack-decoder-table-capacity", &mut settings.decoder_table)?;
    let packets = |name| match get(name) {
        Some(node) => node.integer("%u", 0..=u64::from(u32::MAX)),
        None => Ok(0),
    };
    settings.first_jump = packets("jumpstart-default")?;
    settings.max_jump = packets("jumpstart-max")?;
    let set = |name, to: &mut Ratio| -> Result<(), Error> {
        if let Some(node) = get(name) {
            *to = ratio(node)?;
        }
        Ok(())
    };
    if let Some(node) = get("qlog") {
        let directory = node.scalar()?;
        if directory.is_empty() {
            return Err(node.error("`qlog` must be the path of a directory"));
        }
        let directory = Path::new(directory);
        let check = PathCheck::new(command, node, directory, PathNeed::Traces);
        scope.shared.edit::<PathChecks>().0.push(check);
        settings.qlog = Some(directory.into());
    }
    set("ecn", &mut settings.ecn)?;
    set("pacing", &mut settings.pacing)?;
    set("respect-app-limited", &mut settings.respect_app_limited)?;
    set("non-resume-jumpstart-ratio", &mut settings.first_jumps)?;
    set("resume-jumpstart-ratio", &mut settings.known_path_jumps)?;
    set("rapid-start", &mut settings.rapid_start)?;
    let has_slow_start = matches!(settings.controller, Controller::Reno | Controller::Cubic);
    if let Some(node) = get("rapid-start")
        && settings.rapid_start != Ratio::NEVER
        && !has_slow_start
    {
        let text = "`rapid-start` has no effect without `cc: reno` or `cc: cubic`: other controllers start rapidly in a way of their own";
        warn(scope, command, node, text);
    }
    if let Some(node) = get("jumpstart-default")
        && settings.first_jump > 0
        && settings.pacing == Ratio::NEVER
    {
        let text = "`jumpstart-default` has no effect with `pacing: OFF`";
        warn(scope, command, node, text);
    }
    Ok(settings)
}

/// Reads on how many of 255 connections a feature is on: `ON` (all), `OFF` (none), or a number.
fn ratio(node: &Node) -> Result<Ratio, Error> {
    let text = node.scalar()?;
    if text.eq_ignore_ascii_case("ON") {
        return Ok(Ratio::ALWAYS);
    }
    if text.eq_ignore_ascii_case("OFF") {
        return Ok(Ratio::NEVER);
    }
    text.parse().map(Ratio).map_err(|_| {
        node.error("argument must be `ON`, `OFF`, or an integer between 0 (never) and 255 (always)")
    })
}

fn controller(node: &Node) -> Result<Controller, Error> {
    const WORDS: [(&str, Controller); 4] = [
        ("auto", Controller::Auto),
        ("reno", Controller::Reno),
        ("cubic", Controller::Cubic),
        ("pico", Controller::Model),
    ];
    let text = node.scalar()?;
    let word = WORDS
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text));
    word.map(|(_, controller)| *controller).ok_or_else(|| {
        node.error("specified congestion controller is unknown or unsupported for QUIC")
            .with_hint("write `auto`, `reno`, `cubic` or `pico`")
    })
}
