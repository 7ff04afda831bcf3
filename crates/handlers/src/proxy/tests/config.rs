//! Tests of the proxy's directives, and of their error messages.

use std::time::Duration;

use h2o_config::{Level, Memory, load};
use h2o_exchange::{Features, Scope};
use h2o_upstream::{HealthCheck, PassiveCheck, Retry};

use super::super::settings::ProxySettings;
use super::SETUP;

/// The settings of a path, from the configurations of the three levels: global, host and path.
fn settings(levels: [&str; 3]) -> ProxySettings {
    let site = SETUP.read(levels).unwrap_or_else(|error| panic!("{error}"));
    let settings = site.hosts[0].paths[0].settings.get::<ProxySettings>();
    (*settings).clone()
}

#[test]
fn limits_of_time_follow_that_of_io_within_a_level() {
    let io = "proxy.timeout.io: 5";
    let connect = "proxy.timeout.connect: 7";
    let first = "proxy.timeout.first_byte: 8";
    let both = format!("{io}\n{connect}");
    let reversed = format!("{first}\n{io}");
    let cases = [
        // Each row: the configurations of the three levels; the limits for I/O, connecting and the first byte in
        // milliseconds.
        (["", "", ""], (30000, 30000, 30000)),
        (["", "", io], (5, 5, 5)),
        (["", "", connect], (30000, 7, 30000)),
        (["", "", &both], (5, 7, 5)),
        (["", "", &reversed], (5, 5, 8)),
        ([connect, first, io], (5, 5, 5)),
        ([io, connect, ""], (5, 7, 5)),
        ([&both, "", "proxy.timeout.io: 6"], (6, 6, 6)),
        ([&both, "", first], (5, 7, 8)),
    ];
    for (levels, want) in cases {
        let got = settings(levels).timeouts;
        let got = (
            got.io.as_millis(),
            got.connect.as_millis(),
            got.first_byte.as_millis(),
        );
        assert_eq!(got, want, "{levels:?}");
    }
}

#[test]
fn settings_have_the_defaults_of_h2o_and_the_values_they_are_given() {
    let plain = settings(["", "", ""]);
    assert_eq!(plain.timeouts.keepalive, Duration::from_secs(2));
    assert_eq!((plain.http2_ratio, plain.http2_max_streams), (None, 100));
    assert_eq!(plain.max_buffer_size, None);
    assert_eq!(plain.max_temp_file_size, 1 << 30);
    assert!(!plain.tunnels && !plain.expects_continue && !plain.proxy_protocol);
    let set = settings([
        "proxy.zerocopy: always\nproxy.max-temp-file-size: 8",
        "proxy.timeout.keepalive: 0\nproxy.tunnel: ON\nproxy.expect: on",
        "proxy.http2.ratio: 0\nproxy.http2.max-concurrent-streams: 7\nproxy.max-buffer-size: 9\nproxy.http3.ratio: 30\n\
         proxy.http3.ecn: OFF\nproxy.reverse.url: 'http://a'",
    ]);
    assert_eq!(set.timeouts.keepalive, Duration::ZERO);
    assert_eq!((set.http2_ratio, set.http2_max_streams), (Some(0), 7));
    assert_eq!((plain.http3_ratio, plain.http3_ecn), (0, true));
    assert_eq!((set.http3_ratio, set.http3_ecn), (30, false));
    assert_eq!((set.max_buffer_size, set.max_temp_file_size), (Some(9), 8));
    assert!(set.tunnels && set.expects_continue);
}

