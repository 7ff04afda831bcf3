//! Configurations of the proxy that the server refuses, with its messages.

use h2o_tests::Setup;

/// A valid value of `proxy.reverse.url`.
const GOOD: &str = "'http://127.0.0.1:1/'";

#[test]
fn what_is_wrong_with_a_proxy_is_told() {
    let rows: &[(&str, &str, &str)] = &[
        // Columns: directive, value of `proxy.reverse.url`, expected directive and message.
        (
            "proxy.http2.ratio: 101",
            GOOD,
            "proxy.http2.ratio, proxy.http2.ratio must be between 0 and 100",
        ),
        (
            "proxy.max-buffer-size: 0",
            GOOD,
            "proxy.max-buffer-size, proxy.buffer_size must be a positive value",
        ),
        (
            "proxy.preserve-host: yes",
            GOOD,
            "proxy.preserve-host, argument must be one of: OFF,ON",
        ),
        (
            "proxy.timeout.io: soon",
            GOOD,
            "proxy.timeout.io, argument must match the format: %lu",
        ),
        (
            "proxy.ssl.cafile: /no/such.pem",
            GOOD,
            "proxy.ssl.cafile, failed to load certificates file:/no/such.pem",
        ),
        (
            "proxy.ssl.session-cache: MAYBE",
            GOOD,
            "proxy.ssl.session-cache, scalar argument must be either of: `OFF`, `ON`",
        ),
        (
            "proxy.ssl.session-cache: [ 1 ]",
            GOOD,
            "proxy.ssl.session-cache, node must be a scalar or a mapping",
        ),
        (
            "proxy.ssl.session-cache: { lifetime: 1, capacity: 0 }",
            GOOD,
            "proxy.ssl.session-cache, capacity must be greater than zero",
        ),
        (
            "proxy.ssl.session-cache: { lifetime: 0, capacity: 1 }",
            GOOD,
            "proxy.ssl.session-cache, lifetime must be greater than zero",
        ),
        (
            "proxy.proxy-protocol: ON",
            GOOD,
            "proxy.reverse.url, please either set `proxy.use-proxy-protocol` to `OFF` or disable keep-alive by setting \
             `proxy.timeout.keepalive` to zero; the features are mutually exclusive",
        ),
        (
            "proxy.http2.force-cleartext: ON",
            GOOD,
            "proxy.reverse.url, when `proxy.http2.force-cleartext` is `ON`, `proxy.http2.ratio` must be set to `100` (percent)",
        ),
        (
            "proxy.header.set: 'Connection: close'",
            GOOD,
            "proxy.header.set, the named header cannot be rewritten",
        ),
        (
            "",
            "[]",
            "proxy.reverse.url, at least one backend url must be set",
        ),
        (
            "",
            "{ backends: { url: 'http://a/' } }",
            "proxy.reverse.url, value for the `backends` property must be either a scalar or a sequence",
        ),
        (
            "",
            "[ [ 'http://a/' ] ]",
            "proxy.reverse.url, items of arguments passed to proxy.reverse.url must be either a scalar or a mapping",
        ),
        (
            "",
            "[ { url: 'http://a/', weight: 0 } ]",
            "proxy.reverse.url, weight must be an integer in range 1 - 256",
        ),
        (
            "",
            "[ { url: 'http://a/', weight: 257 } ]",
            "proxy.reverse.url, weight must be an integer in range 1 - 256",
        ),
        (
            "",
            "{ backends: 'http://a/', balancer: random }",
            "proxy.reverse.url, specified balancer is not supported. Currently supported ones are: round-robin, least-conn",
        ),
        (
            "",
            "{ url: 'http://a/' }",
            "proxy.reverse.url, unexpected key:url",
        ),
        (
            "",
            "ftp://a/",
            "proxy.reverse.url, failed to parse URL: ftp://a/",
        ),
        (
            "",
            "HTTP://a/",
            "proxy.reverse.url, failed to parse URL: HTTP://a/",
        ),
        (
            "",
            "http://a:65535/",
            "proxy.reverse.url, failed to parse URL: http://a:65535/",
        ),
        (
            "",
            "http://",
            "proxy.reverse.url, failed to parse URL: http://",
        ),
    ];
    let faults: Vec<String> = rows
        .iter()
        .filter_map(|(settings, url, want)| {
            let config = super::kit::config(settings, "URL").replace("'URL'", url);
            let said = match Setup::new(&config).try_start() {
                Ok(_) => "nothing".to_owned(),
                Err(refused) => refused.stderr,
            };
            let is_told = said.contains(&format!("] in command {want}"));
            (!is_told).then(|| format!("{settings} {url}\n  wanted {want}\n  got    {said}\n"))
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.concat());
}

#[test]
fn urls_that_are_unusual_are_taken() {
    for url in [
        "'http://A.Example'",
        "'http://a.example?q'",
        "'http://a.example:65534/b?c'",
        "'https://[::1]:8443/'",
        "'http://[unix:/tmp/A.sock]/b'",
        "{ backends: 'http://a/', balancer: least-conn }",
        "[ { url: 'http://a/', weight: 256 }, 'http://b/' ]",
    ] {
        let config = super::kit::config("", "URL").replace("'URL'", url);
        let _ = Setup::new(&config).start();
    }
}
