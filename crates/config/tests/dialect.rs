//! Tests of the YAML dialect of configurations: one table per rule, each row with a configuration and the resulting
//! tree or error.

mod support;

use h2o_config::{Memory, Source, load};
use support::{load_files, shown};

/// Checks a table whose rows are the text of a file `f` and the expected tree or error.
fn check(rows: &[(&str, &str)]) {
    for (text, want) in rows {
        assert_eq!(shown(&[("f", text)]), *want, "{text}");
    }
}

/// Checks a table whose rows are a list of files, of which the first includes the others, and the expected tree or error.
fn check_files(rows: &[(&[(&str, &str)], &str)]) {
    for (files, want) in rows {
        assert_eq!(shown(files), *want, "{files:?}");
    }
}

#[test]
fn yaml_1_1_in_all_its_styles_is_read() {
    check(&[
        ("%YAML 1.2\n---\na: b", "{a: b}"),
        ("%YAML 1.1\n---\na: b", "{a: b}"),
        ("\u{feff}a: b", "{a: b}"),
        ("{a: [b, c], d: {e: f}}", "{a: [b, c], d: {e: f}}"),
        ("a:\n- b\n-   c: d\n    e: f", "{a: [b, {c: d, e: f}]}"),
        (
            "- a b\n- 'it''s'\n- \"\\x41\\n\"\n- |\n  1\n  2\n- >\n  3\n  4",
            "[a b, it\\'s, A\\n, 1\\n2\\n, 3 4]",
        ),
        ("? a\n: b", "{a: b}"),
        ("? [a]\n: b", "{[a]: b}"),
        ("a: b # comment\r\nc: d", "{a: b, c: d}"),
    ]);
}

#[test]
fn only_the_first_document_is_read() {
    check(&[
        ("a: b\n---\nc: d", "{a: b}"),
        ("a: b\n...\n]]]", "{a: b}"),
        ("--- a\n--- [", "a"),
        ("---\n", "''"),
        ("[a]\n# comment\n", "[a]"),
    ]);
}

#[test]
fn a_file_without_a_document_is_refused() {
    let error = "failed to parse configuration file f line 1: the file is empty or has only comments (column 1)";
    check(&[("", error), ("# nothing\n", error), ("\n\n", error)]);
}

#[test]
fn every_scalar_is_a_string_and_ordinary_tags_mean_nothing() {
    check(&[
        (
            "[1, \"1\", 0x1, yes, ON, ~, null, 1.50]",
            "[1, 1, 0x1, yes, ON, ~, null, 1.50]",
        ),
        ("a:\nb: ''", "{a: '', b: ''}"),
        (
            "[!!int 1, !foo bar, ! x, !!set {a: b}, !<tag:x> y]",
            "[1, bar, x, {a: b}, y]",
        ),
    ]);
}

#[test]
fn duplicate_keys_are_kept_in_order() {
    check(&[(
        "listen: 80\nuser: a\nlisten: 81\nuser: b",
        "{listen: 80, user: a, listen: 81, user: b}",
    )]);
}

#[test]
fn aliases_refer_anywhere_and_the_first_definition_wins() {
    check(&[
        ("a: &x 1\nb: *x", "{a: 1, b: 1}"),
        ("b: *x\na: &x 1", "{b: 1, a: 1}"),
        ("a: &x 1\nb: &x 2\nc: *x", "{a: 1, b: 2, c: 1}"),
        ("c: *x\na: &x 1\nb: &x 2", "{c: 1, a: 1, b: 2}"),
        (
            "a: &x [&x 1, *y]\nb: &y 2\nc: *x",
            "{a: [1, 2], b: 2, c: [1, 2]}",
        ),
        (
            "&k key: &v {a: *k}\nother: *v\n*k : 1",
            "{key: {a: key}, other: {a: key}, key: 1}",
        ),
        (
            "a: [*c]\nb: &b [&d 1]\nc: &c [*b, *d]",
            "{a: [[[1], 1]], b: [1], c: [[1], 1]}",
        ),
    ]);
}

#[test]
fn aliases_that_lead_nowhere_are_refused() {
    let at = "failed to parse configuration file f line";
    let cases = [
        (
            "a: *x",
            "1: could not resolve the alias (column 4; there is no anchor `&x`; write `&x` before the value it stands for)",
        ),
        (
            "a: &tls 1\nb:\n  - *tsl",
            "3: could not resolve the alias (column 5; there is no anchor `&tsl`; did you mean `*tls`?)",
        ),
        (
            "a: &x [*x]",
            "1: the alias refers to a node that contains it (column 8)",
        ),
        (
            "a: &x {b: *y}\nc: &y {d: *x}",
            "2: the alias refers to a node that contains it (column 11)",
        ),
        (
            "a: &x\n  <<: *x",
            "2: the alias refers to a node that contains it (column 7)",
        ),
    ];
    for (text, want) in cases {
        assert_eq!(shown(&[("f", text)]), format!("{at} {want}"), "{text}");
    }
}