#[test]
fn checks_and_retries_are_inherited_and_replaced() {
    let plain = settings(["", "", ""]);
    assert_eq!(
        (
            plain.checks.active,
            plain.checks.passive,
            plain.checks.retry
        ),
        (None, None, None)
    );
    let levels = [
        "proxy.health-check: { path: /a, interval: 1, timeout: 2, rise: 3, fall: 4, slow-start: 5 }",
        "proxy.passive-health-check: { fall: 6, pause: 7 }\nproxy.retry: { tries: 8, budget: 9 }",
        "",
    ];
    let milliseconds = Duration::from_millis;
    let set = settings(levels);
    let check = HealthCheck {
        host: None,
        path: "/a".into(),
        interval: milliseconds(1),
        timeout: milliseconds(2),
        rise: 3,
        fall: 4,
        slow_start: milliseconds(5),
    };
    let passive = PassiveCheck {
        fall: 6,
        pause: milliseconds(7),
    };
    let retry = Retry {
        attempts: 8,
        budget: 9,
    };
    assert_eq!(set.checks.active, Some(check));
    assert_eq!(
        (set.checks.passive, set.checks.retry),
        (Some(Some(passive)), Some(Some(retry)))
    );
    let inner = "proxy.health-check: ON\nproxy.passive-health-check: off\nproxy.retry: OFF";
    let replaced = settings([levels[0], levels[1], inner]);
    assert_eq!(replaced.checks.active, Some(HealthCheck::default()));
    assert_eq!(
        (replaced.checks.passive, replaced.checks.retry),
        (Some(None), Some(None))
    );
}

#[test]
fn levels_that_leave_tls_alone_share_their_sessions() {
    let site = SETUP
        .read([
            "proxy.ssl.session-cache: { lifetime: 5, capacity: 6 }",
            "",
            "proxy.ssl.verify-peer: OFF",
        ])
        .unwrap();
    let of = |settings: &h2o_exchange::SettingsMap| settings.get::<ProxySettings>().tls.clone();
    let paths = &site.hosts[0].paths;
    let (global, host, path) = (
        of(&site.settings),
        of(&paths[1].settings),
        of(&paths[0].settings),
    );
    assert!(std::sync::Arc::ptr_eq(&global, &host));
    assert!(!std::sync::Arc::ptr_eq(&global, &path));
    let cache = Some((Duration::from_secs(5), 6));
    assert_eq!(
        (global.rules.verify_peer, path.rules.verify_peer),
        (true, false)
    );
    assert_eq!(
        (global.rules.session_cache, path.rules.session_cache),
        (cache, cache)
    );
    let off = settings(["", "", "proxy.ssl.session-cache: OFF"]);
    assert_eq!(off.tls.rules.session_cache, None);
}

