//! A real browser opens the example site and a directory listing.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run};

/// The configuration of the example, on ports and paths of the test.
fn start() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let site = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");
    // The running user may not be allowed to look into the source tree.
    let _ = run("cp", &["-r", site, &folder.name_of("site")]);
    Setup::in_folder(
        folder,
        "
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/site, file.dirlisting: ON, file.send-compressed: ON }
access-log: @DIR@/access-log
",
    )
    .start()
}

/// The page as the browser has it after its scripts have run.
fn open(server: &Server, url: &str) -> String {
    let profile = server.folder.make_dir(&format!("profile-{}", url.len()));
    let profile = format!("--user-data-dir={}", profile.display());
    let output = run(
        "chromium",
        &[
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            &profile,
            "--dump-dom",
            url,
        ],
    );
    output.text()
}

#[test]
fn a_browser_shows_the_example_site_and_a_listing() {
    let server = start();
    let page = open(&server, &server.url("/"));
    assert!(page.contains("<h1"), "{page}");
    let tls = format!("https://localhost:{}/docs/", server.port_of("TLS_PORT"));
    let page = open(&server, &tls);
    assert!(page.contains("<h1"), "{page}");
    let listing = open(&server, &server.url("/downloads/"));
    for entry in ["README.txt", "numbers.csv", "a &amp; b &lt;c&gt;.txt"] {
        assert!(listing.contains(entry), "{entry} is not in {listing}");
    }
    // The pages brought their styles, scripts and pictures along, packed where the browser takes that.
    let log = server.read_until("access-log", "/downloads/");
    for kind in [".css", ".js", ".svg"] {
        let mut lines = log.lines().filter(|line| line.contains(kind));
        let line = lines.next().unwrap_or_else(|| panic!("no {kind} in {log}"));
        assert!(line.contains("\" 200 "), "{line}");
    }
}
