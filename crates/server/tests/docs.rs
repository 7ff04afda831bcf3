//! Tests that the manual and the source code agree.

/// The manual's list of directives must be what `make docs` generates.
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

/// The tables of attributes in the code must have the same names in the same order as the tables in the manual's list of
/// directives.
#[test]
fn every_attribute_of_a_mapping_is_in_the_manual() {
    let manual = h2o_server::features().registry.markdown();
    let mut documented = vec![Vec::new()];
    for line in manual.lines() {
        let name = line
            .strip_prefix("| `")
            .and_then(|row| row.split('`').next());
        match name {
            Some(name) => documented.last_mut().unwrap().push(name),
            None if line.starts_with("|---") => documented.push(Vec::new()),
            None => {}
        }
    }
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tables = 0;
    for (path, code) in sources(&[crates.join("server/src"), crates.join("handlers/src")]) {
        // In the source code, a table of attributes begins with `: [Attribute; 3] = [` or `: &[Attribute] = &[`.
        for table in code.split("[Attribute").skip(1) {
            let Some((_, table)) = table.split_once("= ") else {
                continue;
            };
            let table = table.split("];").next().unwrap();
            let names: Vec<_> = table
                .split("Attribute::")
                .skip(1)
                .map(|attribute| attribute.split('"').nth(1).unwrap())
                .collect();
            assert!(
                documented.contains(&names),
                "{}: the attributes {names:?} are not in the manual: name their table in the `kinds` of the directive",
                path.display()
            );
            tables += 1;
        }
        let inline = code.matches("attributes(&[").count();
        assert_eq!(inline, 0, "{}: give the table a name", path.display());
    }
    assert!(tables > 10);
}

#[test]
fn every_mapping_has_attributes_unless_its_keys_are_free() {
    /// Directives whose argument is a mapping with free keys, such as host names, paths or types.
    const FREE: [&str; 4] = ["hosts", "paths", "setenv", "stash"];
    let features = h2o_server::features();
    let registry = &features.registry;
    for name in registry.names() {
        let Some(directive) = registry.find(name) else {
            continue;
        };
        let is_mapping = directive.kinds.contains(h2o_config::Kind::Mapping);
        let is_listed = !directive.kinds.attributes.is_empty();
        assert!(
            !is_mapping || is_listed || FREE.contains(&name),
            "`{name}` takes a mapping: name its attributes in `kinds`"
        );
    }
}

/// Reads the source files below `folders`, and removes tests and comments.
fn sources(folders: &[std::path::PathBuf]) -> Vec<(std::path::PathBuf, String)> {
    let mut folders = folders.to_vec();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder with sources exists") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the source file is UTF-8");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            files.push((path, code));
        }
    }
    files
}

/// Protocol crates must not use sockets, clocks or threads: their callers pass bytes and time to them.
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
    let folders = ["http/src", "http1/src", "http2/src"].map(|folder| crates.join(folder));
    let files = sources(&folders);
    for (path, code) in &files {
        for banned in BANNED {
            assert!(!code.contains(banned), "{} uses {banned}", path.display());
        }
    }
    assert!(files.len() > 10);
}
