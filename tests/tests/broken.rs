//! Configurations that the server refuses. Each file `configs/broken/NN-name.conf` has one fault, and the file `.expected` beside it the
//! first lines of the server's error message. A hint in parentheses at the end of a message may be missing in `.expected`.

use std::path::Path;
use std::process::Command;

use h2o_tests::binary;

#[test]
fn broken_configurations_are_refused_at_the_place_of_the_fault() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/broken");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".conf"))
        .collect();
    names.sort();
    assert!(names.len() >= 50, "{} configurations", names.len());
    let faults: Vec<_> = names
        .iter()
        .filter_map(|name| check(&folder, name))
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Returns in which way the server's error message for this file differs from the expected one; `None` if it does not.
fn check(folder: &Path, name: &str) -> Option<String> {
    let expected = folder.join(name).with_extension("expected");
    let expected = std::fs::read_to_string(&expected)
        .unwrap_or_else(|error| panic!("{}: {error}", expected.display()));
    let output = Command::new(binary())
        .args(["-t", "-c", name])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", binary().display()));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut lines = stderr.lines();
    for want in expected.lines() {
        let got = lines.next().unwrap_or_default();
        let said_more = got
            .strip_prefix(want)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("));
        if !said_more {
            return Some(format!("{name}\n  wanted {want}\n  got    {got}"));
        }
    }
    if output.status.code() != Some(78) {
        return Some(format!("{name}: {}", output.status));
    }
    None
}
