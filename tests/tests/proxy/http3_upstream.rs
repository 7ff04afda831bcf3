//! HTTP/3 with back ends as they are.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Service, Setup, curl, free_port};

use super::kit::config;
use super::real::large;

/// A folder with a certificate of the back end.
fn folder() -> Folder {
    let folder = Folder::new();
    self_signed(&folder, "backend", Key::EcPkcs8, "127.0.0.1");
    folder
}

/// A server that asks the back end at that port by HTTP/3.
fn before(folder: &Folder, port: u16, settings: &str) -> Server {
    let ca = folder.at("backend.crt").display().to_string();
    let settings = format!("proxy.http3.ratio: 100\nproxy.ssl.cafile: {ca}\n{settings}");
    Setup::new(&config(&settings, &format!("https://127.0.0.1:{port}/"))).start()
}

/// Tells the version, serves files, and takes uploads.
const CADDY: &str = "
    respond /proto {http.request.proto}
    root * @DIR@/www
    file_server
";

#[test]
fn caddy_is_asked_by_http3() {
    let folder = folder();
    folder.write("www/large", large());
    let port = free_port();
    let _caddy = Service::caddy(&folder, "backend", CADDY, port);
    let server = before(&folder, port, "");
    assert_eq!(curl(&[&server.url("/proto")]).text(), "HTTP/3.0");
    let response = curl(&[&server.url("/large")]);
    assert!(response.body == large(), "{} bytes", response.body.len());
    let missing = curl(&[&server.url("/missing")]);
    assert_eq!(missing.code(), 404, "{}", server.messages());
}