#[test]
fn merge_keys_give_way_to_later_keys_only() {
    check(&[
        (
            "a: &x {k: 1, l: 2}\nb: {m: 0, <<: *x, n: 3}",
            "{a: {k: 1, l: 2}, b: {m: 0, k: 1, l: 2, n: 3}}",
        ),
        ("b: {<<: {k: 1, l: 2}, k: 9}", "{b: {l: 2, k: 9}}"),
        ("b: {k: 9, <<: {k: 1, l: 2}}", "{b: {k: 9, k: 1, l: 2}}"),
        (
            "b: {k: 8, <<: {k: 1, l: 2}, k: 9}",
            "{b: {k: 8, l: 2, k: 9}}",
        ),
        ("b: {<<: *x}\na: &x {k: 1}", "{b: {k: 1}, a: {k: 1}}"),
        ("b: {<<: {}}", "{b: {}}"),
        ("b: {<<: {K: 1}, k: 2}", "{b: {K: 1, k: 2}}"),
        ("b: {<<: {k: 1, k: 2}}", "{b: {k: 1, k: 2}}"),
        ("b: {<<: {[k]: 1}, [k]: 2}", "{b: {[k]: 1, [k]: 2}}"),
        ("<<: {a: 1}", "{a: 1}"),
    ]);
}

#[test]
fn the_earlier_of_merged_mappings_has_precedence_and_of_merge_keys_the_later() {
    check(&[
        ("{<<: [{k: 1, l: 2}, {k: 3, m: 4}]}", "{k: 1, l: 2, m: 4}"),
        ("{<<: [{k: 1}, {l: 3}], l: 4}", "{k: 1, l: 4}"),
        ("{<<: []}", "{}"),
        ("{<<: {k: 1, l: 2}, a: 0, <<: {l: 3}}", "{k: 1, a: 0, l: 3}"),
    ]);
}

#[test]
fn merges_resolve_inside_anchored_mappings_for_every_use() {
    check(&[
        (
            "a: &x {k: 1}\nb: &y {<<: *x, l: 2}\nc: *y\nd: {<<: *y}",
            "{a: {k: 1}, b: {k: 1, l: 2}, c: {k: 1, l: 2}, d: {k: 1, l: 2}}",
        ),
        (
            "d: *y\nb: &y {<<: &x {k: 1}}\nc: *x",
            "{d: {k: 1}, b: {k: 1}, c: {k: 1}}",
        ),
    ]);
}

#[test]
fn only_mappings_can_be_merged() {
    let problem = "failed to parse configuration file f line 1: \
                   value of the merge key MUST be a mapping or a sequence of mappings";
    for text in ["{<<: 1}", "{<<: }", "{<<: [{a: b}, c]}", "{<<: [[{a: b}]]}"] {
        assert_eq!(
            shown(&[("f", text)]),
            format!("{problem} (column 6)"),
            "{text}"
        );
    }
    let by_alias = shown(&[("f", "a: &x 1\nb:\n  <<: *x")]);
    assert!(
        by_alias.starts_with("failed to parse configuration file f line 3: value"),
        "{by_alias}"
    );
}

#[test]
fn env_is_the_value_of_the_variable_and_keeps_its_anchor() {
    check(&[
        ("port: !env PORT", "{port: 8080}"),
        ("a: !env UNSET", "{a: ''}"),
        ("!env NAME : 80", "{listen: 80}"),
        ("a: &p !env PORT\nb: *p", "{a: 8080, b: 8080}"),
        (
            "a: !env [PORT]",
            "!env must be followed by the name of a variable\n\
             failed to parse configuration file f line 1: tag resolution failed (column 4)",
        ),
    ]);
}