#[test]
fn what_cannot_be_is_refused() {
    let url = "proxy.reverse.url: 'http://a'";
    let one_of = "argument must be one of: OFF,ON";
    let with_url = |config: &str| format!("{config}\n{url}");
    let cases = [
        ("proxy.preserve-host: yes".to_owned(), one_of),
        ("proxy.tunnel: 1".to_owned(), one_of),
        (
            "proxy.timeout.io: x".to_owned(),
            "argument must match the format: %lu",
        ),
        (
            "proxy.timeout.keepalive: -1".to_owned(),
            "argument must match the format: %lu",
        ),
        (
            "proxy.max-buffer-size: x".to_owned(),
            "argument must match the format: %zu",
        ),
        (
            "proxy.max-buffer-size: 0".to_owned(),
            "proxy.buffer_size must be a positive value",
        ),
        (
            "proxy.http2.ratio: x".to_owned(),
            "argument must match the format: %hhd",
        ),
        (
            "proxy.http2.ratio: 101".to_owned(),
            "proxy.http2.ratio must be between 0 and 100",
        ),
        (
            "proxy.http2.ratio: 300".to_owned(),
            "proxy.http2.ratio must be between 0 and 100",
        ),
        (
            "proxy.http3.ratio: 101".to_owned(),
            "proxy.http3.ratio must be between 0 and 100",
        ),
        (
            "proxy.http2.max-concurrent-streams: x".to_owned(),
            "argument must match the format: %u",
        ),
        (
            "proxy.expect: x".to_owned(),
            "argument must be one of: OFF,ON,FORWARD",
        ),
        (
            "proxy.ssl.cafile: /nowhere.pem".to_owned(),
            "failed to load certificates file:/nowhere.pem",
        ),
        (
            "proxy.ssl.session-cache: x".to_owned(),
            "scalar argument must be either of: `OFF`, `ON`",
        ),
        (
            "proxy.ssl.session-cache: []".to_owned(),
            "node must be a scalar or a mapping",
        ),
        (
            "proxy.ssl.session-cache: { lifetime: 1 }".to_owned(),
            "cannot find mandatory attribute: capacity",
        ),
        (
            "proxy.ssl.session-cache: { capacity: 1 }".to_owned(),
            "cannot find mandatory attribute: lifetime",
        ),
        (
            "proxy.ssl.session-cache: { lifetime: 1, capacity: 0 }".to_owned(),
            "capacity must be greater than zero",
        ),
        (
            "proxy.ssl.session-cache: { lifetime: 0, capacity: 1 }".to_owned(),
            "lifetime must be greater than zero",
        ),
        (
            with_url("proxy.proxy-protocol: ON"),
            "please either set `proxy.use-proxy-protocol` to `OFF` or disable keep-alive by setting \
             `proxy.timeout.keepalive` to zero; the features are mutually exclusive",
        ),
        (
            with_url("proxy.http2.force-cleartext: ON"),
            "when `proxy.http2.force-cleartext` is `ON`, `proxy.http2.ratio` must be set to `100` (percent)",
        ),
        (
            with_url("proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 99"),
            "when `proxy.http2.force-cleartext` is `ON`, `proxy.http2.ratio` must be set to `100` (percent)",
        ),
        (
            with_url("proxy.http2.ratio: 50\nproxy.http3.ratio: 51"),
            "sum of http2.ratio and http3.ratio cannot be greater than 100",
        ),
        (
            with_url("proxy.http3.ratio: 1\nproxy.proxy-protocol: ON\nproxy.timeout.keepalive: 0"),
            "`proxy.proxy-protocol` and `proxy.http3.ratio` are mutually exclusive: QUIC connections have no PROXY header",
        ),
        (
            "proxy.reverse.url: { url: 'http://a' }".to_owned(),
            "unexpected key:url",
        ),
        (
            "proxy.header.add: 'Connection: x'".to_owned(),
            "the named header cannot be rewritten",
        ),
        (
            "proxy.emit-via-header: ON".to_owned(),
            "the command cannot be used at this level",
        ),
    ];
    for (config, want) in cases {
        let got = match SETUP.read(["", "", &config]) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.message,
        };
        assert_eq!(got, want, "{config}");
    }
    let allowed = with_url("proxy.http2.force-cleartext: ON\nproxy.http2.ratio: 100");
    assert!(SETUP.read(["", "", &allowed]).is_ok());
}

#[test]
fn settings_are_accepted_at_every_level() {
    let directives = super::DIRECTIVES.iter();
    let inner = directives.filter(|directive| directive.levels.contains(Level::Path));
    let only_inner = inner.filter(|directive| !directive.levels.contains(Level::Extension));
    let names: Vec<_> = only_inner.map(|directive| directive.name).collect();
    assert_eq!(names, ["proxy.reverse.url"]);
}

#[test]
fn resolver_threads_are_of_the_process() {
    let cases = [
        ("num-name-resolution-threads: 1", "accepted"),
        (
            "num-name-resolution-threads: 0",
            "num-name-resolution-threads must be >=1",
        ),
        (
            "num-name-resolution-threads: -1",
            "argument must match the format: %zu",
        ),
    ];
    for (config, want) in cases {
        let got = match SETUP.read([config, "", ""]) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.message,
        };
        assert_eq!(got, want, "{config}");
        let inner = SETUP
            .read(["", config, ""])
            .err()
            .map(|error| error.message);
        let want = "the command cannot be used at this level";
        assert_eq!(inner.as_deref(), Some(want), "{config}");
    }
}

#[test]
fn old_names_still_work_with_a_warning() {
    let features = Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: h2o_config::Registry::new(&[super::DIRECTIVES]),
        filters: Vec::new(),
    };
    let mut scope = Scope::new(std::sync::Arc::new(features));
    let text = "proxy.http2.max-concurrent_streams: 5";
    let node = load("f", &Memory::new().file("f", text)).unwrap();
    assert_eq!(scope.level, Level::Global);
    scope.run(&node).unwrap();
    assert_eq!(scope.settings.get::<ProxySettings>().http2_max_streams, 5);
    let warning = "[warning] [f:1] in command proxy.http2.max-concurrent_streams, the command is deprecated; use \
                   proxy.http2.max-concurrent-streams (notice `-` and `_`) (column 37)";
    assert_eq!(scope.warnings, [warning]);
}
