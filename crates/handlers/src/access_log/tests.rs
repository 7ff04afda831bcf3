//! Tests of access logs: the text that each specifier gives, and the directive `access-log`.

use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Level, Memory, Registry, load};
use h2o_exchange::{Exchange, Features, Http2Stream, Protocol, Resources, Scope, StreamPriority};
use jiff::tz::TimeZone;

use super::kit::{self, ask, begun, complete};
use super::{DIRECTIVES, Escape, Format, LocalTime, format};

fn line(format: &str, escape: Escape, exchange: &Exchange) -> String {
    let zone = TimeZone::posix("PST8").unwrap();
    let mut out = Vec::new();
    Format::compile(format, escape)
        .unwrap()
        .render(exchange, &LocalTime::new(zone), &mut out);
    String::from_utf8(out).unwrap()
}

/// Stands for a missing value in the table below.
const NULL: &str = "(null)";

/// Each row: a specifier, its value for the exchange [`complete`], its value for the exchange [`begun`].
const SPECIFIERS: &[(&str, &str, &str)] = &[
    ("%%", "%", "%"),
    ("%A", "2001:db8::1", "localhost"),
    ("%b", "1234", "0"),
    ("%H", "HTTP/1.1", NULL),
    ("%h", "192.0.2.1", "localhost"),
    ("%l", NULL, NULL),
    ("%m", "POST", NULL),
    ("%p", "443", NULL),
    ("%{local}p", "443", NULL),
    ("%{remote}p", "54321", NULL),
    ("%q", "?q=1&r=?", NULL),
    ("%r", "POST /a%20b/../c?q=1&r=? HTTP/1.1", NULL),
    ("%s", "404", NULL),
    ("%>s", "404", NULL),
    ("%<s", "200", NULL),
    ("%U", "/a%20b/../c", NULL),
    ("%u", "alice", NULL),
    ("%V", "WWW.example:8443", "www.example:8443"),
    ("%v", "www.example:8443", "www.example:8443"),
    (
        "%<h%>v",
        "192.0.2.1www.example:8443",
        "localhostwww.example:8443",
    ),
    ("%{Color}e", "\"raw\"", NULL),
    ("%{color}e", NULL, NULL),
    ("%{Referer}i", "https://example.org/", NULL),
    ("%{USER-agent}i", "curl/8.0 (x; y)", NULL),
    ("%{X-A}i", "first", NULL),
    ("%{upgrade}i", "websocket", NULL),
    ("%{host}i", NULL, NULL),
    ("%{content-length}i", NULL, NULL),
    ("%{transfer-encoding}i", NULL, NULL),
    ("%{}i", NULL, NULL),
    ("%{Content-Type}o", "text/html", NULL),
    ("%>{Content-Type}o", "text/html", NULL),
    ("%<{Content-Type}o", "text/plain", NULL),
    ("%{set-cookie}o", "a=1, b=2", NULL),
    ("%<{set-cookie}o", NULL, NULL),
    ("%{content-length}o", NULL, NULL),
    ("%{connect-time}x", "2", "0"),
    ("%{request-header-time}x", "0.000069", NULL),
    ("%{request-body-time}x", "0", NULL),
    ("%{request-total-time}x", "0.000069", NULL),
    ("%{process-time}x", "0.499931", NULL),
    ("%{response-time}x", "2.500000", NULL),
    ("%{duration}x", "3", NULL),
    ("%{Total-Time}x", "3", NULL),
    ("%{proxy.idle-time}x", NULL, NULL),
    ("%{proxy.connect-time}x", NULL, NULL),
    ("%{proxy.request-time}x", NULL, NULL),
    ("%{proxy.process-time}x", NULL, NULL),
    ("%{proxy.response-time}x", NULL, NULL),
    ("%{proxy.total-time}x", NULL, NULL),
    ("%{error}x", "first;second", ""),
    ("%{connection-id}x", "17", "18"),
    ("%{request-id}x", "4", "0"),
    ("%{request-body-bytes}x", "11", "0"),
    ("%{response-header-bytes}x", "321", "0"),
    ("%{request-header-bytes}x", NULL, NULL),
    ("%{request-header-text-bytes}x", NULL, NULL),
    ("%{request-header-count}x", NULL, NULL),
    ("%{response-header-text-bytes}x", NULL, NULL),
    ("%{response-header-count}x", NULL, NULL),
    ("%{proxy.request-bytes}x", "0", "0"),
    ("%{proxy.request-bytes-header}x", "0", "0"),
    ("%{proxy.request-bytes-body}x", "0", "0"),
    ("%{proxy.response-bytes}x", "0", "0"),
    ("%{proxy.response-bytes-header}x", "0", "0"),
    ("%{proxy.response-bytes-body}x", "0", "0"),
    ("%{proxy.ssl.protocol-version}x", NULL, NULL),
    ("%{proxy.ssl.cipher}x", NULL, NULL),
    ("%{proxy.ssl.cipher-bits}x", NULL, NULL),
    ("%{proxy.ssl.session-reused}x", "0", "0"),
    ("%{ssl.protocol-version}x", "TLSv1.3", NULL),
    ("%{ssl.session-reused}x", "1", NULL),
    ("%{ssl.session-id}x", "c2Vzc2lvbg", NULL),
    ("%{ssl.cipher}x", "TLS_AES_256_GCM_SHA384", NULL),
    ("%{ssl.cipher-bits}x", "256", NULL),
    ("%{SSL.Server-Name}x", "sni.example", NULL),
    ("%{ssl.negotiated-protocol}x", "http/1.1", NULL),
    ("%{ssl.ech.config-id}x", NULL, NULL),
    ("%{ssl.backend}x", "rustls", NULL),
    ("%{cc.name}x", "cubic", NULL),
    ("%{delivery-rate}x", "123456", NULL),
    ("%{http1.request-index}x", "4", NULL),
    ("%{http2.stream-id}x", NULL, NULL),
    ("%{http2.priority.received}x", NULL, NULL),
    ("%{http2.priority.received.exclusive}x", NULL, NULL),
    ("%{http2.priority.received.parent}x", NULL, NULL),
    ("%{http2.priority.received.weight}x", NULL, NULL),
    ("%{http2.priority.actual}x", NULL, NULL),
    ("%{http2.priority.actual.parent}x", NULL, NULL),
    ("%{http2.priority.actual.weight}x", NULL, NULL),
    ("%{http3.stream-id}x", NULL, NULL),
    ("%{http3.quic-stats}x", NULL, NULL),
    ("%{extensible-priorities}x", NULL, NULL),
    ("%{no-such-thing}x", NULL, NULL),
];

