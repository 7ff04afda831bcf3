//! Tests of executing mappings of directives: levels, the order of execution, and the errors that all directives share.

mod support;

use h2o_config::{Directive, Error, KNOWN, Kinds, Level, Levels, Pass, Registry};

/// The directives that were executed, in order.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
}

const fn directive(name: &'static str, levels: Levels, pass: Pass, kinds: Kinds) -> Directive<Log> {
    let apply: fn(&mut Log, &h2o_config::Command<'_>) -> Result<(), Error> = |log, command| {
        log.lines
            .push(format!("{} {}", command.name, support::show(command.node)));
        Ok(())
    };
    Directive {
        name,
        levels,
        pass,
        kinds,
        value: "ANY",
        default: "",
        help: "Is written down.",
        apply,
    }
}

fn run_each(level: Level, log: &mut Log, command: &h2o_config::Command<'_>) -> Result<(), Error> {
    for (key, value) in command.node.mapping()? {
        log.lines.push(format!("{level}? {}", key.scalar()?));
        match level {
            Level::Path => registry().run_path(value, log)?,
            Level::Global | Level::Host | Level::Extension => registry().run(level, value, log)?,
        }
    }
    Ok(())
}

static SETTINGS: [Directive<Log>; 4] = [
    directive("user", Levels::GLOBAL, Pass::Settings, Kinds::SCALAR),
    directive(
        "header.add",
        Levels::ALL_BUT_EXTENSION,
        Pass::Settings,
        Kinds::SCALAR.or(Kinds::SEQUENCE),
    ),
    Directive {
        apply: |_, command| Err(command.node.error("value is bad")),
        ..directive("expires", Levels::ALL, Pass::Settings, Kinds::ANY)
    },
    Directive {
        apply: |_, _| Err(Error::new("is never right")),
        ..directive("health-check", Levels::ALL, Pass::Settings, Kinds::ANY)
    },
];

static HANDLERS: [Directive<Log>; 4] = [
    directive("file.dir", Levels::PATH, Pass::Content, Kinds::SCALAR),
    directive("listen", Levels::GLOBAL_HOST, Pass::Listen, Kinds::ANY),
    Directive {
        apply: |log, command| run_each(Level::Host, log, command),
        ..directive("hosts", Levels::GLOBAL, Pass::Content, Kinds::MAPPING)
    },
    Directive {
        apply: |log, command| run_each(Level::Path, log, command),
        ..directive("paths", Levels::HOST, Pass::Content, Kinds::MAPPING)
    },
];

fn registry() -> Registry<Log> {
    Registry::new(&[&SETTINGS, &HANDLERS])
}

fn run(text: &str) -> String {
    let top = support::load_files(&[("f", text)]).expect("the text is valid YAML");
    let mut log = Log::default();
    let outcome = registry().run(Level::Global, &top, &mut log);
    outcome.map_or_else(|error| error.to_string(), |()| log.lines.join("; "))
}

#[test]
fn settings_run_before_listeners_and_those_before_content() {
    let cases = [
        (
            "hosts: {}\nlisten: 1\nuser: a\nlisten: 2\nuser: b",
            "user a; user b; listen 1; listen 2",
        ),
        (
            "hosts: {h: {paths: {/: {file.dir: a, header.add: x, file.dir: b}}, header.add: y}}\nheader.add: z",
            "header.add z; host? h; header.add y; path? /; header.add x; file.dir a; file.dir b",
        ),
        ("hosts: {a: {}}\nhosts: {b: {}}", "host? a; host? b"),
        ("header.add: [a, b]", "header.add [a, b]"),
        ("{}", ""),
    ];
    for (text, want) in cases {
        assert_eq!(run(text), want, "{text}");
    }
}

#[test]
fn a_path_may_be_a_sequence_that_runs_as_one_mapping() {
    let path = |value: &str| run(&format!("hosts:\n  h:\n    paths:\n      /: {value}"));
    let before = "host? h; path? /";
    let cases = [
        (
            "[{file.dir: a}, {header.add: x}, {file.dir: b}]",
            format!("{before}; header.add x; file.dir a; file.dir b"),
        ),
        ("[]", before.to_owned()),
        ("{}", before.to_owned()),
        (
            "x",
            "[f:4] in command paths, value must be a mapping or sequence of mapping (column 10; lines of the form `directive: value` are expected here, such as `file.dir: /var/www`)"
                .to_owned(),
        ),
        (
            "[{}, x]",
            "[f:4] in command paths, value must be a mapping or sequence of mapping (column 15; lines of the form `directive: value` are expected here, such as `file.dir: /var/www`)"
                .to_owned(),
        ),
        (
            "[[{}]]",
            "[f:4] in command paths, value must be a mapping or sequence of mapping (column 11; lines of the form `directive: value` are expected here, such as `file.dir: /var/www`)"
                .to_owned(),
        ),
    ];
    for (value, want) in cases {
        assert_eq!(path(value), want, "{value}");
    }
}

