//! The directives of [`Http3Settings`](super::quic_settings::Http3Settings), and the directives that apply to all QUIC listeners.

use h2o_config::{Directive, Unit};
use h2o_exchange::Scope;

use crate::site::quic_settings::MIN_INPUT_WINDOW;
use crate::site::settings::{seconds, settings};
use crate::site::warnings::warn;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive::global(
        "http3-idle-timeout",
        "SECONDS",
        "30",
        "How long a connection is kept open on which no packet arrives (`max_idle_timeout`; the smaller of the values of client and \
         server applies). The server then drops the connection without sending a packet.",
        |scope, command| {
            settings(scope).http3.idle_timeout = seconds(command.node)?;
            Ok(())
        },
    ),
    Directive::global(
        "http3-graceful-shutdown-timeout",
        "SECONDS",
        "0",
        "How long requests may continue after the second GOAWAY of a graceful shutdown. 0: until they end.",
        |scope, command| {
            let limit = seconds(command.node)?;
            settings(scope).http3.graceful_shutdown_timeout =
                Some(limit).filter(|limit| !limit.is_zero());
            Ok(())
        },
    ),
    Directive::global(
        "http3-input-window-size",
        "BYTES",
        "16777216",
        "How many bytes a client may send on all streams of a connection together before the server reads them; at least 417808. \
         Each stream has a window of this size, too, but of 1 MiB at most.",
        |scope, command| {
            let bytes: u32 = command
                .node
                .quantity(Unit::Bytes, "%u", 0..=u64::from(u32::MAX))?;
            if bytes < MIN_INPUT_WINDOW {
                return Err(command.error(format!(
                    "window size must be no less than {MIN_INPUT_WINDOW}"
                )));
            }
            settings(scope).http3.input_window_size = bytes;
            Ok(())
        },
    ),
    Directive::global(
        "http3-max-concurrent-streaming-requests-per-connection",
        "NUMBER",
        "1",
        "How many requests of a connection may have their body forwarded while it arrives, at the same time. Further requests wait, with \
         the smallest flow-control window. Tunnels do not count.",
        |scope, command| {
            settings(scope).http3.max_concurrent_streaming_requests =
                command.node.integer("%zu", 1..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "http3-gso",
        "ON|OFF",
        "ON",
        "Hands the kernel several packets in one system call (UDP segmentation offload). If the kernel cannot do that, packets are sent \
         one by one in any case.",
        |scope, command| {
            settings(scope).http3.segmentation_offload = command.node.on_off()?;
            Ok(())
        },
    ),
    Directive::global(
        "http3-ack-frequency",
        "RATIO",
        "0",
        "Asks clients that support the extension for delayed acknowledgements to acknowledge once per this fraction of a round-trip time, by the size of the first congestion window. \
         `0`: clients are not asked.",
        |scope, command| {
            let ratio = command.node.float()?;
            if !(0.0..=1.0).contains(&ratio) {
                return Err(command.error("ack frequency must be between 0 and 1"));
            }
            settings(scope).http3.ack_frequency = ratio;
            Ok(())
        },
    ),
    Directive::global(
        "http3-allow-delayed-ack",
        "ON|OFF",
        "ON",
        "Clients may ask the server to acknowledge more rarely (`min_ack_delay`). `OFF` is ignored with a warning.",
        |scope, command| {
            if !command.node.on_off()? {
                warn(
                    scope,
                    command,
                    command.node,
                    "`OFF` is not supported, and ignored",
                );
            }
            Ok(())
        },
    ),
    Directive::global(
        "max-quic-connections",
        "NUMBER",
        "`max-connections`",
        "Largest number of open QUIC connections; they also count among `max-connections`. At the limit, the packets of new clients are \
         dropped; with `0`, those of all clients.",
        |scope, command| {
            settings(scope).max_quic_connections =
                Some(command.node.integer("%zu", 0..=u64::from(u32::MAX))?);
            Ok(())
        },
    ),
    Directive::global(
        "num-quic-threads",
        "NUMBER",
        "0",
        "How many workers serve QUIC. `0`, or a number larger than that of the workers: all workers.",
        |scope, command| {
            let count = command.node.integer("%zu", 0..=u64::from(u32::MAX))?;
            settings(scope).quic_workers = Some(count).filter(|count| *count > 0);
            Ok(())
        },
    ),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use h2o_config::Memory;

    use crate::site::quic_settings::Http3Settings;
    use crate::{ServerSettings, load};

    fn read(global: &str) -> Result<ServerSettings, String> {
        let text = format!(
            "{global}\nlisten: 80\nhosts:\n  default:\n    paths: {{ /: {{ redirect: /a }} }}\n"
        );
        load("f", &Memory::new().file("f", text))
            .map(|loaded| ServerSettings::clone(&loaded.settings()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_http3_are_read() {
        let text = "http3-idle-timeout: 1\nhttp3-graceful-shutdown-timeout: 2\nhttp3-input-window-size: 417808\n\
                    http3-max-concurrent-streaming-requests-per-connection: 3\nhttp3-gso: OFF\nhttp3-ack-frequency: 0.5\n\
                    max-quic-connections: 4\nnum-quic-threads: 5";
        let read_settings = read(text).unwrap();
        let want = Http3Settings {
            idle_timeout: Duration::from_secs(1),
            graceful_shutdown_timeout: Some(Duration::from_secs(2)),
            input_window_size: 417_808,
            max_concurrent_streaming_requests: 3,
            segmentation_offload: false,
            ack_frequency: 0.5,
        };
        assert_eq!(read_settings.http3, want);
        assert_eq!(read_settings.max_quic_connections, Some(4));
        assert_eq!(read_settings.quic_workers, Some(5));
        assert_eq!(read("").unwrap().http3, Http3Settings::default());
    }

    #[test]
    fn bad_values_are_refused() {
        let cases = [
            (
                "http3-input-window-size: 417807",
                "[f:1] in command http3-input-window-size, window size must be no less than 417808 (column 26)",
            ),
            (
                "http3-ack-frequency: 1.1",
                "[f:1] in command http3-ack-frequency, ack frequency must be between 0 and 1 (column 22)",
            ),
            (
                "max-quic-connections: 4294967296",
                "[f:1] in command max-quic-connections, argument must be between 0 and 4294967295 (column 23)",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(read(text).map(|_| ()), Err(want.to_owned()), "{text}");
        }
    }
}
