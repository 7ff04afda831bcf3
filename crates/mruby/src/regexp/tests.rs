//! Tests of patterns as scripts use them.

use crate::tests::{evaluate, vm, vm_with_time};

/// Runs each script in a VM of its own, because global variables such as `$~` keep their values until the VM is closed.
fn expect(cases: &[(&str, &str)]) {
    let vm = vm();
    let mut wrong = Vec::new();
    for (text, want) in cases {
        let got = evaluate(&vm, text);
        if got != *want {
            wrong.push(format!("{text}\n    gave {got}\n  wanted {want}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn patterns_match_as_in_ruby() {
    expect(&[
        (r"'abc' =~ /b/", "1"),
        (r"/x/ =~ 'abc'", "nil"),
        (r"nil =~ /x/", "nil"),
        (r"'abc' !~ /b/", "false"),
        (r"/b/.match?('abc')", "true"),
        (r"'abc'.match?(/B/i)", "true"),
        (r"'abc'.match?('c$')", "true"),
        (
            r"'HTTP/2'.match?(/\A(HTTP\/3|HTTP\/2|HTTP\/1\.1)\z/)",
            "true",
        ),
        (
            r"/\A(\d+)-(?:x)-(\d+)\z/.match('12-x-34').captures",
            r#"["12", "34"]"#,
        ),
        (r"'a\nb'.match?(/a.b/)", "false"),
        (r#""a\nb".match?(/a.b/)"#, "false"),
        (r#""a\nb".match?(/a.b/m)"#, "true"),
        (r#""a\nb".match?(/(?m:a.b)/)"#, "true"),
        (r#""a\nb" =~ /^b/"#, "2"),
        (r#""a\nb" =~ /a$/"#, "0"),
        (r#""a\n" =~ /a\Z/"#, "0"),
        (r#""a\n" =~ /a\z/"#, "nil"),
        (r"'foobar'[/foo(?=bar)/]", r#""foo""#),
        (r"'xfoo'[/(?<!x)foo/]", "nil"),
        (r"'aaa'[/a++a/]", "nil"),
        (r"'foobar'[/foo\Kbar/]", r#""bar""#),
        (r"'b' =~ /(?=a)?b/", "0"),
        (r"'a' =~ /^*a/", "0"),
        (r"'a' =~ /\b?a/", "0"),
        (r"'a' =~ /(?:^)?a/", "0"),
        (r"'ba' =~ /(?:^|\b)+a/", "nil"),
        (r"'xb' =~ /(?=a){0,2}?b/", "1"),
        (r"'xb' =~ /(?<=x){1,}b/", "1"),
        (r"'ab' =~ /(?<=x)+b/", "nil"),
        (r"'a{,}' =~ /a\b{,}/", "0"),
        (r"'aab' =~ /(a)*b/", "0"),
        (r"'ABC' =~ /\101BC/", "0"),
        (r"'C' =~ /a(?i)b|c/", "nil"),
        (r"'aC' =~ /a(?i)b|c/", "0"),
        (r"'xC' =~ /(?:x(?i)b|c)/", "0"),
        (r"'c' =~ /(?:x(?i)b)|C/", "nil"),
        (r"'é' =~ /\303\251/", "0"),
        (r"'80' =~ /\80/", "0"),
        (r"'a' =~ /(a)?(?(1)|b)/", "0"),
        (r"/()??a/.match('a').captures", "[nil]"),
        (r"/(^){0}(a)/.match('a').captures", r#"[nil, "a"]"#),
        (r"'ab'.scan(/()??(a|b)/)", r#"[[nil, "a"], [nil, "b"]]"#),
        (r"'xa' =~ /\b{1}?a/", "1"),
        (r"'xa' =~ /\b{1,2}?a/", "nil"),
        (r"'xa' =~ /\b{9999999999}a/", "nil"),
        (r"'xa' =~ /\b{000,1}a/", "1"),
        (
            r"('^' + '*' * 20000).then { |p| 'a' =~ Regexp.new(p) }",
            "0",
        ),
        (r"'a1' =~ /a(?=1)*?1\z*/", "0"),
        (r"'a' =~ /\141/", "0"),
        (
            r"'aaaaaaaaaab' =~ /(a)(a)(a)(a)(a)(a)(a)(a)(a)(a)\10?b/",
            "0",
        ),
        (r"'abab'[/(ab)\1/]", r#""abab""#),
        (r"'(a(b)c)'[/\((?:[^()]|\g<0>)*\)/]", r#""(a(b)c)""#),
        (r"'x-y.z' =~ /[\w-.]{5}/", "0"),
        (r"'a~b'[/[~\-]/]", r#""~""#),
        (r"'a]b'[/[]x]/]", r#""]""#),
        (r"'q'.match?(/\q\_\//)", "false"),
        (r"'q_/'.match?(/\q\_\//)", "true"),
        (r"'a b'.match?(/a b # comment ) [/x)", "false"),
        (r"'ab'.match?(/a b # comment ) [/x)", "true"),
        (r#"/a#{/b/i}c/.match?("aBc")"#, "true"),
        (r"/a/.match(nil)", "nil"),
        (r"/a/ === 5", "false"),
        (r"/a/ === 'cat'", "true"),
        (
            r"case '/x.html' when /\.html\z/ then :html else :other end",
            ":html",
        ),
    ]);
}

#[test]
fn classes_of_letters_are_ascii_and_posix_brackets_are_not() {
    expect(&[
        (r"'é'.match?(/\w/)", "false"),
        (r"'é'.match?(/[\w]/)", "false"),
        (r"'é'.match?(/\W/)", "true"),
        (r"'é'.match?(/[[:alpha:]]/)", "true"),
        (r"'é'.match?(/[^[:alpha:]]/)", "false"),
        (r"'é'.match?(/\p{Alpha}/)", "true"),
        (r"'é'.match?(/\p{^Alpha}/)", "false"),
        (r"'é'.match?(/\A.\z/)", "true"),
        (r"'é'.match?(/\A\xC3\xA9\z/)", "true"),
        (r"'é'.match?(/\u00e9/)", "true"),
        (r"'٣'.match?(/\d/)", "false"),
        (r"'fF09'.match?(/\A\h+\z/)", "true"),
    ]);
}

#[test]
fn octets_that_are_no_characters_are_like_characters_that_are_no_letters() {
    expect(&[
        (r#""böse\xff" =~ /b.se/"#, "0"),
        (r#""\xffböse" =~ /b.se/"#, "1"),
        (r#""ÄRGER\xff" =~ /ä/i"#, "0"),
        (r#""x\xffö" =~ /[äöü]/"#, "2"),
        (r#""é\xff" =~ /[^é]/"#, "2"),
        (r#""\xffé" =~ /\p{L}/"#, "1"),
        (r#""\xff" =~ /\p{L}|\w/"#, "nil"),
        (
            r#""\xe2\x82a\xff".scan(/./).map(&:bytes)"#,
            "[[226], [130], [97], [255]]",
        ),
        (r#""\xfe\xff" =~ /(.)\1/"#, "nil"),
        (r#""ö\xfe\xfe" =~ /(.)\1/"#, "2"),
        (r#""\xffö\xff".gsub(/ö/, "o").bytes"#, "[255, 111, 255]"),
        (r#""\xffaöb\xfeaöb".scan(/ö(b)/)"#, r#"[["b"], ["b"]]"#),
        (
            r#""\xffab" =~ /(a)(b)/; [$~.begin(2), $~.end(2), $`.bytes]"#,
            "[2, 3, [255]]",
        ),
        (r#""\xff\xfeöa".index(/a/, 2)"#, "4"),
        (r#""\xff/a.mp3".match?(/\.mp3\z/)"#, "true"),
        (r#""a\xfe\xffb" =~ /\A.(..)b/"#, "0"),
        (r#""a\xfe\xffb"[/[^a-z]+/].bytes"#, "[254, 255]"),
        (r#""\xe9".match?(/[[:alpha:]]/)"#, "false"),
        (r#""é".gsub(/./n, "x")"#, r#""xx""#),
    ]);
}

#[test]
fn global_variables_have_the_last_match() {
    expect(&[
        (
            r"'2026-11-23' =~ /(\d+)-(\d+)-(\d+)/; [$1, $2, $3, $4]",
            r#"["2026", "11", "23", nil]"#,
        ),
        (
            r"'xaby' =~ /(a)(b)?/; [$~[0], $&, $`, $', $+]",
            r#"["ab", "ab", "x", "y", "b"]"#,
        ),
        (r"'a' =~ /(a)/; 'b' =~ /a/; [$~, $1, $&]", "[nil, nil, nil]"),
        (
            r"'abc' =~ /(a)(b)/; 'abc' =~ /(c)/; [$1, $2]",
            r#"["c", nil]"#,
        ),
        (r"'a' =~ /a/; 'b'.match?(/b/); $&", r#""a""#),
        (r"'ab'.gsub(/(.)/) { $1.upcase }", r#""AB""#),
        (r"'ab' =~ /b/; Regexp.last_match.begin(0)", "1"),
    ]);
}

#[test]
fn strings_are_changed_by_patterns() {
    expect(&[
        (r"'hello'.sub(/l/, 'L')", r#""heLlo""#),
        (r"'hello'.gsub(/l/, 'L')", r#""heLLo""#),
        (r"'hello'.gsub('l', 'L')", r#""heLLo""#),
        (r"'hello'.gsub(/x/, 'L')", r#""hello""#),
        (r"'hello'.gsub!(/x/, 'L')", "nil"),
        (r"s = 'hello'; s.sub!(/l/) { |m| m * 3 }; s", r#""hellllo""#),
        (
            r"'hello'.gsub(/[el]/, 'e' => '3', 'l' => '1')",
            r#""h311o""#,
        ),
        (
            r"'John Smith'.sub(/(\w+) (\w+)/, '\2, \1 \0 \\\\ x')",
            r#""Smith, John John Smith \\ x""#,
        ),
        (r"'ab'.sub(/(?<first>a)/, '<\k<first>>')", r#""<a>b""#),
        (r"'abc'.gsub(/x*/, '-')", r#""-a-b-c-""#),
        (r"'éa'.gsub(//, '-') == '-é-a-'", "true"),
        (r"'hello'.gsub(/l/).to_a", r#"["l", "l"]"#),
        (r"'a1b22'.scan(/\d+/)", r#"["1", "22"]"#),
        (
            r"'a1b22'.scan(/([a-z])(\d+)/)",
            r#"[["a", "1"], ["b", "22"]]"#,
        ),
        (r"'a.b.'.scan('.')", r#"[".", "."]"#),
        (
            r"x = []; 'a1b22'.scan(/\d+/) { |m| x << m << $~.begin(0) }; x",
            r#"["1", 1, "22", 3]"#,
        ),
        (r"'a, b,c'.split(/,\s*/)", r#"["a", "b", "c"]"#),
        (r"'a, b,c'.split(/,\s*/, 2)", r#"["a", "b,c"]"#),
        (r"'a1b2'.split(/(\d)/)", r#"["a", "1", "b", "2"]"#),
        (r"'abc'.split(//)", r#"["a", "b", "c"]"#),
        (r"'a,b,,'.split(/,/)", r#"["a", "b"]"#),
        (r"'a,b,,'.split(/,/, -1)", r#"["a", "b", "", ""]"#),
        (r"''.split(/,/)", "[]"),
        (r"'a b'.split", r#"["a", "b"]"#),
        (r"'key=value'[/(\w+)=(\w+)/, 2]", r#""value""#),
        (r"'key=value'[/(?<k>\w+)=/, 'k']", r#""key""#),
        (r"'abc'[1, 2]", r#""bc""#),
        (r"s = 'abc'; s[/b/] = 'X'; s", r#""aXc""#),
        (r"s = 'abc'; s[1] = 'X'; s", r#""aXc""#),
        (r"s = 'abc'; [s.slice!(/b/), s]", r#"["b", "ac"]"#),
        (r"'abcabc'.index(/c/, 3)", "5"),
        (r"'abc'.index('c')", "2"),
    ]);
}

#[test]
fn matches_and_patterns_tell_what_they_are() {
    expect(&[
        (
            r"m = /(?<a>x)(?<b>y)?/.match('_x_'); [m[:a], m['b'], m.pre_match, m.post_match, m.size]",
            r#"["x", nil, "_", "_", 3]"#,
        ),
        (
            r"m = /(b)(c)/.match('abcd'); [m[-1], m[0..1], m.offset(2), m.to_a, m.to_s, m.string, m.regexp]",
            r#"["c", ["bc", "b"], [2, 3], ["bc", "b", "c"], "bc", "abcd", /(b)(c)/]"#,
        ),
        (r"/(a)(?<n>b)/.match('ab').captures", r#"["b"]"#),
        (
            r"/x/.match('x')[:none]",
            "raised undefined group name reference: none (IndexError)",
        ),
        (
            r"[/a\/b/i.inspect, Regexp.new('a/b').inspect]",
            r#"["/a\\/b/i", "/a\\/b/"]"#,
        ),
        (
            r"[/a/mi.to_s, /a/.source, /a/ix.options, /a/i.casefold?]",
            r#"["(?mi-x:a)", "a", 3, true]"#,
        ),
        (r"Regexp.escape('a.b*c [1]')", r#""a\\.b\\*c\\ \\[1\\]""#),
        (
            r"Regexp.compile('a', 'i').equal?(Regexp.compile('a', true))",
            "true",
        ),
        (r"Regexp.new('a') == /a/", "true"),
        (r"re = Regexp.new('b+').freeze; re.match?('abb')", "true"),
        (r"Regexp === /a/ && OnigRegexp.equal?(Regexp)", "true"),
        (
            r"/a/.match(5)",
            "raised no implicit conversion of Integer into String (TypeError)",
        ),
        (r"/b/.match('abc') { |m| m.begin(0) }", "1"),
        (r"/b/.match('bab', 1).begin(0)", "2"),
    ]);
}

#[test]
fn options_say_which_letters_are_letters() {
    expect(&[
        (r"'é'.match?(/\A\w\z/)", "false"),
        (r"'é'.match?(/(?d)\A\w\z/)", "false"),
        (r"'é'.match?(/(?u)\A\w\z/)", "true"),
        (r"'éé'.match?(/\A(?u:\w)\w\z/)", "false"),
        (r"'éa'.match?(/\A(?u:\w)\w\z/)", "true"),
        (r"'é'.match?(/(?u)[^\W]/)", "true"),
        (r"'é'.match?(/\A[[:alpha:]]\z/)", "true"),
        (r"'é'.match?(/(?a)\A[[:alpha:]]\z/)", "false"),
        (r"'a'.match?(/(?a)\A[[:alpha:]]\z/)", "true"),
        (r"'٣'.match?(/\A\d\z/)", "false"),
        (r"'٣'.match?(/(?u)\A\d\z/)", "true"),
    ]);
}

#[test]
fn control_characters_have_names() {
    expect(&[
        (r#""\x01" =~ /\ca/"#, "0"),
        (r#""\x01" =~ /\C-a/"#, "0"),
        (r#""\x7f" =~ /\C-?/"#, "0"),
        (r#""\x1c" =~ /\C-\\/"#, "0"),
        (r#""\x01" =~ /[\C-a-\C-c]/"#, "0"),
        (r#""ø" =~ /\M-x/"#, "0"),
        (r"Regexp.new('\C') rescue 1", "1"),
        (r"Regexp.new('\M-') rescue 1", "1"),
        (r"Regexp.new('\c' * 9999 + 'a') rescue 1", "1"),
    ]);
}

#[test]
fn a_search_that_fails_raises_in_match_p() {
    expect(&[
        (r"(/(a|a)*b\1c/.match?('a' * 40); 0) rescue 1", "1"),
        (r"('a' * 40).match?(/(a|a)*b\1c/) rescue 1", "1"),
        (r"/a/.match?(5) rescue 1", "1"),
        (r"/a/.match?('a', a: 1) rescue 1", "1"),
        (r"/a/.match?(:a)", "true"),
        (r"/a/.match?('ba', 1)", "true"),
        (r"$~ = nil; /a/.match?('a'); $~", "nil"),
        (r"Regexp.compile('a', 'i').equal?(/a/i)", "true"),
        (r"/a/.equal?(/a/i)", "false"),
    ]);
}

#[test]
fn a_pattern_that_cannot_be_compiled_raises() {
    let vm = vm();
    for text in [
        "Regexp.new('(')",
        "Regexp.new('[a')",
        "Regexp.new('a)')",
        "Regexp.new('*')",
        "Regexp.new('[b-a]')",
        r"Regexp.new('\p{Nothing}')",
        r"Regexp.new('\1')",
        "Regexp.new('(?i)' * 20000)",
        // Patterns of Ruby that the engine does not support, as docs/differences.md says.
        r"Regexp.new('\A(?<p>|.|(?:(?<c>.)\g<p>\k<c+0>))\z')",
        r"Regexp.new('(?<a>(.)\g<a>?\k<a>)')",
        r"Regexp.new('(?~a(?~b))')",
        r"Regexp.new('\X')",
        r"Regexp.new('\p{In_Basic_Latin}')",
        r"Regexp.new('\xff')",
    ] {
        let got = evaluate(&vm, text);
        assert!(
            got.contains("is an invalid regular expression because")
                && got.ends_with("(RegexpError)"),
            "{text} gave {got}"
        );
    }
}

#[test]
fn a_pattern_that_is_refused_says_why() {
    let vm = vm();
    for (text, reason) in [
        (
            r"Regexp.new('[z-a]')",
            "invalid character class range, the start must be <= the end",
        ),
        (r"Regexp.new('\p{Foo}')", "Unicode property not found"),
    ] {
        let got = evaluate(&vm, text);
        assert!(got.contains(reason), "{text} gave {got}");
    }
}

#[test]
fn what_is_no_pattern_is_called_as_ruby_calls_it() {
    expect(&[
        (
            "'a'.match(nil)",
            "raised wrong argument type nil (expected Regexp) (TypeError)",
        ),
        (
            "/a/.match?(1)",
            "raised no implicit conversion of Integer into String (TypeError)",
        ),
        (
            "'a'.gsub(/a/, nil)",
            "raised no implicit conversion of nil into String (TypeError)",
        ),
        ("'aa' =~ /a/.dup", "0"),
        (
            "MatchData.new",
            "raised uninitialized MatchData (TypeError)",
        ),
    ]);
}

#[test]
fn of_groups_with_the_same_name_the_last_that_matched_counts() {
    expect(&[
        (r"'b'.match(/(?<x>a)|(?<x>b)/)[:x]", r#""b""#),
        (r"'a'.match(/(?<x>a)|(?<x>b)/)[:x]", r#""a""#),
        (r"'b'[/(?<x>a)|(?<x>b)/, 'x']", r#""b""#),
        (r"'foo'.match(/(?<a>f)(?<a>o)/)[:a]", r#""o""#),
        (r"'ab'.gsub(/(?<x>a)|(?<x>b)/, '[\k<x>]')", r#""[a][b]""#),
        (r"'c'.match(/(?<x>a)|(?<x>b)|c/)[:x]", "nil"),
    ]);
}

/// With a check of the whole text for each match, each of these would take minutes. The Arrays have less than 131,072 elements, the maximum in
/// Debian's mruby 3.3 and 4.0.
#[test]
fn long_texts_take_linear_time() {
    expect(&[
        (
            r#"$text = "a bcdefg\r\n" * 120_000 + 'é'; $text.bytesize"#,
            "1200002",
        ),
        (r"$text.gsub(/\r\n/, '').bytesize", "960002"),
        (r"$text.gsub(/\r\n/) { '' }.bytesize", "960002"),
        (r"$text.scan(/a/).size", "120000"),
        (r"n = 0; $text.scan(/a/) { n += 1 }; n", "120000"),
        (r"$text.split(/\r\n/).size", "120001"),
    ]);
}

#[test]
fn searches_in_native_code_are_interrupted() {
    let vm = vm_with_time(20);
    for text in [
        "('a' * 10_000_000).gsub(/a/, 'b').size",
        "('a' * 10_000_000).scan(/a/).size",
        "('a' * 10_000_000).split(/a/).size",
    ] {
        let got = evaluate(&vm, text);
        assert!(got.contains("(H2O::TimeLimitError)"), "{text}: {got}");
    }
}

#[test]
fn a_catastrophic_pattern_ends() {
    let vm = vm();
    assert_eq!(evaluate(&vm, r"('a' * 50000).match?(/\A(a+)+\z/)"), "true");
    assert_eq!(
        evaluate(&vm, r"('a' * 60 + 'b').match?(/\A(a|a)+(?<!b)\z/)"),
        "raised the search needs too many steps (RegexpError)"
    );
    assert_eq!(evaluate(&vm, "1 + 1"), "2");
}

#[test]
fn a_block_of_gsub_can_wait() {
    let vm = vm();
    assert_eq!(
        evaluate(&vm, "$done = 'ab'.gsub(/./) { |m| pause; m.upcase }"),
        ""
    );
    let waiting = crate::tests::resume_all(&vm);
    assert_eq!(waiting, 2, "the script waits once per match");
    assert_eq!(evaluate(&vm, "$done"), r#""AB""#);
}

#[test]
fn patterns_made_at_run_time_do_not_pile_up() {
    let vm = vm();
    let kept = || {
        evaluate(&vm, "2000.times { |i| /a#{i}/.match?('a5') }");
        vm.kept_values()
    };
    let first = kept();
    assert!(first < 2000, "{first} patterns are kept");
    assert!(kept() < 2000);
}
