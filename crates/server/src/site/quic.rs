//! The attributes of a QUIC `listen`: its `quic` mapping, `cc` and `initcwnd`.

use h2o_config::{Attribute, Attributes, Command, Error, Kinds, Node, Unit};
use h2o_exchange::Scope;

use crate::site::quic_settings::{Controller, QuicSettings};
use crate::site::warnings::warn;

/// Smallest UDP payload that every QUIC path must carry (RFC 9000 §14).
const MIN_UDP_PAYLOAD: u64 = 1200;

/// Most bytes for each byte received from an address that is not validated (RFC 9000 §8).
const MAX_AMPLIFICATION: u16 = 3;

/// Attributes of which only the default is supported.
const DEFAULT_ONLY: [(&str, &str); 4] = [
    ("jumpstart-default", "0"),
    ("non-resume-jumpstart-ratio", "ON"),
    ("resume-jumpstart-ratio", "ON"),
    ("rapid-start", "OFF"),
];

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
        "Has each new client show that it receives at the address it sends from (Retry), which costs it a round trip. A token of an \
         earlier connection spares it that.",
    ),
    attribute(
        "sndbuf",
        "BYTES",
        "the kernel's choice",
        "Send buffer of the UDP sockets. If the kernel refuses the size, the server does not start.",
    ),
    attribute(
        "rcvbuf",
        "BYTES",
        "the kernel's choice",
        "Receive buffer of the UDP sockets. If the kernel refuses the size, the server does not start.",
    ),
    attribute(
        "amp-limit",
        "NUMBER",
        "3",
        "Most bytes sent to an address that is not validated, as a multiple of those received from it: 1 to 3, the limit of RFC 9000 §8. \
         Other numbers are rounded to the nearest of these, with a warning.",
    ),
    attribute(
        "max-streams-bidi",
        "NUMBER",
        "100",
        "Requests that a client may have open at a time.",
    ),
    attribute(
        "max-udp-payload-size",
        "BYTES",
        "1472",
        "Largest datagram, in either direction; 1200 to 65527.",
    ),
    attribute(
        "handshake-timeout-rtt-multiplier",
        "NUMBER",
        "400",
        "How many round trips a handshake may take. `0`: only `handshake-timeout` limits it.",
    ),
    attribute(
        "max-initial-handshake-packets",
        "NUMBER",
        "1000",
        "How many packets are sent for one handshake.",
    ),
    attribute(
        "qpack-encoder-table-capacity",
        "BYTES",
        "16384",
        "Dynamic table for the fields of responses; `0` for none.",
    ),
    attribute(
        "qpack-decoder-table-capacity",
        "BYTES",
        "16384",
        "Dynamic table that clients may use for the fields of requests; `0` for none.",
    ),
    attribute(
        "ecn",
        "ON|OFF|0..255",
        "ON",
        "Marks packets as capable of explicit congestion notification. A number is rounded to `ON` or `OFF`, with a warning.",
    ),
    attribute(
        "pacing",
        "ON|OFF|0..255",
        "ON",
        "Spreads packets over the round trip. A number is rounded to `ON` or `OFF`, with a warning.",
    ),
    attribute(
        "respect-app-limited",
        "ON|OFF|0..255",
        "ON",
        "Keeps the congestion window from growing while it is not used up. A number is rounded to `ON` or `OFF`, with a warning.",
    ),
    attribute(
        "jumpstart-default",
        "PACKETS",
        "0",
        "First window for new clients. Values other than 0 are ignored with a warning; see `initcwnd`.",
    ),
    attribute(
        "jumpstart-max",
        "PACKETS",
        "0",
        "A client that returns begins with half of the congestion window that it had, up to so many packets, as soon as its round trip \
         shows that the path is the same. 0: it begins like a new client. A client is remembered for ten minutes.",
    ),
    attribute(
        "non-resume-jumpstart-ratio",
        "ON|OFF|0..255",
        "ON",
        "On how many of 255 connections `jumpstart-default` is used. Values other than `ON` are ignored with a warning.",
    ),
    attribute(
        "resume-jumpstart-ratio",
        "ON|OFF|0..255",
        "ON",
        "On how many of 255 connections `jumpstart-max` is used. Values other than `ON` are ignored with a warning.",
    ),
    attribute(
        "rapid-start",
        "ON|OFF|0..255",
        "OFF",
        "An experiment of H2O. Values other than `OFF` are ignored with a warning.",
    ),
];

/// Reads the attributes of a QUIC `listen`.
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
        // QUIC has 2^60 numbers for streams of one kind (RFC 9000 §4.6).
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
    if let Some(node) = get("jumpstart-max") {
        settings.max_jump = node.integer("%u", 0..=u64::from(u32::MAX))?;
    }
    settings.ecn = switch(scope, command, "ecn", get("ecn"))?;
    settings.pacing = switch(scope, command, "pacing", get("pacing"))?;
    let name = "respect-app-limited";
    settings.respect_app_limited = switch(scope, command, name, get(name))?;
    for (name, default) in DEFAULT_ONLY {
        if let Some(node) = get(name)
            && !node.scalar()?.eq_ignore_ascii_case(default)
        {
            check(name, node)?;
            warn(
                scope,
                command,
                node,
                &format!("`{name}` other than {default} is not supported, and ignored"),
            );
        }
    }
    Ok(settings)
}

/// Reads an attribute that turns a feature on or off, for all connections. H2O compatibility: H2O has numbers for some of them.
fn switch(
    scope: &mut Scope,
    command: &Command<'_>,
    name: &str,
    node: Option<&Node>,
) -> Result<bool, Error> {
    let Some(node) = node else { return Ok(true) };
    let connections = ratio(node)?;
    let is_on = connections >= 128;
    if !matches!(connections, 0 | 255) {
        let word = if is_on { "ON" } else { "OFF" };
        warn(
            scope,
            command,
            node,
            &format!("`{name}` is the same for all connections: `{word}` is used"),
        );
    }
    Ok(is_on)
}

/// Refuses what H2O refuses.
fn check(name: &str, node: &Node) -> Result<(), Error> {
    if name == "jumpstart-default" {
        return node
            .integer::<u32>("%u", 0..=u64::from(u32::MAX))
            .map(|_| ());
    }
    ratio(node).map(|_| ())
}

/// On how many of 255 connections a feature is on.
fn ratio(node: &Node) -> Result<u8, Error> {
    let text = node.scalar()?;
    if text.eq_ignore_ascii_case("ON") {
        return Ok(255);
    }
    if text.eq_ignore_ascii_case("OFF") {
        return Ok(0);
    }
    text.parse().map_err(|_| {
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
            .with_hint("`auto`, `reno`, `cubic` or `pico`")
    })
}