#[test]
fn every_specifier_has_its_value_or_is_null() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let (complete, begun) = (complete(&worker), begun(&worker));
    for (specifier, value, value_of_begun) in SPECIFIERS {
        for (escape, null) in [(Escape::Apache, "-"), (Escape::Json, "null")] {
            for (exchange, value) in [(&complete, value), (&begun, value_of_begun)] {
                let want = if *value == NULL { null } else { value };
                assert_eq!(line(specifier, escape, exchange), want, "{specifier}");
                let quoted = if *value == NULL && escape == Escape::Json {
                    "<null>".to_owned()
                } else {
                    format!("<\"{want}\">")
                };
                let format = format!("<\"{specifier}\">");
                // `%%` is text, not a specifier, so the quotes around it stay. The quotes around a pair of specifiers
                // stay, too.
                assert_eq!(line(&format, escape, exchange), quoted, "{format}");
            }
        }
    }
}

#[test]
fn streams_of_http_2_have_numbers_and_priorities() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let mut exchange = begun(&worker);
    exchange.protocol = Protocol::Http2(Http2Stream {
        id: 7,
        ..Http2Stream::default()
    });
    let all = "%{http2.priority.received}x %{http2.priority.actual}x";
    assert_eq!(line(all, Escape::Json, &exchange), "0:0:16 0:16");
    exchange.protocol = Protocol::Http2(Http2Stream {
        id: 7,
        received: StreamPriority {
            exclusive: true,
            parent: 5,
            weight: 256,
        },
        actual: StreamPriority {
            exclusive: false,
            parent: 0,
            weight: 257,
        },
        debug_state: None,
    });
    let cases = [
        ("request-id", "7"),
        ("http1.request-index", "-"),
        ("http2.stream-id", "7"),
        ("HTTP2.priority.received", "1:5:256"),
        ("http2.priority.received.exclusive", "1"),
        ("http2.priority.received.parent", "5"),
        ("http2.priority.received.weight", "256"),
        ("http2.priority.actual", "0:257"),
        ("http2.priority.actual.exclusive", "-"),
        ("http2.priority.actual.parent", "0"),
        ("http2.priority.actual.weight", "257"),
    ];
    for (name, want) in cases {
        let format = format!("%{{{name}}}x");
        assert_eq!(line(&format, Escape::Apache, &exchange), want, "{name}");
    }
}

