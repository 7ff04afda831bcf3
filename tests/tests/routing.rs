//! Which host and which path of the configuration answers a request.

use h2o_tests::{Server, Setup};

/// Starts a server each of whose hosts and paths answers with a redirect to its own name.
fn start(hosts: &str) -> Server {
    Setup::new(&format!(
        "listen: @PORT@\nlisten: @OTHER_PORT@\nhosts:\n{hosts}"
    ))
    .start()
}

fn location(server: &Server, host: &str, path: &str) -> String {
    let request = if host.is_empty() {
        format!("GET {path}\nHost: ")
    } else {
        format!("GET {path}\nHost: {host}")
    };
    let response = server.ask(&request);
    match response.field("location") {
        Some(location) => location.to_owned(),
        None => response.status,
    }
}

/// A line of the configuration for each host `NAME`, with a path that redirects to its name.
fn hosts(names: &[(&str, &str)]) -> String {
    names
        .iter()
        .map(|(name, more)| {
            let answer = name.replace(['*', ':'], "_");
            format!("  '{name}': {{ {more} paths: {{ /: {{ redirect: '/{answer}?' }} }} }}\n")
        })
        .collect()
}

#[test]
fn hosts_are_chosen_by_name_and_port_in_file_order() {
    let server = start(&hosts(&[
        ("default", ""),
        ("*.wild.example", ""),
        ("a.wild.example", ""),
        ("plain.example", ""),
        ("plain.example:@PORT@", ""),
        ("plain.example:@OTHER_PORT@", ""),
        ("[::1]", ""),
    ]));
    let (port, other) = (server.port(), server.port_of("OTHER_PORT"));
    let cases = [
        ("plain.example".to_owned(), "/plain.example?".to_owned()),
        ("PLAIN.Example:80".to_owned(), "/plain.example?".to_owned()),
        (
            format!("plain.example:{port}"),
            format!("/plain.example_{port}?"),
        ),
        // The port in the request's authority chooses the host, not the port of the socket.
        (
            format!("plain.example:{other}"),
            format!("/plain.example_{other}?"),
        ),
        ("plain.example:1".to_owned(), "/default?".to_owned()),
        ("a.wild.example".to_owned(), "/_.wild.example?".to_owned()),
        ("b.c.wild.example".to_owned(), "/_.wild.example?".to_owned()),
        ("wild.example".to_owned(), "/default?".to_owned()),
        ("[::1]".to_owned(), "/[__1]?".to_owned()),
        (String::new(), "/default?".to_owned()),
        ("other".to_owned(), "/default?".to_owned()),
    ];
    for (host, want) in cases {
        assert_eq!(location(&server, &host, "/"), format!("{want}/"), "{host}");
    }
    let mut connection = server.connect();
    connection.send("GET http://plain.example/ HTTP/1.1\r\nHost: default\r\n\r\n");
    let response = connection.read_response("GET");
    assert_eq!(response.field("location"), Some("/plain.example?/"));
    connection.send("GET / HTTP/1.1\r\n\r\n");
    let response = connection.read_response("GET");
    assert_eq!(response.field("location"), Some("/default?/"));
}

#[test]
fn strict_hosts_are_never_the_fallback() {
    let strict = "strict-match: ON,";
    let server = start(&hosts(&[("a.example", strict), ("b.example", "")]));
    assert_eq!(location(&server, "a.example", "/"), "/a.example?/");
    assert_eq!(location(&server, "none.example", "/"), "/b.example?/");

    let server = start(&hosts(&[("a.example", strict), ("b.example", strict)]));
    assert_eq!(location(&server, "b.example", "/"), "/b.example?/");
    assert_eq!(location(&server, "none.example", "/"), "404 File Not Found");

    let server = start(&hosts(&[("a.example", strict)]));
    assert_eq!(location(&server, "a.example", "/"), "/a.example?/");
    assert_eq!(location(&server, "none.example", "/"), "404 File Not Found");
}

#[test]
fn a_single_host_answers_to_any_name() {
    let server = start(&hosts(&[("a.example", "")]));
    for host in ["a.example", "other", "a.example:1", ""] {
        assert_eq!(location(&server, host, "/"), "/a.example?/", "{host}");
    }
}

#[test]
fn hosts_answer_only_on_their_own_listeners() {
    let server = Setup::new(
        "
hosts:
  a.example:
    listen: @PORT@
    paths: { /: { redirect: '/a?' } }
  b.example:
    listen: [ @B_PORT@, @BOTH_PORT@ ]
    paths: { /: { redirect: '/b?' } }
  c.example:
    listen: @BOTH_PORT@
    paths: { /: { redirect: '/c?' } }
",
    )
    .start();
    for (port, host, want) in [
        ("PORT", "a.example", "/a?/"),
        ("PORT", "b.example", "/a?/"),
        ("B_PORT", "a.example", "/b?/"),
        ("BOTH_PORT", "b.example", "/b?/"),
        ("BOTH_PORT", "c.example", "/c?/"),
        ("BOTH_PORT", "a.example", "/b?/"),
    ] {
        let mut connection = h2o_tests::Raw::connect(server.port_of(port));
        connection.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let response = connection.read_response("GET");
        assert_eq!(response.field("location"), Some(want), "{port} {host}");
    }
}

#[test]
fn the_longest_path_that_ends_at_a_slash_answers() {
    let server = start(
        "
  default:
    paths:
      /doc: { redirect: '/doc?' }
      /doc/: { redirect: '/doc-slash?' }
      /doc/deep/er: { redirect: '/deeper?' }
      '/a b': { redirect: '/blank?' }
      /twice: { redirect: '/first?' }
      /twice: { redirect: '/second?' }
",
    );
    for (path, want) in [
        ("/doc", "/doc?"),
        ("/doc?x", "/doc??x"),
        ("/doc/", "/doc-slash?/"),
        ("/doc/x", "/doc-slash?/x"),
        ("/doc/deep/er", "/deeper?"),
        ("/doc/deep/er/", "/deeper?/"),
        ("/doc/deep/err", "/doc-slash?/deep/err"),
        ("/document", "404 File Not Found"),
        ("/Doc", "404 File Not Found"),
        ("/", "404 File Not Found"),
        ("/x/../doc", "/doc?"),
        ("/%64oc", "/doc?"),
        ("/doc%2Fdeep%2Fer", "/deeper?"),
        ("/a%20b", "/blank?"),
        ("/twice", "/first?"),
        ("//doc", "404 File Not Found"),
    ] {
        assert_eq!(location(&server, "default", path), want, "{path}");
    }
}
