//! Tests of the classes of the Ruby environment: JSON, files, errors, `ENV`.

use crate::tests::{evaluate, vm};

/// Evaluates the scripts one after another in one VM, and compares the results.
fn check(cases: &[(&str, &str)]) {
    let vm = vm();
    for (script, want) in cases {
        assert_eq!(evaluate(&vm, script), *want, "{script}");
    }
}

#[test]
fn json_is_read_as_values_of_ruby() {
    check(&[
        (
            r#"JSON.parse('{"a": [1, -2.5, 1e3, true, null], "b": {}, "c": []}')"#,
            r#"{"a"=>[1, -2.5, 1000.0, true, nil], "b"=>{}, "c"=>[]}"#,
        ),
        (r#"JSON.parse(' "x" ')"#, r#""x""#),
        (
            r#"JSON.parse('9223372036854775807')"#,
            "9223372036854775807",
        ),
        (r#"JSON.parse('9223372036854775808').class"#, "Float"),
        (
            r#"JSON.parse('"\u00e9\ud83d\ude00\n\/\\\\"') == "\xc3\xa9\xf0\x9f\x98\x80\n/\\""#,
            "true",
        ),
        ("JSON.parse(\"\\xef\\xbb\\xbf[1] x\")", "[1]"),
        ("JSON.load('[1]') { |value| $seen = value }; $seen", "[1]"),
        (
            "a = JSON.parse('[' * 2000 + ']' * 2000); n = 1; while a = a[0]; n += 1; end; n",
            "2000",
        ),
        (
            "JSON.parse(nil)",
            "raised nil cannot be converted to String (TypeError)",
        ),
        (
            "JSON.parse('1', symbolize_names: true)",
            "raised wrong number of arguments (given 2, expected 1) (ArgumentError)",
        ),
        (
            "[JSON::ParserError.superclass, JSON::JSONError.superclass]",
            "[JSON::JSONError, StandardError]",
        ),
    ]);
}

#[test]
fn text_that_is_no_json_is_refused() {
    let vm = vm();
    for text in [
        "",
        " ",
        "{",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{1:1}",
        "[1 2]",
        "nul",
        "tru",
        "+1",
        "01x[",
        "-",
        "1.",
        ".5",
        "1e",
        "1e999",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"\n\"",
        "{\"a\":1,\"a\":2}",
        "{\"a\":null,\"a\":2}",
        "[1}",
        "{\"a\":1]",
        "// x\n1",
        "\"\u{1}\"",
        "]",
        ",",
    ] {
        let script = format!("JSON.parse({:?})", text.replace('\u{1}', "\u{b}"));
        let script = script.replace("\\u{b}", "\\v");
        let want = if text == "01x[" {
            "0"
        } else {
            "raised invalid json (JSON::ParserError)"
        };
        assert_eq!(evaluate(&vm, &script), want, "{script}");
    }
    check(&[
        (
            "JSON.parse('[' * 3000)",
            "raised invalid json (JSON::ParserError)",
        ),
        (
            "JSON.parse(\"\\\"\\xff\\\"\")",
            "raised invalid json (JSON::ParserError)",
        ),
    ]);
}

#[test]
fn values_of_ruby_are_written_as_json() {
    check(&[
        (
            r#"JSON.generate({"a" => [1, 2.5, nil, true], :b => {}, 3 => :sym})"#,
            r#""{\"a\":[1,2.5,null,true],\"b\":{},\"3\":\"sym\"}""#,
        ),
        (
            r#"JSON.generate("\"\\/\b\f\n\r\t\x01é") == "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001é\"""#,
            "true",
        ),
        ("JSON.stringify([])", r#""[]""#),
        (
            "[1e100, 1e200, -2.5e-300, 0.1].all? { |x| JSON.parse(JSON.generate([x])) == [x] }",
            "true",
        ),
        (
            r#"JSON.pretty_generate({"a" => [1, {}], "b" => {"c" => nil}})"#,
            r#""{\n  \"a\":[\n    1,\n    {}\n  ],\n  \"b\":{\n    \"c\":null\n  }\n}""#,
        ),
        (
            "[1.to_json, 'x'.to_json, nil.to_json, [1].to_json, {1 => 2}.to_json, :s.to_json]",
            r#"["1", "\"x\"", "null", "[1]", "{\"1\":2}", "\"s\""]"#,
        ),
        (
            "class Point; def to_json; '[0,1]'; end; end; JSON.generate([Point.new])",
            r#""[[0,1]]""#,
        ),
        (
            "class Other; def to_s; 'o\"'; end; end; JSON.generate([Other.new, String])",
            r#""[\"o\\\"\",\"String\"]""#,
        ),
        ("JSON.generate([0.0 / 0, 1.0 / 0])", r#""[NaN,Infinity]""#),
        (
            "a = []; a << a; JSON.generate(a)",
            "raised nesting is too deep (JSON::JSONError)",
        ),
        (
            "a = []; 3000.times { a = [a] }; a.to_json",
            "raised nesting is too deep (JSON::JSONError)",
        ),
        (
            "class Loop; def to_json; JSON.generate([self]); end; end; begin; JSON.generate(Loop.new); rescue SystemStackError, StandardError; 1; end",
            "1",
        ),
        (
            "class Grows; def initialize(a) @a = a end; def to_json; @a.clear; GC.start; '1'; end; end; a = []; a << Grows.new(a) << 'x' * 100 << 'y' * 100; JSON.generate(a).size",
            "209",
        ),
        (
            "io = []; def io.write(s) self << s end; JSON.dump([1], io); io",
            r#"["[1]"]"#,
        ),
    ]);
}

#[test]
fn errors_of_the_system_have_classes() {
    check(&[
        (
            "File.open('/nowhere/x')",
            "raised No such file or directory - open /nowhere/x (Errno::ENOENT)",
        ),
        (
            "begin; File.open('/nowhere'); rescue SystemCallError => e; [e.errno, e.class::Errno]; end",
            "[2, 2]",
        ),
        (
            "SystemCallError.new('x', 13).inspect.include?('Permission denied - x')",
            "true",
        ),
        ("SystemCallError.new(13).class", "Errno::EACCES"),
        ("Errno::EUCLEAN.new.errno", "117"),
        (
            "begin; raise Errno::EDEADLOCK; rescue Errno::EDEADLOCK => e; e.errno; end",
            "35",
        ),
        ("SystemCallError.new('x').message", r#""unknown error - x""#),
        ("raise Errno::EPIPE", "raised Broken pipe (Errno::EPIPE)"),
        (
            "raise Errno::EPIPE, 'here'",
            "raised Broken pipe - here (Errno::EPIPE)",
        ),
        (
            "Errno::ENOTHING",
            "raised uninitialized constant Errno::ENOTHING (NameError)",
        ),
    ]);
}

#[test]
fn the_environment_is_shared_and_changed_by_scripts() {
    check(&[
        ("ENV['PATH'].empty?", "false"),
        (
            "ENV['H2O_TEST_A'] = 'x'; [ENV['H2O_TEST_A'], ENV.key?('H2O_TEST_A'), ENV.keys.include?('H2O_TEST_A')]",
            r#"["x", true, true]"#,
        ),
        (
            "ENV.fetch('H2O_TEST_NONE')",
            "raised key not found: H2O_TEST_NONE (KeyError)",
        ),
        (
            "[ENV.fetch('H2O_TEST_NONE', 1), ENV.fetch('H2O_TEST_NONE') { |n| n.size }]",
            "[1, 13]",
        ),
        (
            "ENV[1]",
            "raised Integer cannot be converted to String (TypeError)",
        ),
        (
            "[ENV.delete('H2O_TEST_A'), ENV['H2O_TEST_A'], ENV.to_s]",
            r#"["x", nil, "ENV"]"#,
        ),
    ]);
}

#[test]
fn directories_and_files_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "12345").unwrap();
    std::os::unix::fs::symlink("file", folder.path().join("link")).unwrap();
    let vm = vm();
    let at = format!(
        "$at = '{}'; def fails; yield; rescue => e; e.class; end; 0",
        folder.path().display()
    );
    assert_eq!(evaluate(&vm, &at), "0");
    for (script, want) in [
        ("Dir.entries($at).sort", r#"[".", "..", "file", "link"]"#),
        (
            "Dir.mkdir($at + '/new', 0700); [Dir.exist?($at + '/new'), File.stat($at + '/new').directory?]",
            "[true, true]",
        ),
        ("fails { Dir.mkdir($at + '/new') }", "Errno::EEXIST"),
        ("Dir.rmdir($at + '/new'); Dir.exist?($at + '/new')", "false"),
        (
            "Dir.open($at) { |d| [d.read, d.tell, d.rewind.read, d.map { |n| n }.size] }",
            r#"[".", 1, ".", 3]"#,
        ),
        (
            "d = Dir.new($at); d.close; d.read",
            "raised closed directory (IOError)",
        ),
        ("fails { Dir.open($at + '/none') }", "Errno::ENOENT"),
        (
            "s = File.stat($at + '/link'); [s.size, s.file?, s.symlink?, s.ftype, s.zero?, s.size?, s.owned?, s.readable?]",
            r#"[5, true, false, "file", false, 5, true, true]"#,
        ),
        ("File.lstat($at + '/link').ftype", r#""link""#),
        (
            "File.open($at + '/file') { |f| f.stat.ino == File.stat($at + '/file').ino }",
            "true",
        ),
        (
            "[Time.now - File.stat($at + '/file').mtime < 1000, File::Stat.new('/').sticky?, File.stat('/tmp').sticky?]",
            "[true, false, true]",
        ),
        ("File.stat($at + '/file') <=> File.stat($at + '/file')", "0"),
    ] {
        assert_eq!(evaluate(&vm, script), want, "{script}");
    }
    let message = format!(
        "raised No such file or directory - {}/none (Errno::ENOENT)",
        folder.path().display()
    );
    assert_eq!(evaluate(&vm, "File.stat($at + '/none')"), message);
}

#[test]
fn what_the_library_lacks_of_the_core_is_there() {
    check(&[
        ("catch(:a) { catch(:b) { throw :a, 5 }; 6 }", "5"),
        ("catch { |tag| throw tag }", "nil"),
        ("throw :x", "raised uncaught throw :x (UncaughtThrowError)"),
        ("begin; exit 3; rescue SystemExit => e; e.status; end", "3"),
        ("begin; exit; rescue; 1; end", "raised exit (SystemExit)"),
        ("[2.pow(10), 3.pow(200, 1000)]", "[1024, 1]"),
        ("[Rational(2, 3)**2, Rational(2, 3)**-1]", "[(4/9), (3/2)]"),
        ("'abcabc'.byteindex('b') + 'abcabc'.byterindex('b')", "5"),
        (
            "[1, 2].chain([3]).to_a + ([4].each + [5]).to_a",
            "[1, 2, 3, 4, 5]",
        ),
        (
            "class A1; end; class B1 < A1; end; class C1 < B1; end; A1.subclasses",
            "[B1]",
        ),
        (
            "[['01100001'].pack('B*'), ['10101', 7].pack('B8C'), ['1', '0110'].pack('bB4')]",
            r#"["a", "\xa8\a", "\x01`"]"#,
        ),
        (
            "['ab'.unpack('B*'), 'ab'.unpack1('b8'), 'abc'.unpack('CB4a'), ''.unpack('B8')]",
            r#"[["0110000101100010"], "10000110", [97, "0110", "c"], [""]]"#,
        ),
        (r#""\xaa\xbb1".unpack('n*B8')"#, r#"[43707, "00110001"]"#),
        (
            "begin [].pack('B'); rescue => e; e.message; end",
            r#""too few arguments""#,
        ),
        (
            "[[1, 2].pack('nN'), ['abc'].pack('m'), \"\\x01\\x02\".unpack1('n'), 'YWJj'.unpack('m')]",
            r#"["\x00\x01\x00\x00\x00\x02", "YWJj\n", 258, ["abc"]]"#,
        ),
        (
            "Time.gm(2026, 1, 2, 3, 4, 5).to_s",
            r#""2026-01-02 03:04:05 UTC""#,
        ),
    ]);
}