#[test]
fn what_happened_at_upstream_servers_is_told_as_far_as_it_is_known() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let mut exchange = complete(&worker);
    let trace = h2o_exchange::Trace::default();
    let at = |millis| Some(exchange.timings.begun + std::time::Duration::from_millis(millis));
    trace.started.set(at(1));
    exchange.forwarded.trace = Some(std::rc::Rc::new(trace));
    let told = |exchange: &h2o_exchange::Exchange, names: &[&str]| {
        let names = names.iter().map(|name| format!("%{{proxy.{name}}}x"));
        let format = names.collect::<Vec<_>>().join(" ");
        line(&format, Escape::Apache, exchange)
    };
    let times = [
        "idle-time",
        "connect-time",
        "request-time",
        "process-time",
        "response-time",
        "total-time",
    ];
    let bytes = [
        "request-bytes",
        "request-bytes-header",
        "request-bytes-body",
        "response-bytes",
        "response-bytes-header",
        "response-bytes-body",
    ];
    let tls = [
        "ssl.protocol-version",
        "ssl.session-reused",
        "ssl.cipher",
        "ssl.cipher-bits",
    ];
    assert_eq!(told(&exchange, &times), "0.001000 - - - - -");
    assert_eq!(told(&exchange, &bytes), "0 0 0 0 0 0");
    assert_eq!(told(&exchange, &tls), "- 0 - -");

    let trace = exchange.forwarded.trace.clone().unwrap();
    trace.begin_request(at(3).unwrap(), 100, None);
    trace.request_ended.set(at(7));
    trace.response_begun.set(at(15));
    trace.response_ended.set(at(31));
    trace.sent.set(130);
    trace.received.set(77);
    trace.received_head.set(70);
    let want = "0.001000 0.002000 0.004000 0.008000 0.016000 0.028000";
    assert_eq!(told(&exchange, &times), want);
    assert_eq!(told(&exchange, &bytes), "130 100 30 77 70 7");
    assert_eq!(told(&exchange, &tls), "- 1 - -");

    let parameters = exchange.connection.tls.as_deref().cloned();
    trace.begin_request(at(3).unwrap(), 100, parameters);
    assert!(
        told(&exchange, &tls).starts_with("TLSv1.3 "),
        "{}",
        told(&exchange, &tls)
    );
    assert!(told(&exchange, &tls).ends_with(" TLS_AES_256_GCM_SHA384 256"));
}

#[test]
fn a_trace_is_kept_where_a_line_shows_some_of_it() {
    let cases = [
        ("%h %{total-time}x", false),
        ("%{proxy.idle-time}x", true),
        ("%{proxy.request-bytes}x", true),
        ("\"%{Proxy.SSL.cipher}x\"", true),
    ];
    for (format, want) in cases {
        let format = Format::compile(format, Escape::Json).unwrap();
        assert_eq!(format.wants_trace(), want);
    }
}

