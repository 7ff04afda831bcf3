//! Servers before back ends.

use h2o_tests::{Backend, Raw, Response, Server, Setup};

/// A server that hands every request to `backend`; `settings` stand at the global level.
pub(crate) fn proxy(settings: &str, backend: &Backend) -> Server {
    Setup::new(&config(settings, &backend.url("/"))).start()
}

/// The configuration of a server that hands every request to `url`.
pub(crate) fn config(settings: &str, url: &str) -> String {
    config_of_paths(settings, &[("/", url)])
}

/// The configuration of a server with these paths and what they are handed to.
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

/// Line feeds become the line ends of HTTP.
pub(crate) fn with_line_ends(text: &str) -> String {
    text.replace('\n', "\r\n")
}

/// The final response; interim ones before it are passed over.
pub(crate) fn read_final(connection: &mut Raw, method: &str) -> Response {
    loop {
        let response = connection.read_response(method);
        if response.code() >= 200 {
            return response;
        }
    }
}

/// What has come over a connection as text, with line feeds, and `BACKEND` where the back end is named.
pub(crate) fn received(backend: &Backend, connection: usize) -> String {
    let received = backend.received(connection);
    String::from_utf8_lossy(&received)
        .replace("\r\n", "\n")
        .replace(&format!("127.0.0.1:{}", backend.port()), "BACKEND")
}
