//! The directives of [`Http2Settings`](super::http2_settings::Http2Settings).

use std::time::Duration;

use h2o_config::{Directive, Levels, Unit};
use h2o_exchange::Scope;

use crate::site::http2_settings::ReprioritizesBlockingAssets;
use crate::site::settings::{seconds, settings};

/// Default of SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.9.2), which is also the smallest window that the configuration may set.
const MIN_WINDOW: u64 = 65_535;
const MAX_WINDOW: u64 = 16_777_216;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive::global(
        "http2-idle-timeout",
        "SECONDS",
        "10",
        "How long a connection without traffic is kept open while no stream waits for the server: the connection has no streams, or its \
         client keeps the flow-control windows closed, or owes the rest of a request body and may not be silent (`client-min-rate`).",
        |scope, command| {
            let limit = seconds(command.node)?;
            let text = "with `0`, each HTTP/2 connection ends as soon as it waits for its client";
            scope.warn_of_no_time(command, limit, text);
            settings(scope).http2.idle_timeout = limit;
            Ok(())
        },
    ),
    Directive::global(
        "http2-graceful-shutdown-timeout",
        "SECONDS",
        "0",
        "How long streams may continue after the second GOAWAY of a graceful shutdown. `0`: until they end.",
        |scope, command| {
            let limit = seconds(command.node)?;
            settings(scope).http2.graceful_shutdown_timeout =
                Some(limit).filter(|limit| !limit.is_zero());
            Ok(())
        },
    ),
    Directive::global(
        "http2-max-streams",
        "NUMBER",
        "100",
        "How many streams a client may have open at the same time (`SETTINGS_MAX_CONCURRENT_STREAMS`); further streams are refused.",
        |scope, command| {
            let limit = command.node.integer("%u", 0..=u64::from(u32::MAX))?;
            if limit == 0 {
                let error = command.error("with `0`, every HTTP/2 request is refused");
                scope.warn(&error.with_hint("write a larger number"));
            }
            settings(scope).http2.max_streams = limit;
            Ok(())
        },
    ),
    Directive::global(
        "http2-max-concurrent-requests-per-connection",
        "NUMBER",
        "100",
        "How many requests of a connection are processed at the same time; further requests wait in their order. The number is also \
         the limit of resets for `http2-dos-delay`.",
        |scope, command| {
            settings(scope).http2.max_concurrent_requests =
                command.node.integer("%zu", 1..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "http2-max-concurrent-streaming-requests-per-connection",
        "NUMBER",
        "1",
        "How many requests of a connection may have their body forwarded while it arrives, at the same time: uploads to backends and gRPC \
         streams. Further requests wait, with the smallest flow-control window. Tunnels do not count.",
        |scope, command| {
            settings(scope).http2.max_concurrent_streaming_requests =
                command.node.integer("%zu", 1..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "http2-input-window-size",
        "BYTES",
        "16777216",
        "Flow-control window of a stream whose body is being read; 65535 to 16777216.",
        |scope, command| {
            let bytes: u64 = command.node.quantity(Unit::Bytes, "%zu", 0..=u64::MAX)?;
            settings(scope).http2.input_window_size = u32::try_from(bytes)
                .ok()
                .filter(|_| (MIN_WINDOW..=MAX_WINDOW).contains(&bytes))
                .ok_or_else(|| command.error("window size must be between 65535 and 16777216"))?;
            Ok(())
        },
    ),
    Directive::global(
        "http2-latency-optimization-min-rtt",
        "MILLISECONDS",
        "50",
        "On connections with at least this round-trip time the kernel gets no more data than it can send at once, so that a \
         more urgent response can overtake. `4294967295` switches that off.",
        |scope, command| {
            let millis: u32 =
                command
                    .node
                    .quantity(Unit::Milliseconds, "%u", 0..=u64::from(u32::MAX))?;
            settings(scope).http2.latency.min_rtt =
                (millis != u32::MAX).then(|| Duration::from_millis(millis.into()));
            Ok(())
        },
    ),
    Directive::global(
        "http2-latency-optimization-max-additional-delay",
        "RATIO",
        "0.1",
        "The latency optimisation is not used if an iteration of the event loop takes longer than this fraction of the round-trip \
         time. The fraction is rounded to a whole percentage.",
        |scope, command| {
            let ratio = command.node.float()?;
            if ratio <= 0.0 {
                return Err(command.error("ratio must be a positive number"));
            }
            settings(scope).http2.latency.max_additional_delay_percent = whole_percent(ratio);
            Ok(())
        },
    ),
    Directive::global(
        "http2-latency-optimization-max-cwnd",
        "BYTES",
        "65535",
        "The latency optimisation is not used while the congestion window is at least this large.",
        |scope, command| {
            settings(scope).http2.latency.max_cwnd =
                command
                    .node
                    .quantity(Unit::Bytes, "%u", 0..=u64::from(u32::MAX))?;
            Ok(())
        },
    ),
    Directive::global(
        "http2-dos-delay",
        "SECONDS",
        "0.1; configured values are whole seconds",
        "How long new requests of a connection wait once its client has reset too many: as many as \
         `http2-max-concurrent-requests-per-connection` says, where each request that was answered makes up for one reset. Counts \
         for HTTP/3 as well. In seconds, as in H2O (whose manual says milliseconds). `0` switches the delay off.",
        |scope, command| {
            settings(scope).http2.dos_delay = seconds(command.node)?;
            Ok(())
        },
    ),
    Directive {
        levels: Levels::GLOBAL_HOST,
        ..Directive::setting(
            "http2-reprioritize-blocking-assets",
            "ON|OFF",
            "ON",
            "Whether responses whose type blocks rendering (style sheets, scripts, and types that `file.mime.addtypes` marks \
             as `highest`) are sent ahead of others, for clients that send no priorities.",
            |scope, command| {
                scope.edit::<ReprioritizesBlockingAssets>().0 = command.node.on_off()?;
                Ok(())
            },
        )
    },
];

/// Rounds a positive ratio to the nearest whole percentage.
fn whole_percent(ratio: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and a larger percentage would have the same effect"
    )]
    let percent = (ratio * 100.0).round() as u32;
    percent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadedConfig;
    use crate::ServerSettings;
    use crate::load;
    use crate::site::http2_settings::{Http2Settings, LatencySettings};
    use h2o_config::{Error, Memory};
    use h2o_handlers::push::{CasperSettings, PushSettings};

    /// Reads a configuration with these directives at the global, host and path level.
    fn read([global, host, path]: [&str; 3]) -> Result<LoadedConfig, Error> {
        let text = format!(
            "{global}\nlisten: 80\nhosts:\n  default:\n    {host}\n    paths:\n      /:\n        {path}\n        redirect: /a\n  other:\n    paths: {{ /: {{ redirect: /a }} }}\n"
        );
        load("f", &Memory::new().file("f", text))
    }

    fn http2(global: &str) -> Result<Http2Settings, String> {
        match read([global, "", ""]) {
            Ok(loaded) => Ok(loaded.settings().http2.clone()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let settings = ServerSettings::default().http2;
        assert_eq!(http2(""), Ok(settings.clone()));
        let text = "http2-idle-timeout: 10\nhttp2-graceful-shutdown-timeout: 0\nhttp2-max-streams: 100\nhttp2-max-concurrent-requests-per-connection: 100\nhttp2-max-concurrent-streaming-requests-per-connection: 1\nhttp2-input-window-size: 16777216\nhttp2-latency-optimization-min-rtt: 50\nhttp2-latency-optimization-max-additional-delay: 0.1\nhttp2-latency-optimization-max-cwnd: 65535";
        assert_eq!(http2(text), Ok(settings));
    }

    #[test]
    fn global_settings_are_read() {
        let text = "http2-idle-timeout: 1\nhttp2-graceful-shutdown-timeout: 2\nhttp2-max-streams: 3\nhttp2-max-concurrent-requests-per-connection: 4\nhttp2-max-concurrent-streaming-requests-per-connection: 5\nhttp2-input-window-size: 65535\nhttp2-latency-optimization-min-rtt: 6\nhttp2-latency-optimization-max-additional-delay: 0.29\nhttp2-latency-optimization-max-cwnd: 7\nhttp2-dos-delay: 8";
        let want = Http2Settings {
            idle_timeout: Duration::from_secs(1),
            graceful_shutdown_timeout: Some(Duration::from_secs(2)),
            max_streams: 3,
            max_concurrent_requests: 4,
            max_concurrent_streaming_requests: 5,
            input_window_size: 65_535,
            latency: LatencySettings {
                min_rtt: Some(Duration::from_millis(6)),
                max_additional_delay_percent: 29,
                max_cwnd: 7,
            },
            dos_delay: Duration::from_secs(8),
        };
        assert_eq!(http2(text), Ok(want));
        let off = http2("http2-latency-optimization-min-rtt: 4294967295\nhttp2-dos-delay: 0");
        let off = off.unwrap();
        assert_eq!((off.latency.min_rtt, off.dos_delay), (None, Duration::ZERO));
    }

    #[test]
    fn hosts_may_reprioritize_differently() {
        let key = "http2-reprioritize-blocking-assets";
        let off = format!("{key}: OFF");
        let on = format!("{key}: ON");
        let cases = [
            (["", "", ""], [true, true]),
            ([&off, "", ""], [false, false]),
            (["", &off, ""], [false, true]),
            ([&off, &on, ""], [true, false]),
        ];
        for (levels, want) in cases {
            let site = read(levels).unwrap().site;
            let of = |host: usize| {
                let settings = &site.hosts[host].paths[0].settings;
                settings.get::<ReprioritizesBlockingAssets>().0
            };
            assert_eq!([of(0), of(1)], want, "{levels:?}");
        }
    }

    #[test]
    fn the_debug_state_is_a_path_of_its_host() {
        let site = read(["", "http2-debug-state: minimum", ""]).unwrap().site;
        let keys = |host: usize| -> Vec<_> {
            let paths = &site.hosts[host].paths;
            paths
                .iter()
                .map(|path| (&*path.path, path.handlers.len()))
                .collect()
        };
        assert_eq!(keys(0), [("/.well-known/h2/state", 1), ("/", 1), ("", 0)]);
        assert_eq!(keys(1), [("/", 1), ("", 0)]);
    }

    #[test]
    fn other_words_for_casper_are_only_warned_of() {
        let loaded = read(["http2-casper: ON\nhttp2-casper: maybe", "", ""]).unwrap();
        assert_eq!(
            loaded.warnings,
            [
                "[warning] [f:2] in command http2-casper, `maybe` is neither `ON` nor `OFF` and is ignored (column 15)"
            ]
        );
        let settings = loaded.site.settings.get::<PushSettings>();
        assert_eq!(settings.casper, Some(CasperSettings::default()));
    }

    #[test]
    fn a_limit_that_ends_each_connection_is_warned_of() {
        assert_eq!(
            read(["http2-idle-timeout: 0", "", ""]).unwrap().warnings,
            [
                "[warning] [f:1] in command http2-idle-timeout, with `0`, each HTTP/2 connection ends as soon as it waits for its client (column 21; write a longer time)"
            ]
        );
    }

    #[test]
    fn bad_values_are_refused() {
        let window = "window size must be between 65535 and 16777216 (column 26)";
        let cases = [
            (
                "http2-idle-timeout: 10s",
                "argument must match the format: %lu (column 21; `10s` is not a whole number of seconds; write `10`)",
            ),
            (
                "http2-max-streams: 4294967296",
                "argument must be between 0 and 4294967295 (column 20)",
            ),
            (
                "http2-max-concurrent-requests-per-connection: 0",
                "argument must be between 1 and 4294967295 (column 47)",
            ),
            ("http2-input-window-size: 65534", window),
            ("http2-input-window-size: 16777217", window),
            (
                "http2-input-window-size: x",
                "argument must match the format: %zu (column 26; `x` is not a whole number of bytes; write digits only)",
            ),
            (
                "http2-latency-optimization-max-additional-delay: 0",
                "ratio must be a positive number (column 50)",
            ),
            (
                "http2-latency-optimization-max-additional-delay: -0.1",
                "ratio must be a positive number (column 50)",
            ),
            (
                "http2-latency-optimization-max-additional-delay: x",
                "argument must match the format: %lf (column 50; `x` is not a number such as `0.5`)",
            ),
            (
                "http2-dos-delay: 0.1",
                "argument must match the format: %lu (column 18; `0.1` is not a whole number of seconds; write digits only)",
            ),
        ];
        for (text, want) in cases {
            let name = text.split(':').next().unwrap();
            assert_eq!(
                http2(text),
                Err(format!("[f:1] in command {name}, {want}")),
                "{text}"
            );
        }
    }
}
