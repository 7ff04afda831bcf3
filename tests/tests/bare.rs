//! `h2o` without a configuration serves the directory it is run in.

use std::sync::{Mutex, PoisonError};

use h2o_tests::{Folder, Server, Setup, curl};

/// Finds the first URL with this scheme in the server's messages. Returns the URL and its port.
fn url(server: &Server, scheme: &str) -> (String, u16) {
    // These words end the startup message, so all URLs have been printed.
    server.wait_for_message("lists the options.");
    let messages = server.messages();
    let start = format!("{scheme}://");
    let at = messages
        .find(&start)
        .unwrap_or_else(|| panic!("the server printed no {scheme} URL: {messages}"));
    let url = messages[at..].split_whitespace().next().unwrap_or_default();
    let authority = url[start.len()..].split('/').next().unwrap_or_default();
    let port = authority.rsplit(':').next().unwrap_or_default();
    let port = port
        .parse()
        .unwrap_or_else(|_| panic!("the URL has no port: {messages}"));
    (url.trim_end_matches('/').to_owned(), port)
}

/// Starts a server, whose certificate is in the directory `state`.
fn start(state: &Folder) -> Server {
    // Between the search for a free port and its use nobody else may take it.
    static STARTING: Mutex<()> = Mutex::new(());
    let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    folder.write("www/index.html", "<p>bare</p>");
    folder.write("www/more/file.txt", "more");
    let state = state.path().to_str().expect("the path is text");
    Setup::bare(folder, "www")
        .variable("XDG_STATE_HOME", state)
        .start()
}

#[test]
fn a_directory_is_served_over_http_and_https_without_a_configuration() {
    let state = Folder::new();
    let server = start(&state);
    for (scheme, near) in [("http", 8080), ("https", 8443)] {
        let (url, port) = url(&server, scheme);
        assert!((near..near + 200).contains(&port), "{url}");
        let ask = |path: &str| curl(&["--insecure", &format!("{url}{path}")]);
        ask("/").must_be("200 OK\ncontent-type: text/html\n\n<p>bare</p>");
        ask("/more/file.txt").must_be("200 OK\ncontent-type: text/plain\n\nmore");
        let listing = ask("/more/");
        assert!(listing.text().contains("file.txt"), "{listing}");
    }
    let _ = server.stop();
}

#[test]
fn two_directories_are_served_side_by_side() {
    let state = Folder::new();
    let first = start(&state);
    let second = start(&state);
    assert!(url(&first, "http").1 != url(&second, "http").1);
    assert!(url(&first, "https").1 != url(&second, "https").1);
}