#[test]
fn times_are_local_and_of_the_moment_of_processing() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let exchange = complete(&worker);
    let cases = [
        ("%t", "[02/Jan/2006:14:04:05 -0800]"),
        ("%{%d/%b/%Y:%T %z}t", "02/Jan/2006:14:04:05 -0800"),
        ("%{%FT%T}t.%{msec_frac}t", "2006-01-02T14:04:05.007"),
        ("%{sec}t", "1136239445"),
        ("%{msec}t", "1136239445007"),
        ("%{usec}t", "1136239445007089"),
        ("%{usec_frac}t", "007089"),
        ("%{}t|", "|"),
    ];
    for (format, want) in cases {
        assert_eq!(line(format, Escape::Apache, &exchange), want, "{format}");
        assert_eq!(line(format, Escape::Json, &exchange), want, "{format}");
    }
}

#[test]
fn a_request_that_was_never_processed_is_logged_at_its_beginning() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let mut exchange = begun(&worker);
    exchange.timings.begun -= Duration::from_secs(5);
    let logged: u64 = line("%{sec}t", Escape::Apache, &exchange).parse().unwrap();
    let now = worker.clock.unix().as_secs();
    assert!((now - 6..=now - 4).contains(&logged), "{logged} at {now}");
}

#[test]
fn text_of_peers_is_escaped_and_variables_are_not() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let mut exchange = begun(&worker);
    let nasty = "a\"b\\c\u{e9}}~\u{1}";
    ask(&mut exchange, "GET", nasty, nasty);
    let headers = &mut exchange.request.headers;
    headers.push(h2o_http::Known::Referer, nasty.as_bytes());
    let headers = &mut exchange.sent.headers;
    headers.push(h2o_http::Known::Location, nasty.as_bytes());
    exchange.errors.push_str(nasty);
    (exchange.env).push(("REMOTE_USER".into(), nasty.as_bytes().into()));
    let apache = r"a\x22b\c\xc3\xa9\x7d\x7e\x01";
    let json = r#"a\"b\\c\u00c3\u00a9}\u007e\u0001"#;
    for format in ["%U", "%V", "%u", "%{referer}i", "%{location}o", "%{error}x"] {
        assert_eq!(line(format, Escape::Apache, &exchange), apache, "{format}");
        assert_eq!(line(format, Escape::Json, &exchange), json, "{format}");
    }
    assert_eq!(line("%{REMOTE_USER}e", Escape::Json, &exchange), nasty);
    // This one is the group of a path's regular expression.
    let group = "x\n200 \"forged\"";
    (exchange.env).push(("PATH_user".into(), group.as_bytes().into()));
    let escaped = [
        (Escape::Apache, r"x\x0a200 \x22forged\x22"),
        (Escape::Json, r#"x\u000a200 \"forged\""#),
    ];
    for (escape, want) in escaped {
        assert_eq!(line("%{PATH_user}e", escape, &exchange), want);
    }
    assert_eq!(
        line("%r", Escape::Json, &exchange),
        format!("GET {json} HTTP/1.1")
    );
}

#[test]
fn internal_redirects_do_not_show_in_the_request_line() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let mut exchange = complete(&worker);
    exchange.original = Some(Box::new(h2o_exchange::OriginalRequest {
        method: h2o_http::Method::Head,
        scheme: h2o_http::Scheme::Http,
        authority: b"first.example".to_vec(),
        target: b"/first?x".to_vec(),
    }));
    exchange.saved_headers = Some(std::mem::take(&mut exchange.request.headers));
    assert_eq!(
        line("%m %U %q %V \"%r\" %{x-a}i", Escape::Apache, &exchange),
        "HEAD /first ?x first.example \"HEAD /first?x HTTP/1.1\" first"
    );
}