#[test]
fn file_is_replaced_by_what_the_file_holds() {
    check_files(&[
        (
            &[("f", "hosts: !file v"), ("v", "a: 1\nb: 2")],
            "{hosts: {a: 1, b: 2}}",
        ),
        (&[("f", "!file v"), ("v", "[a]\n--- b")], "[a]"),
        (&[("f", "!file v : 1"), ("v", "a")], "{a: 1}"),
        (
            &[
                ("f", "a: !file d/v"),
                ("d/v", "!file w"),
                ("w", "1"),
                ("d/w", "2"),
            ],
            "{a: 1}",
        ),
        (
            &[("f", "<<: !file v\nb: 9"), ("v", "a: 1\nb: 2")],
            "{a: 1, b: 9}",
        ),
        (
            &[("f", "[!file v, !file v]"), ("v", "a: &x 1\nb: *x")],
            "[{a: 1, b: 1}, {a: 1, b: 1}]",
        ),
        (
            &[("f", "a: !file v"), ("v", "<<: &x {p: !env PORT}\nq: *x")],
            "{a: {p: 8080, q: {p: 8080}}}",
        ),
    ]);
}

#[test]
fn anchors_of_included_files_are_visible_to_the_includer_only() {
    check_files(&[
        (
            &[("f", "a: !file v\nb: *x"), ("v", "k: &x 1")],
            "{a: {k: 1}, b: 1}",
        ),
        (
            &[
                ("f", "b: *x\na: !file v"),
                ("v", "!file w"),
                ("w", "k: &x 1"),
            ],
            "{b: 1, a: {k: 1}}",
        ),
        (
            &[("f", "a: &x 2\nb: !file v\nc: *x"), ("v", "&x 1")],
            "{a: 2, b: 1, c: 2}",
        ),
        (
            &[("f", "b: !file v\na: &x 2\nc: *x"), ("v", "&x 1")],
            "{b: 1, a: 2, c: 1}",
        ),
        (
            &[("f", "\na: &x 1\nb: !file v"), ("v", "\n- *x")],
            "failed to parse configuration file v line 2 (included from file f line 3): \
             could not resolve the alias (column 3; there is no anchor `&x`; write `&x` before the value it stands for)",
        ),
        (
            &[("f", "a: &x !file v\nb: *x"), ("v", "1")],
            "failed to parse configuration file f line 2: could not resolve the alias (column 4; there is no anchor `&x`; write `&x` before the value it stands for)",
        ),
    ]);
}

#[test]
fn a_pattern_puts_all_its_files_together() {
    let files = [
        ("d/b", "b: 1\nx: &x 2"),
        ("d/a", "a: 1\nx: &x 3"),
        ("d/c", "# nothing"),
        ("d/.h", "h: 1"),
        ("d/e/f", "f: 1"),
    ];
    let lists = [
        ("l/1", "[a]"),
        ("l/2", "[b, c]"),
        ("l/3", "s"),
        ("l/d[1]", "literal"),
    ];
    let cases = [
        ("!file d/*", "{a: 1, x: 3, b: 1, x: 2}"),
        ("a: !file d/?\nb: *x", "{a: {a: 1, x: 3, b: 1, x: 2}, b: 3}"),
        ("!file d/[b-z]", "{b: 1, x: 2}"),
        ("!file none/*.yaml", "{}"),
        ("!file l/[12]", "[a, b, c]"),
        ("!file l/d[1]", "literal"),
        (
            "\n!file l/*",
            "the files of l/* must all be mappings or all be sequences\n\
             failed to parse configuration file f line 2: tag resolution failed (column 1)",
        ),
        (
            "!file l/[",
            "could not open configuration file l/[: Pattern syntax error near position 2: invalid range pattern\n\
             failed to parse configuration file f line 1: tag resolution failed (column 1)",
        ),
    ];
    for (text, want) in cases {
        let all: Vec<_> = [("f", text)]
            .into_iter()
            .chain(files)
            .chain(lists)
            .collect();
        assert_eq!(shown(&all), want, "{text}");
    }
}

#[test]
fn errors_in_included_files_name_both_places() {
    let failed = "failed to parse configuration file f line 2: tag resolution failed (column 4)";
    check_files(&[
        (
            &[("f", "\na: !file gone")],
            &format!("could not open configuration file gone: No such file or directory\n{failed}"),
        ),
        (
            &[("f", "\na: !file {}")],
            &format!("!file must be followed by a path\n{failed}"),
        ),
        (
            &[("f", "\na: !file f")],
            &format!("configuration file f includes itself\n{failed}"),
        ),
        (
            &[("f", "\na: !file v"), ("v", "b: [}")],
            "failed to parse configuration file v line 1 (included from file f line 2): \
             did not find expected node content (column 5; while parsing a flow node that begins in line 1)",
        ),
        (
            &[("f", "\na: !file v"), ("v", "")],
            "failed to parse configuration file v line 1 (included from file f line 2): the file is empty or has only comments (column 1)",
        ),
        (
            &[("f", "!file v"), ("v", "\n!file w"), ("w", "a: [}")],
            "failed to parse configuration file w line 1 (included from file v line 2): \
             did not find expected node content (column 5; while parsing a flow node that begins in line 1)",
        ),
        (
            &[("f", "!file v"), ("v", "\n!file f")],
            "configuration file f includes itself\n\
             failed to parse configuration file v line 2: tag resolution failed (column 1)",
        ),
    ]);
}

