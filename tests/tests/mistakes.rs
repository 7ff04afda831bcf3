//! Mistakes that people make in a configuration: what is said about each in `configs/mistakes.txt` names the line and how to
//! repair it.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use h2o_tests::certs::{self, Key};
use h2o_tests::{Folder, binary, free_port, run};

struct Mistake<'a> {
    name: &'a str,
    config: &'a str,
    /// Everything written to standard error.
    expected: &'a str,
}

fn mistakes(text: &str) -> Vec<Mistake<'_>> {
    let cases = text.split("\n=== ").skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').expect("a case has lines");
        let (config, expected) = rest
            .split_once("\n---")
            .unwrap_or_else(|| panic!("`{name}` has no line `---`"));
        Mistake {
            name,
            config,
            expected: expected.trim(),
        }
    });
    cases.collect()
}

/// What the configurations refer to.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("www/index.html", "hello");
    let locked = folder.make_dir("locked");
    std::fs::set_permissions(&locked, Permissions::from_mode(0o000))
        .expect("the directory is ours");
    folder.write("empty.pem", "");
    folder.write(
        "broken.yaml",
        "default:\n  paths:\n    /:\n      file.dri: /srv\n",
    );
    certs::self_signed(&folder, "site", Key::EcPkcs8, "www.example.com");
    certs::key(&folder, "other", Key::EcPkcs8);
    folder
}

#[test]
fn a_mistake_is_not_refused_without_its_line_and_the_remedy() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mistakes.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let names = [
        ("@DIR@", folder.name_of("").trim_end_matches('/').to_owned()),
        ("@PORT@", free_port().to_string()),
        ("@OTHER@", free_port().to_string()),
        ("@TAKEN@", taken.local_addr().unwrap().port().to_string()),
        ("@PID@", std::process::id().to_string()),
    ];
    let cases = mistakes(&text);
    assert!(cases.len() >= 60, "{} mistakes", cases.len());
    let mut faults = Vec::new();
    for Mistake {
        name,
        config,
        expected,
    } in cases
    {
        let mut config = config.to_owned();
        for (place_holder, value) in &names {
            config = config.replace(place_holder, value);
        }
        folder.write("h2o.conf", config);
        let file = folder.name_of("h2o.conf");
        let output = run(&binary().display().to_string(), &["-t", "-c", &file]);
        let mut said = output.stderr.replace(&file, "h2o.conf");
        for (place_holder, value) in &names {
            said = said.replace(value, place_holder);
        }
        let is_warning = expected.lines().all(|line| line.starts_with("[warning] "));
        let code = if is_warning { 0 } else { 78 };
        if said.trim_end() != expected || output.code != code {
            let code = output.code;
            faults.push(format!(
                "=== {name}\n{}\n(exit status {code})\n",
                said.trim_end()
            ));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
