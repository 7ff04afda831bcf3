//! Large content that the kernel moves between sockets with splice().

use std::collections::HashSet;
use std::path::PathBuf;

use h2o_tests::{Backend, Raw, Server, Talk, eventually};

use super::kit::proxy;
use super::streaming::{gate, pattern};

const LARGE: usize = 3_000_001;

fn head(length: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes()
}

/// Sends a request on a connection that stays open.
fn ask(connection: &mut Raw) {
    connection.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
}

/// The pipes that a process has open.
fn pipes_of(process: &str) -> HashSet<PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"));
    let links = descriptors.expect("the process runs").flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .collect()
}

/// Number of pipes that the server has open, without those that it has inherited from this test. The server's async
/// runtime opens no pipes.
fn pipes(server: &Server) -> usize {
    let all = pipes_of(&server.pid().to_string());
    all.difference(&pipes_of("self")).count()
}

/// A backend that answers each request with half of the pattern, and sends the rest when the test sends a value to the channel.
fn in_halves() -> (Backend, std::sync::mpsc::Sender<()>) {
    let (open, pass) = gate();
    let content = pattern(LARGE);
    let backend = Backend::start(move |talk: &mut Talk| {
        while talk.read_request().is_some() {
            talk.send(head(LARGE));
            talk.send(&content[..LARGE / 2]);
            pass();
            talk.send(&content[LARGE / 2..]);
        }
    });
    (backend, open)
}

#[test]
fn content_is_the_same_whether_it_is_spliced_or_copied() {
    for (settings, want) in [
        ("", 1),
        ("proxy.zerocopy: ALWAYS", 1),
        ("proxy.zerocopy: OFF", 0),
        ("proxy.max-buffer-size: 1000", 1),
    ] {
        let (backend, open) = in_halves();
        let server = proxy(settings, &backend);
        let mut client = server.connect();
        for _ in 0..2 {
            ask(&mut client);
            let head = client.read_head();
            assert_eq!(head.field("content-length"), Some("3000001"), "{settings}");
            let first = client.read_exactly(LARGE / 2);
            assert_eq!(pipes(&server), want, "{settings}");
            open.send(()).unwrap();
            let second = client.read_exactly(LARGE - LARGE / 2);
            assert!([first, second].concat() == pattern(LARGE), "{settings}");
            eventually("the end of the pipe", || {
                (pipes(&server) == 0).then_some(())
            });
        }
        assert_eq!(backend.connections(), 1, "{settings}");
        drop(client);
        let _ = server.stop();
    }
}

#[test]
fn pipes_are_kept_as_far_as_that_is_wanted() {
    let backend = Backend::start(move |talk: &mut Talk| {
        while talk.read_request().is_some() {
            talk.send(head(LARGE));
            talk.send(pattern(LARGE));
        }
    });
    for (settings, want) in [("max-spare-pipes: 1", 1), ("proxy.max-spare-pipes: 8", 2)] {
        let server = proxy(settings, &backend);
        let mut clients = [server.connect(), server.connect()];
        clients.iter_mut().for_each(ask);
        for client in &mut clients {
            let _ = client.read_head();
        }
        eventually("two open pipes of the server", || {
            (pipes(&server) == 2).then_some(())
        });
        for client in &mut clients {
            let _ = client.read_exactly(LARGE);
        }
        eventually("the closing of the other pipes", || {
            (pipes(&server) == want).then_some(())
        });
        ask(&mut clients[0]);
        let _ = clients[0].read_head();
        assert!(
            clients[0].read_exactly(LARGE) == pattern(LARGE),
            "{settings}"
        );
        assert_eq!(pipes(&server), want, "{settings}");
    }
}

#[test]
fn what_breaks_off_while_it_is_spliced_is_broken_off() {
    let content = pattern(LARGE);
    let backend = Backend::start(move |talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send(head(LARGE));
        talk.send(&content[..LARGE - 1]);
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    ask(&mut client);
    let _ = client.read_head();
    let content = client.read_to_end();
    assert!(content.len() < LARGE && pattern(LARGE).starts_with(&content));
    server.wait_for_message("I/O error");
    assert_eq!(pipes(&server), 0);
}

#[test]
fn a_backend_that_falls_silent_is_given_up() {
    let content = pattern(LARGE);
    let backend = Backend::start(move |talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send(head(LARGE));
        talk.send(&content[..LARGE / 2]);
        talk.read_to_end();
    });
    let server = proxy("proxy.timeout.io: 300", &backend);
    let mut client = server.connect();
    ask(&mut client);
    let _ = client.read_head();
    assert_eq!(client.read_to_end().len(), LARGE / 2);
    server.wait_for_message("I/O timeout");
    backend.wait_for_ended(1);
}

#[test]
fn what_follows_the_content_is_not_spliced_along() {
    let backend = Backend::start(|talk: &mut Talk| {
        while talk.read_request().is_some() {
            let more = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
            talk.send([&head(LARGE)[..], &pattern(LARGE), more].concat());
        }
    });
    let server = proxy("proxy.timeout.keepalive: 60000", &backend);
    let mut client = server.connect();
    for _ in 0..2 {
        ask(&mut client);
        let _ = client.read_head();
        assert!(client.read_exactly(LARGE) == pattern(LARGE));
    }
    assert_eq!(backend.connections(), 2);
}

#[test]
fn clients_that_leave_take_the_pipe_and_the_backend_s_connection_along() {
    let backend = Backend::start(|talk: &mut Talk| {
        let _ = talk.read_request();
        talk.send(head(100 * LARGE));
        for _ in 0..100 {
            if !talk.send(pattern(LARGE)) {
                break;
            }
        }
        talk.read_to_end();
    });
    let server = proxy("", &backend);
    let mut client = server.connect();
    ask(&mut client);
    let _ = client.read_head();
    let _ = client.read_exactly(LARGE);
    assert_eq!(pipes(&server), 1);
    drop(client);
    backend.wait_for_ended(1);
    eventually("the end of the pipe", || {
        (pipes(&server) == 0).then_some(())
    });
}

#[test]
fn clients_of_other_kinds_get_the_same_content() {
    let backend = Backend::start(|talk: &mut Talk| {
        while talk.read_request().is_some() {
            talk.send(head(LARGE));
            talk.send(pattern(LARGE));
        }
    });
    let server = proxy("", &backend);
    for options in [
        &["--http2-prior-knowledge"][..],
        &["--http1.0"],
        &["--http1.1"],
    ] {
        let mut arguments = options.to_vec();
        let (url, folder) = (server.url("/"), h2o_tests::Folder::new());
        let path = folder.at("got");
        let path = path.to_str().unwrap();
        arguments.extend(["--output", path, &url]);
        let _ = h2o_tests::run("curl", &[&["--silent", "--fail"], &arguments[..]].concat());
        assert!(
            std::fs::read(path).unwrap() == pattern(LARGE),
            "{options:?}"
        );
    }
}