#[test]
fn the_default_is_the_combined_format() {
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    assert_eq!(
        line(format::DEFAULT, Escape::Apache, &complete(&worker)),
        "192.0.2.1 - alice [02/Jan/2006:14:04:05 -0800] \"POST /a%20b/../c?q=1&r=? HTTP/1.1\" 404 1234 \
         \"https://example.org/\" \"curl/8.0 (x; y)\""
    );
}

#[test]
fn a_json_format_gives_json_whatever_is_missing() {
    let format = r#"{"t":"%{%FT%T}t.%{msec_frac}t","ip":"%h","req":"%r","st":%s,"b":%b,"dur":%{duration}x,"err":"%{error}x","ref":"%{referer}i"}"#;
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    assert_eq!(
        line(format, Escape::Json, &complete(&worker)),
        r#"{"t":"2006-01-02T14:04:05.007","ip":"192.0.2.1","req":"POST /a%20b/../c?q=1&r=? HTTP/1.1","st":404,"b":1234,"dur":3,"err":"first;second","ref":"https://example.org/"}"#
    );
    let mut begun = begun(&worker);
    begun.timings = complete(&worker).timings;
    begun.timings.response_end = None;
    assert_eq!(
        line(format, Escape::Json, &begun),
        r#"{"t":"2006-01-02T14:04:05.007","ip":"localhost","req":null,"st":null,"b":0,"dur":null,"err":"","ref":null}"#
    );
}

#[test]
fn json_in_one_word_has_the_fields_that_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let path = path.to_str().unwrap();
    let log = |rest: &str| format!("access-log: {{path: {path}, format: json{rest}}}");
    let chosen =
        "[status, duration, request-header.X-A, response-header.set-cookie, ssl.cipher-bits]";
    let levels = [log(""), log(&format!(", escape: json, fields: {chosen}"))];
    let mut scope = read([&levels[0], &levels[1]]).unwrap();
    for resource in &std::mem::take(scope.shared.edit::<Resources>()).0 {
        resource.open().unwrap();
    }
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    for exchange in [complete(&worker), begun(&worker)] {
        for logger in &scope.loggers {
            logger.log(&exchange);
        }
    }
    let text = std::fs::read_to_string(path).unwrap();
    // The time depends on the time zone of the test, so it is cut off here; an end-to-end test checks it.
    let lines: Vec<&str> = (text.lines())
        .map(|line| line.find(r#","client""#).map_or(line, |at| &line[at..]))
        .collect();
    assert_eq!(
        lines,
        [
            r#","client":"192.0.2.1","method":"POST","host":"WWW.example:8443","path":"/a%20b/../c","query":"?q=1&r=?","protocol":"HTTP/1.1","status":404,"bytes":1234,"duration":3,"referer":"https://example.org/","user-agent":"curl/8.0 (x; y)"}"#,
            r#"{"status":404,"duration":3,"request-header.X-A":"first","response-header.set-cookie":"a=1, b=2","ssl.cipher-bits":256}"#,
            r#","client":"localhost","method":null,"host":"www.example:8443","path":null,"query":null,"protocol":null,"status":null,"bytes":0,"duration":null,"referer":null,"user-agent":null}"#,
            r#"{"status":null,"duration":null,"request-header.X-A":null,"response-header.set-cookie":null,"ssl.cipher-bits":null}"#,
        ]
    );
}

#[test]
fn unknown_fields_have_the_nearest_name_as_a_hint() {
    let text = "access-log: {path: a, format: json, fields: [pth]}";
    let error = read([text, "{}"]).err().unwrap().to_string();
    let start = "[f:1] in command access-log, unknown field `pth`; the fields are time, client, ";
    assert!(error.starts_with(start), "{error}");
    assert!(error.contains("did you mean `path`"), "{error}");
}

fn read(levels: [&str; 2]) -> Result<Scope, h2o_config::Error> {
    let features = Features {
        guards: Vec::new(),
        sweeps: Vec::new(),
        registry: Registry::new(&[DIRECTIVES]),
        filters: Vec::new(),
    };
    let mut scope = Scope::new(Arc::new(features));
    let [global, host] = levels.map(|text| load("f", &Memory::new().file("f", text)).unwrap());
    scope.run(&global)?;
    let loggers = scope.enter(Level::Host, |scope| {
        scope.run(&host)?;
        Ok(scope.loggers.clone())
    })?;
    scope.loggers = loggers;
    Ok(scope)
}

#[test]
fn inner_levels_add_logs_and_equal_paths_share_a_target() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let path = path.to_str().unwrap();
    let global = format!(
        "access-log: {path}\naccess-log: {{PATH: {path}, format: '%m %<{{x-a}}o'}}\naccess-log: /dev/null"
    );
    let host = format!("access-log: {{path: {path}, escape: JSON, format: '\"%l\"'}}");
    let mut scope = read([&global, &host]).unwrap();
    assert_eq!(scope.loggers.len(), 4);
    let wants = |logger: &Arc<dyn h2o_exchange::Logger>| logger.wants_unfiltered_headers();
    assert_eq!(
        scope.loggers.iter().map(wants).collect::<Vec<_>>(),
        [false, true, false, false]
    );
    let resources = std::mem::take(scope.shared.edit::<Resources>());
    assert_eq!(resources.0.len(), 2);
    assert!(
        !std::fs::exists(path).unwrap(),
        "logs are not opened while the configuration is read"
    );
    for resource in &resources.0 {
        resource.open().unwrap();
    }
    let worker = kit::worker(0, &Arc::new(kit::shared()));
    let exchange = complete(&worker);
    for logger in &scope.loggers[1..] {
        logger.log(&exchange);
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), "POST -\nnull\n");
}

