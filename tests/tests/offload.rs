//! `ssl-offload`: transfers with and without TLS in the kernel.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run};

fn start(offload: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "a.test");
    let content: Vec<u8> = (0..5_000_019_u32).map(|n| (n % 251) as u8).collect();
    folder.write("www/large", content);
    folder.write("www/small", "small");
    let config = format!(
        "ssl-offload: {offload}
listen:
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts:
  default:
    paths: {{ /: {{ file.dir: @DIR@/www }} }}
"
    );
    Setup::in_folder(folder, &config).start()
}

/// Sends four requests on one connection with curl, and returns the contents received.
fn ask(server: &Server, version: &[&str]) -> Vec<u8> {
    let url = |path: &str| format!("https://127.0.0.1:{}/{path}", server.port());
    let urls = [url("small"), url("large"), url("small"), url("large")];
    let urls = urls.each_ref().map(|url| &**url);
    let fixed = ["-sSk", "--http1.1", "--max-time", "60"];
    run("curl", &[&fixed[..], version, &urls].concat()).success()
}

/// Number of connections for which the kernel has encrypted data; `None` if it does not count them.
fn encrypted_by_kernel() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/net/tls_stat").ok()?;
    let line = counts.lines().find(|line| line.starts_with("TlsTxSw"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn offloaded_files_do_not_arrive_otherwise_than_others() {
    let content: Vec<u8> = (0..5_000_019_u32).map(|n| (n % 251) as u8).collect();
    let want = [b"small", &content[..], b"small", &content[..]].concat();
    for offload in ["OFF", "zerocopy", "kernel"] {
        let server = start(offload);
        let before = encrypted_by_kernel();
        for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
            let got = ask(&server, version);
            assert!(got == want, "{offload} {version:?}: {} bytes", got.len());
        }
        let warns = server.messages().contains("the kernel has no TLS");
        match (offload, before, encrypted_by_kernel()) {
            ("kernel", Some(before), Some(after)) => assert!(after > before && !warns),
            ("kernel", ..) => assert!(warns, "{}", server.messages()),
            _ => assert!(!warns, "{}", server.messages()),
        }
    }
}