#[test]
fn what_is_not_yaml_is_refused_with_line_and_column() {
    let at = "failed to parse configuration file f line";
    let cases = [
        (
            "a: b: c",
            "1: mapping values are not allowed in this context (column 5; a value that contains `: ` must be in quotes: `a: \"b: c\"`; a nested mapping must begin on a line of its own)",
        ),
        (
            "a: 1\n b: 2",
            "2: mapping values are not allowed in this context (column 2; this line is indented more (1 spaces) than line 1 (0), which has a value already)",
        ),
        (
            "a:\n\t- b",
            "2: found character that cannot start any token (column 1; this is a tab; YAML is indented with spaces)",
        ),
        (
            "a: 1\n  - b\nc",
            "3: could not find expected ':' (column 1; there must be a colon after the name: `c:`)",
        ),
        (
            "a: 'b\n",
            "1: found unexpected end of stream (column 4; the quote that opens here is not closed on this line)",
        ),
        (
            "a: \u{1}",
            "1: control characters are not allowed (column 4)",
        ),
        (
            "  a: b\nc: d",
            "2: did not find expected <document start> (column 1; this line is indented less than the first line of the file)",
        ),
        (
            "[a] ]",
            "1: did not find expected <document start> (column 5)",
        ),
        (
            "%YAML 2.0\n---\na",
            "1: found incompatible YAML document (column 1)",
        ),
    ];
    for (text, want) in cases {
        assert_eq!(shown(&[("f", text)]), format!("{at} {want}"), "{text}");
    }
    let not_utf8 = load("f", &Memory::new().file("f", *b"a: 1\nbc: \xff"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        not_utf8,
        "failed to parse configuration file f line 2: invalid leading UTF-8 octet (column 5)"
    );
}

#[test]
fn a_configuration_that_is_not_there_is_reported_with_the_reason() {
    let reason = "could not open configuration file /no/such/file: No such file or directory";
    assert_eq!(
        load("/no/such/file", &Memory::new())
            .unwrap_err()
            .to_string(),
        reason
    );
    assert_eq!(
        load("/no/such/file", &h2o_config::OsSource)
            .unwrap_err()
            .to_string(),
        reason
    );
}

#[test]
fn nodes_know_where_they_were_written() {
    let files = [
        (
            "f",
            "a: !file v\nb: *x\nscript: |\n  one\n  two\nplain:\n  text\nlist:\n  - k: é\n    é: v",
        ),
        ("v", "\n&x  q: 1"),
    ];
    let top = load_files(&files).unwrap();
    let place = |node: &h2o_config::Node| {
        format!(
            "{}:{}:{}",
            node.pos.file(),
            node.pos.line(),
            node.pos.column()
        )
    };
    let got: Vec<_> = top
        .as_mapping()
        .unwrap()
        .iter()
        .map(|(key, value)| format!("{} {}", place(key), place(value)))
        .collect();
    let want = [
        "f:1:1 v:2:1",
        "f:2:1 v:2:1",
        // The position of the block scalar is the line after its indicator.
        "f:3:1 f:4:1",
        "f:6:1 f:7:3",
        "f:8:1 f:9:3",
    ];
    assert_eq!(got, want);
    let list = top.as_mapping().unwrap()[4].1.as_sequence().unwrap();
    assert_eq!(
        place(&list[0].as_mapping().unwrap()[1].1),
        "f:10:8",
        "columns count characters"
    );
}

#[test]
fn a_file_is_read_only_once() {
    struct Counting(Memory, std::cell::Cell<u32>);
    impl Source for Counting {
        fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
            self.1.set(self.1.get() + 1);
            self.0.read(path)
        }
        fn env(&self, name: &str) -> Option<String> {
            self.0.env(name)
        }
        fn glob(&self, pattern: &str) -> std::io::Result<Vec<String>> {
            self.0.glob(pattern)
        }
    }
    let files = Memory::new()
        .file("f", "[!file v, !file w, !file v]")
        .file("v", "!file w")
        .file("w", "1");
    let source = Counting(files, std::cell::Cell::new(0));
    load("f", &source).unwrap();
    assert_eq!(source.1.get(), 3);
}
