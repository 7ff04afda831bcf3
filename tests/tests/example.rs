//! The example in `examples/` that `make run` serves, unchanged.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Setup, binary, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Makes a copy of `examples/` with a certificate: the user that the server changes to may not be allowed to read the source tree.
fn copy() -> Folder {
    let folder = Folder::new();
    let source = root().join("examples").display().to_string();
    let _ = run("cp", &["-r", &source, &folder.name_of("examples")]).success();
    folder.make_dir("examples/tls");
    self_signed(&folder, "examples/tls/cert", Key::EcPkcs8, "localhost");
    let file = |name: &str| folder.at(&format!("examples/tls/{name}"));
    std::fs::rename(file("cert.crt"), file("cert.pem")).expect("the test owns the folder");
    std::fs::rename(file("cert.key"), file("key.pem")).expect("the test owns the folder");
    folder
}

#[test]
fn nothing_is_amiss_with_the_example() {
    let folder = copy();
    let output = Command::new(binary())
        .args(["-t", "-c", "examples/h2o.conf"])
        .current_dir(folder.path())
        .output()
        .expect("the binary runs");
    let messages = String::from_utf8_lossy(&output.stderr);
    // Another process may use one of the example's ports, which is not a fault.
    let mut warnings = messages
        .lines()
        .filter(|line| !line.contains("Address already in use"));
    assert_eq!(warnings.next(), None);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_example_does_not_show_its_status_to_everybody() {
    let folder = copy();
    let config = folder
        .read("examples/h2o.conf")
        .replace("examples/", "@DIR@/examples/")
        .replace("8080", "@PORT@")
        .replace("8443", "@TLS_PORT@")
        .replace("8081", "@STATUS_PORT@");
    let server = Setup::in_folder(folder, &config).start();
    let status = server.port_of("STATUS_PORT");
    let of_status =
        format!("GET / HTTP/1.1\r\nHost: localhost:{status}\r\nConnection: close\r\n\r\n");
    let mut site = server.connect();
    site.send(&of_status);
    let answer = site.read_response("GET").text();
    assert!(answer.contains("This response"), "{answer}");
    assert_eq!(server.ask("GET /server-status").code(), 404);

    let page = h2o_tests::curl(&[&format!("http://127.0.0.1:{status}/")]).text();
    assert!(page.contains("<h1>Server status</h1>"), "{page}");
    // The site listens on all addresses, the status page on 127.0.0.1 only.
    assert!(TcpStream::connect(("127.0.0.2", server.port())).is_ok());
    assert!(TcpStream::connect(("127.0.0.2", status)).is_err());
}

#[test]
fn who_can_open_the_site_is_not_kept_back() {
    let script = root().join("examples/run.sh").display().to_string();
    let text = run("sh", &[&script, "echo"]).text();
    for part in [
        "http://localhost:8080/",
        "https://localhost:8443/",
        "http://localhost:8081/   (for this machine only)",
        "Ports 8080 and 8443 are open on all addresses of this machine",
        "`host: 127.0.0.1`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn no_page_of_the_example_is_served_in_an_older_form() {
    let script = root().join("examples/site").display().to_string();
    let found = run(
        "find",
        &[&script, "-name", "*.gz", "-not", "-path", "*/downloads/*"],
    )
    .text();
    let mut count = 0;
    for packed in found.lines() {
        count += 1;
        let unpacked = run("gzip", &["-dc", packed]).success();
        let page = std::fs::read(packed.trim_end_matches(".gz"))
            .expect("the page beside the compressed file exists");
        assert!(
            unpacked == page,
            "{packed} is stale: run examples/compress.sh"
        );
    }
    assert!(count >= 6, "{found}");
}
