//! Tests of the directives for static files, and of their error messages.

use super::super::testing::{config_error, kit, kit_at};
use super::tree;

#[test]
fn values_are_checked() {
    let cases = [
        ("file.dir: [a]", "argument cannot be a sequence"),
        ("file.dir: \"a\\0b\"", "a file name cannot contain NUL"),
        ("file.dir:", "a file name cannot be empty"),
        ("file.file: ''", "a file name cannot be empty"),
        ("file.file: {a: b}", "argument cannot be a mapping"),
        ("file.index: a", "argument cannot be a scalar"),
        (
            "file.index: [[a]]",
            "argument must be a sequence of scalars",
        ),
        (
            "file.index: ['']",
            "the name of an index file cannot be empty",
        ),
        (
            "file.index: [/]",
            "the name of an index file cannot be empty",
        ),
        (
            "file.index: [a/../../b]",
            "the name of an index file cannot lead out of its directory",
        ),
        ("file.dirlisting: YES", "argument must be one of: OFF,ON"),
        (
            "file.hide: a/b",
            "the pattern `a/b` matches no name of a file or directory",
        ),
        (
            "file.hide: ['']",
            "the pattern `` matches no name of a file or directory",
        ),
        (
            "file.hide: ['!']",
            "the pattern `!` matches no name of a file or directory",
        ),
        ("file.hide: [[a]]", "argument must be a scalar"),
        ("file.hide: {a: b}", "argument cannot be a mapping"),
        ("file.etag: 1", "argument must be one of: OFF,ON"),
        (
            "file.send-compressed: gzip",
            "argument must be one of: OFF,ON,gunzip",
        ),
        (
            "file.send-gzip: x",
            "argument must be one of: OFF,ON,gunzip",
        ),
        ("file.io_uring: x", "argument must be one of: OFF,ON"),
        ("file.mime.addtypes: x", "argument cannot be a scalar"),
        (
            "file.mime.addtypes: {x: .a}",
            "the string \"x\" does not look like a mime-type",
        ),
        (
            "file.mime.addtypes: {\"a/b\\r\\nc: d\": .a}",
            "the string \"a/b\\r\\nc: d\" does not look like a mime-type",
        ),
        (
            "file.mime.addtypes: {a/b: a}",
            "given extension \"a\" does not start with a \".\"",
        ),
        (
            "file.mime.settypes: {a/b: [.]}",
            "given extension \".\" is invalid: at least 2 characters are required",
        ),
        (
            "file.mime.settypes: {a/b: [[]]}",
            "expected a scalar (extension)",
        ),
        (
            "file.mime.settypes: {[a]: .x}",
            "expected a scalar (mime-type)",
        ),
        (
            "file.mime.addtypes: {a/b: {extensions: .a}}",
            "attribute `extensions` must be a sequence",
        ),
        (
            "file.mime.addtypes: {a/b: {extensions: [.a], is_compressible: maybe}}",
            "argument must be one of: YES,NO",
        ),
        (
            "file.mime.addtypes: {a/b: {extensions: [.a], priority: low}}",
            "argument must be one of: normal,highest",
        ),
        (
            "file.mime.addtypes: {a/b: {priority: normal}}",
            "cannot find mandatory attribute: extensions",
        ),
        ("file.mime.removetypes: .a", "argument cannot be a scalar"),
        (
            "file.mime.removetypes: [a]",
            "given extension \"a\" does not start with a \".\"",
        ),
        (
            "file.mime.setdefaulttype: x",
            "the string \"x\" does not look like a mime-type",
        ),
    ];
    for (config, want) in cases {
        let error = config_error(config);
        let name = config.split(':').next().unwrap();
        assert!(
            error.starts_with(&format!("[f:1] in command {name}, ")),
            "{error}"
        );
        assert!(error.contains(want), "{config}: {error}");
    }
}

#[test]
fn attributes_can_be_given() {
    let root = tree(&[("a.a", ""), ("a.b", ""), ("a.c", ""), ("a.up", "")]);
    let kit = kit(
        root.path(),
        "file.dir: ROOT
file.mime.addtypes:
  Text/X-A; Charset=UTF-8: {extensions: [.a], is_compressible: NO, priority: highest}
  image/x-b: {extensions: [.b], is_compressible: ON}
  text/css: .c
  text/up: .UP",
    );
    let hint = |target: &str| {
        let hint = kit.get(target).hint.unwrap();
        (hint.compressible, hint.highest_priority)
    };
    assert_eq!(
        kit.get("/a.a").field("content-type"),
        Some("text/x-a; Charset=UTF-8")
    );
    assert_eq!(hint("/a.a"), (false, true));
    assert_eq!(hint("/a.b"), (true, false));
    assert_eq!(hint("/a.c"), (true, true));
    assert_eq!(
        kit.get("/a.up").field("content-type"),
        Some("application/octet-stream"),
        "upper-case extensions never match"
    );
}

#[test]
fn inner_settings_replace_outer_ones_wherever_they_stand() {
    let root = tree(&[("home.html", "H"), ("index.html", "I"), ("a.x", "")]);
    let global = "file.index: [home.html]\nfile.etag: OFF\nfile.mime.addtypes: {a/outer: .x}";
    let outer = kit_at(root.path(), "/", global, "file.dir: ROOT");
    assert_eq!(outer.get("/").text(), "H");
    assert_eq!(outer.get("/a.x").field("content-type"), Some("a/outer"));
    let config = "file.dir: ROOT\nfile.index: [index.html]\nfile.etag: ON\nfile.mime.addtypes: {a/inner: .x}";
    let inner = kit_at(root.path(), "/", global, config);
    assert_eq!(inner.get("/").text(), "I");
    assert!(inner.get("/").field("etag").is_some());
    assert_eq!(inner.get("/a.x").field("content-type"), Some("a/inner"));
}

#[test]
fn settypes_starts_from_nothing_but_the_default_type() {
    let root = tree(&[("a.css", ""), ("a.x", "")]);
    let config = "file.dir: ROOT\nfile.mime.setdefaulttype: a/b\nfile.mime.settypes: {a/x: [.x]}";
    let kit = kit(root.path(), config);
    assert_eq!(kit.get("/a.css").field("content-type"), Some("a/b"));
    assert_eq!(kit.get("/a.x").field("content-type"), Some("a/x"));
}

#[test]
fn io_uring_is_accepted_with_a_note() {
    let root = tree(&[]);
    let on = kit(root.path(), "file.io_uring: ON");
    assert_eq!(on.warnings.len(), 1);
    assert!(on.warnings[0].starts_with("[warning] [f:1] in command file.io_uring, "));
    assert!(kit(root.path(), "file.io_uring: OFF").warnings.is_empty());
}
