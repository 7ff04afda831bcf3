//! Starts servers that forward requests to backends.

use h2o_tests::{Backend, Raw, Response, Server, Setup};

/// Starts a server that forwards every request to `backend`; `settings` are directives of the global level.
pub(crate) fn proxy(settings: &str, backend: &Backend) -> Server {
    Setup::new(&config(settings, &backend.url("/"))).start()
}

/// The configuration of a server that forwards every request to `url`.
pub(crate) fn config(settings: &str, url: &str) -> String {
    config_of_paths(settings, &[("/", url)])
}

/// The configuration of a server with these paths, each with the URL that it is forwarded to.
pub(crate) fn config_of_paths(settings: &str, paths: &[(&str, &str)]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|(path, url)| format!("      {path}: {{ proxy.reverse.url: '{url}' }}\n"))
        .collect();
    format!(
        "{settings}\nnum-threads: 1\nlisten: @PORT@\nhosts:\n  default:\n    paths:\n{}",
        paths.concat()
    )
}

/// Replaces line feeds by CRLF, the line end of HTTP.
pub(crate) fn with_line_ends(text: &str) -> String {
    text.replace('\n', "\r\n")
}

/// Reads the final response; informational responses before it are dropped.
pub(crate) fn read_final(connection: &mut Raw, method: &str) -> Response {
    loop {
        let response = connection.read_response(method);
        if response.code() >= 200 {
            return response;
        }
    }
}

/// What the backend received on a connection, as text with line feeds, and with `BACKEND` in place of the backend's address.
pub(crate) fn received(backend: &Backend, connection: usize) -> String {
    let received = backend.received(connection);
    String::from_utf8_lossy(&received)
        .replace("\r\n", "\n")
        .replace(&format!("127.0.0.1:{}", backend.port()), "BACKEND")
}