#[test]
fn errors_of_malformed_mappings_name_no_directive() {
    let cases = [
        (
            "[]",
            "[f:1] node must be a MAPPING (column 1; lines of the form `directive: value` are expected here)",
        ),
        (
            "hosts:\n  h: x",
            "[f:2] node must be a MAPPING (column 6; lines of the form `directive: value` are expected here)",
        ),
        (
            "user: a\n[b]: c",
            "[f:2] command must be a string (column 1)",
        ),
        (
            "usr: a",
            "[f:1] unknown command: usr (column 1; did you mean `user`?)",
        ),
        (
            "Listen: a",
            "[f:1] unknown command: Listen (column 1; did you mean `listen`?)",
        ),
        (
            "quite-unheard-of: a",
            "[f:1] unknown command: quite-unheard-of (column 1)",
        ),
        (
            "\"www.example.com:80\": {}",
            "[f:1] unknown command: www.example.com:80 (column 1; a host belongs under `hosts`, and is indented further than it)",
        ),
        (
            "user:a: {}",
            "[f:1] unknown command: user:a (column 1; a blank must follow the colon after a directive)",
        ),
        (
            "/img: {}",
            "[f:1] unknown command: /img (column 1; a path belongs under `paths`, and is indented further than it)",
        ),
        (
            "hosts: {h: {path: {}}}",
            "[f:1] unknown command: path (column 13; did you mean `paths`?)",
        ),
        // The hint only suggests directives that are allowed at this level.
        ("path: {}", "[f:1] unknown command: path (column 1)"),
    ];
    for (text, want) in cases {
        assert_eq!(run(text), want, "{text}");
    }
}

#[test]
fn misused_directives_are_named() {
    let level = "the command cannot be used at this level";
    let cases = [
        ("user: [a]", "[f:1] in command user, argument cannot be a sequence (column 7; expected a scalar)".to_owned()),
        ("user:\n  a: b", "[f:2] in command user, argument cannot be a mapping (column 3; expected a scalar)".to_owned()),
        ("hosts: x", "[f:1] in command hosts, argument cannot be a scalar (column 8; expected a mapping)".to_owned()),
        (
            "hosts:",
            "[f:1] in command hosts, argument cannot be a scalar (column 7; the value is missing, expected a mapping)"
                .to_owned(),
        ),
        (
            "file.dir: a",
            format!("[f:1] in command file.dir, {level} (column 1; this is global level, it may be used at: path)"),
        ),
        (
            "hosts:\n  h:\n    user: x",
            format!("[f:3] in command user, {level} (column 5; this is host level, it may be used at: global)"),
        ),
        ("throttle-response: ON", "[f:1] in command throttle-response, the directive is not supported yet (column 1)".to_owned()),
        ("hosts:\n  h: {gzip: ON}", "[f:2] in command gzip, the directive is not supported yet (column 7)".to_owned()),
        ("expires: never", "[f:1] in command expires, value is bad (column 10)".to_owned()),
        ("health-check: ON", "[f:1] in command health-check, is never right (column 15)".to_owned()),
        ("hosts:\n  h:\n    expires: never", "[f:3] in command expires, value is bad (column 14)".to_owned()),
    ];
    for (text, want) in cases {
        assert_eq!(run(text), want, "{text}");
    }
}

#[test]
fn the_first_error_in_file_order_is_the_one_reported() {
    assert!(run("expires: x\nunheard-of: y").contains("value is bad"));
    assert!(run("unheard-of: y\nexpires: x").contains("unknown command"));
    // All names are checked before the first directive is executed.
    assert!(run("hosts: {h: {expires: x}}\nunheard-of: y").contains("unknown command"));
}

#[test]
fn names_are_those_of_h2o_then_our_own() {
    let names = registry().names();
    assert_eq!(&names[..KNOWN.len()], KNOWN);
    assert_eq!(&names[KNOWN.len()..], ["health-check"]);
    assert!(registry().find("listen").is_some());
    assert!(registry().find("Listen").is_none());
    assert!(registry().find("gzip").is_none());
}

#[test]
#[should_panic(expected = "two directives are called `user`")]
#[cfg(debug_assertions)]
fn a_name_can_be_taken_only_once() {
    let _ = Registry::new(&[&SETTINGS, &SETTINGS]);
}

#[test]
fn many_aliases_of_one_long_mapping_are_refused() {
    let long: String = (0..2000).map(|_| "header.add: x, ").collect();
    let list = vec!["*l"; 1000].join(", ");
    let text = format!("hosts: {{h: {{paths: {{/: [&l {{{long}}}, {list}]}}}}}}");
    assert!(run(&text).contains("a path cannot have more than 1048576 directives"));
}
