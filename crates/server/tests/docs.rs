//! What the manual says of the tree holds.

/// `make docs` writes the file anew.
#[test]
fn the_list_of_directives_in_the_manual_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/directives.md");
    let wanted = h2o_server::features().registry.markdown();
    if std::env::var_os("H2O_REGENERATE_DOCS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/directives.md is stale; run `make docs`"
    );
}

/// Protocol crates are given octets and time; they must not reach for a socket, a clock or a thread.
#[test]
fn protocol_crates_do_no_input_or_output() {
    const BANNED: &[&str] = &[
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "UnixStream",
        "std::fs",
        "std::thread",
        "Instant::now",
        "SystemTime::now",
        "async fn",
        "tokio",
    ];
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![
        crates.join("http/src"),
        crates.join("http1/src"),
        crates.join("http2/src"),
    ];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            let code: String = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            for banned in BANNED {
                assert!(!code.contains(banned), "{} uses {banned}", path.display());
            }
            files += 1;
        }
    }
    assert!(files > 10);
}
