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
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for name in ["http", "http1"] {
        for entry in std::fs::read_dir(format!("{crates}/{name}/src")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            let code = |line: &&str| !line.trim_start().starts_with("//");
            let text: String = text.lines().filter(code).collect();
            for banned in [
                "std::net",
                "std::fs",
                "std::thread",
                "Instant::now",
                "SystemTime::now",
                "async fn",
                "tokio",
            ] {
                assert!(!text.contains(banned), "{} uses {banned}", path.display());
            }
        }
    }
}