#[test]
fn faults_of_the_directive_are_placed() {
    let cases = [
        (
            "access-log: [a]",
            "[f:1] in command access-log, node must be a scalar or a mapping (column 13)",
        ),
        (
            "access-log:\n  format: '%h'",
            "[f:2] in command access-log, cannot find mandatory attribute: path (column 3)",
        ),
        (
            "access-log:\n  path: a\n  format: 'x %Q'",
            "[f:3] in command access-log, failed to compile log format: unknown escape sequence: %Q (column 11)",
        ),
        (
            "access-log:\n  path: a\n  escape: xml",
            "[f:3] in command access-log, argument must be one of: apache,json (column 11)",
        ),
        (
            "access-log: {path: a, file: b}",
            "[f:1] in command access-log, unexpected key:file (column 23)",
        ),
        (
            "access-log:\n  path: a\n  fields: [path]",
            "[f:3] in command access-log, `fields` needs `format: json` (column 11)",
        ),
        (
            "access-log:\n  path: a\n  format: json\n  escape: apache",
            "[f:4] in command access-log, `format: json` needs `escape: json`; remove this line (column 11)",
        ),
        (
            "access-log: {path: a, format: json, fields: []}",
            "[f:1] in command access-log, the list of fields is empty; write for example `[time, path, status]` (column 45)",
        ),
        (
            "access-log: {path: a, format: json, fields: [path, host, path]}",
            "[f:1] in command access-log, `path` is listed twice (column 58)",
        ),
        (
            "access-log: {path: a, format: json, fields: ['request-header.a}i']}",
            "[f:1] in command access-log, `a}i` is not a header name of letters, digits, `-` and `_` (column 46)",
        ),
    ];
    for (text, want) in cases {
        let error = read([text, "{}"]).err().expect(text);
        assert_eq!(error.to_string(), want, "{text}");
    }
}

#[test]
fn no_variable_in_the_manual_is_unknown() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/logs.md");
    let page = std::fs::read_to_string(page).unwrap();
    let names: Vec<&str> = page
        .split("%{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}x").map(|(name, _)| name))
        .filter(|name| *name != "NAME" && !name.contains(['}', ' ']))
        .collect();
    assert!(names.len() > 30, "{names:?}");
    let unknown: Vec<_> = names
        .iter()
        .filter(|name| super::field::extended(name) == super::field::Field::Null)
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
