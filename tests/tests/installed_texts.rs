//! The man pages, completions and default configuration that `make install` installs, checked with the programs that read them.

use std::process::Command;

use h2o_tests::{Folder, Output, Setup, binary, curl, manual, run};

fn install(folder: &Folder) {
    let status = Command::new("make")
        .current_dir(manual::root())
        .args(["--silent", "--no-print-directory", "install"])
        .arg(format!("DESTDIR={}", folder.path().display()))
        .arg(format!("BINARY={}", binary().display()))
        .status()
        .expect("make is installed");
    assert!(status.success());
}

fn generated(kind: &str) -> String {
    run(&binary().display().to_string(), &["--generate", kind]).text()
}

/// What man prints for a page on a terminal of 100 columns.
fn man(page: &str) -> Output {
    run(
        "env",
        &[
            "MANWIDTH=100",
            "LC_ALL=C.UTF-8",
            "MAN_KEEP_FORMATTING=",
            "man",
            "--warnings=w",
            "--local-file",
            page,
        ],
    )
}

#[test]
fn man_shows_the_pages_without_a_warning() {
    let folder = Folder::new();
    install(&folder);
    let pages = [
        (
            "man8/h2o.8",
            &[
                "h2o compress [options] DIRECTORY...",
                "-c, --conf FILE",
                "SIGNALS",
                "EXIT STATUS",
                "reloads the configuration",
            ][..],
        ),
        (
            "man5/h2o.conf.5",
            &[
                "file.send-compressed",
                "proxy.reverse.url",
                "Levels: ",
                "Attributes of ssl:",
                "The configuration is a YAML file.",
            ][..],
        ),
    ];
    for (name, parts) in pages {
        let output = man(&folder.name_of(&format!("usr/local/share/man/{name}")));
        assert_eq!((output.code, &*output.stderr), (0, ""), "{name}");
        let text = output.text();
        for part in parts {
            assert!(text.contains(part), "{name}: {part}\n{text}");
        }
        for markup in ["](", "\\f", "**", "`"] {
            assert!(!text.contains(markup), "{name}: {markup}");
        }
    }
}

/// Words of a command line, the last of them incomplete, and the completions expected for it.
const LINES: [(&[&str], &[&str]); 7] = [
    (&["re"], &["reload"]),
    (&["--ge"], &["--generate"]),
    (&["--mode", "ma"], &["master"]),
    (
        &["reload", "--"],
        &["--conf", "--diff", "--help", "--pid-file"],
    ),
    (&["compress", "--j"], &["--jobs"]),
    (&["compress", "si"], &["site"]),
    (&["-c", "h2o."], &["h2o.conf"]),
];

/// A directory with two files and a directory, for the completion of file names.
fn place() -> Folder {
    let folder = Folder::new();
    folder.write("h2o.conf", "listen: 80\n");
    folder.write("site.txt", "");
    folder.make_dir("site");
    folder
}

fn sorted(output: Output) -> Vec<String> {
    assert_eq!((output.code, &*output.stderr), (0, ""));
    let text = output.text();
    // fish prints a tab and a description after a completion; fish and zsh append a slash to a directory.
    let words = text.lines().filter_map(|line| line.split('\t').next());
    let mut words: Vec<_> = words
        .map(|word| word.trim_end_matches('/').to_owned())
        .filter(|word| !word.is_empty())
        .collect();
    words.sort();
    // zsh prints a completion once for each group that it belongs to.
    words.dedup();
    words
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = place();
    let completion = folder.write("completion", generated("bash"));
    for (words, want) in LINES {
        let (last, before) = words
            .split_last()
            .expect("a command line has at least one word");
        let previous = before.last().unwrap_or(&"h2o");
        let script = format!(
            "cd {} && . {} && COMP_WORDS=(h2o {}) COMP_CWORD={} && _h2o h2o '{last}' '{previous}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            folder.path().display(),
            completion.display(),
            words.join(" "),
            words.len()
        );
        assert_eq!(sorted(run("bash", &["-c", &script])), want, "{words:?}");
    }
}

#[test]
fn fish_completes_commands_options_and_values() {
    let folder = place();
    let completion = folder.write("completion", generated("fish"));
    let home = folder.make_dir("home").display().to_string();
    for (words, want) in LINES {
        let script = format!(
            "cd {}; source {}; complete -C 'h2o {}'",
            folder.path().display(),
            completion.display(),
            words.join(" ")
        );
        let home = format!("HOME={home}");
        let output = run("env", &[&home, "fish", "--no-config", "-c", &script]);
        assert_eq!(sorted(output), want, "{words:?}");
    }
}

#[test]
fn zsh_completes_commands_options_and_values() {
    let folder = place();
    folder.write("functions/_h2o", generated("zsh"));
    // zsh completes only on a terminal: this script runs it on a pseudo-terminal and types the line.
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/complete.zsh");
    for (words, want) in LINES {
        let line = format!("h2o {}", words.join(" "));
        let functions = folder.name_of("functions");
        let directory = folder.path().display().to_string();
        let output = run("zsh", &["-f", driver, &functions, &directory, &line]);
        assert_eq!(sorted(output), want, "{words:?}");
    }
}

#[test]
fn the_default_site_is_served_and_a_changed_configuration_stays() {
    let folder = Folder::new();
    install(&folder);
    let config = folder.at("etc/h2o/h2o.conf");
    let text = std::fs::read_to_string(&config).expect("the configuration is installed");
    std::fs::write(&config, "# mine\n").expect("the file can be written");
    install(&folder);
    assert_eq!(
        std::fs::read_to_string(&config).expect("the configuration is kept"),
        "# mine\n"
    );
    let root = folder.path().display();
    let moved = text
        .replace("user: h2o", "user: nobody")
        .replace("/usr/local/", &format!("{root}/usr/local/"))
        .replace("/run/", &format!("{root}/"))
        .replace("/var/log/h2o/", &format!("{root}/"))
        .replace("listen: 80", "listen: @PORT@")
        // The server must write its messages to standard error, where the test reads them.
        .replace("error-log:", "#");
    assert!(!moved.contains(" /var"), "{moved}");
    let server = Setup::new(&moved).start();
    let response = curl(&["-H", "accept-encoding: br", &server.url("/")]);
    assert_eq!(response.code(), 200);
    assert_eq!(response.field("content-encoding"), Some("br"));
}

#[test]
fn the_logrotate_file_is_that_of_the_recipe() {
    let installed = manual::page("share/logrotate/h2o");
    let recipe = manual::page("docs/recipes.md");
    assert!(recipe.contains(&format!("# /etc/logrotate.d/h2o\n{installed}```")));
}
