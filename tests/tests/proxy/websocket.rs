//! WebSockets of a browser, through the reverse proxy.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Service, Setup, browse};

use super::kit::config_of_paths;

/// Sends messages of several lengths through a WebSocket and writes what came of them into the title. The image keeps the
/// page from being complete before that.
const PAGE: &str = "<!DOCTYPE html><title>wait</title><img src=/go/hold><script>
const texts = [0, 1, 125, 126, 65535, 65536, 300000].map(length => 'm'.repeat(length));
const scheme = location.protocol === 'https:' ? 'wss:' : 'ws:';
const socket = new WebSocket(`${scheme}//${location.host}/ws`);
let good = 0;
socket.onopen = () => texts.forEach(text => socket.send(text));
socket.onmessage = event => {
  good += event.data === texts[good] ? 1 : 1000;
  if (good === texts.length) socket.close(1000);
};
socket.onclose = event => {
  document.title = `${good} of ${texts.length}, closed with ${event.code}`;
  fetch('/go/release');
};
</script>";

/// What the browser makes of the page over TLS or without, and the access log.
fn speak(is_secure: bool) {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let (_service, http, _) = Service::go(&folder, "server");
    folder.write("www/index.html", PAGE);
    let go = format!("http://127.0.0.1:{http}");
    let paths = [("/ws", &*format!("{go}/ws")), ("/go/", &*format!("{go}/"))];
    let config = config_of_paths("proxy.tunnel: ON", &paths)
        + "      /: { file.dir: @DIR@/www }\n"
        + "access-log: { path: @DIR@/access-log, format: '%H %m %s %U' }\n"
        + "listen: { port: @TLS_PORT@, ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key } }\n";
    let server = Setup::in_folder(folder, &config).start();
    let (url, want) = if is_secure {
        let url = format!("https://localhost:{}/", server.port_of("TLS_PORT"));
        (url, "HTTP/2 CONNECT 200 /ws")
    } else {
        (server.url("/"), "HTTP/1.1 GET 101 /ws")
    };
    let output = browse(&server.folder, &url);
    let text = output.text();
    assert!(
        text.contains("<title>7 of 7, closed with 1000<"),
        "{url}: {output}\n{}\n{}",
        server.folder.read("access-log"),
        server.messages()
    );
    let _ = server.read_until("access-log", want);
}

#[test]
fn a_browser_speaks_websocket_over_http1() {
    speak(false);
}

#[test]
fn a_browser_speaks_websocket_over_a_stream_of_http2() {
    // RFC 8441: there the browser gives no key, which the back end wants all the same.
    speak(true);
}
