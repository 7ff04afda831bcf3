//! Tests of `require`, and of the scripts that come with the program.

use std::fs;

use crate::tests::{evaluate, resume_all, vm};

/// Evaluates the scripts one after another in one VM, and compares the results.
fn check(cases: &[(&str, &str)]) {
    let vm = vm();
    for (script, want) in cases {
        assert_eq!(evaluate(&vm, script), *want, "{script}");
    }
}

#[test]
fn a_file_is_required_once_and_loaded_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().canonicalize().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    write(
        "counts.rb",
        "local = 1; $count = ($count || 0) + 1; $self = self.to_s",
    );
    write(
        "again.rb",
        "$again = require('again'); def from_again; 5; end",
    );
    write("raises.rb", "raise 'boom'");
    write("wrong.rb", "1 +\n )");
    write("waits.rb", "pause; $waited = true");
    let vm = vm();
    let dir = dir.display();
    for (script, want) in [
        (
            &*format!("$LOAD_PATH.unshift('{dir}'); require 'counts'"),
            "true",
        ),
        ("require 'counts.rb'", "false"),
        (&format!("require '{dir}/counts'"), "false"),
        (
            "[$count, $self, (local rescue 'none')]",
            r#"[1, "main", "none"]"#,
        ),
        (
            &format!("load '{dir}/counts.rb'; load '{dir}/counts.rb'; $count"),
            "3",
        ),
        ("[require('again'), $again, from_again]", "[true, false, 5]"),
        ("require 'raises'", "raised boom (RuntimeError)"),
        ("require 'raises'", "raised boom (RuntimeError)"),
        (
            &format!(
                "begin; require 'raises'; rescue => e; e.backtrace[0].start_with?('{dir}/raises.rb:1'); end"
            ),
            "true",
        ),
        (
            "begin; require 'wrong'; rescue SyntaxError => e; e.message.include?('wrong.rb:2: ') end",
            "true",
        ),
        (
            "require 'nowhere'",
            "raised cannot load such file -- nowhere (LoadError)",
        ),
        (
            "require 'counts.py'",
            "raised cannot load such file -- counts.py (LoadError)",
        ),
        (
            "load 'nowhere.rb'",
            "raised File not found -- nowhere.rb (LoadError)",
        ),
        (
            "begin; require 'nowhere'; rescue; 1; end",
            "raised cannot load such file -- nowhere (LoadError)",
        ),
        (
            "require 5",
            "raised Integer cannot be converted to String (TypeError)",
        ),
        ("LoadError.superclass", "ScriptError"),
        ("$\".size", "5"),
    ] {
        assert_eq!(evaluate(&vm, script), want, "{script}");
    }
    assert_eq!(evaluate(&vm, "require 'waits'"), "");
    assert_eq!(resume_all(&vm), 1);
    assert_eq!(
        evaluate(&vm, "[$waited, require('waits')]"),
        "[true, false]"
    );
}

#[test]
fn shipped_scripts_are_found_by_both_names() {
    check(&[
        ("$H2O_ROOT", r#""/usr/local""#),
        ("$LOAD_PATH", r#"[".", "/usr/local/share/h2o/mruby"]"#),
        ("require 'acl.rb'", "false"),
        (
            "require \"#{$H2O_ROOT}/share/h2o/mruby/lru_cache.rb\"",
            "true",
        ),
        ("require 'lru_cache.rb'", "false"),
        (
            "%w[dos_detector htpasswd trie_addr].map { |name| require name }",
            "[true, true, true]",
        ),
    ]);
}

#[test]
fn the_cache_drops_what_was_not_used_for_the_longest_time() {
    check(&[
        (
            "require 'lru_cache.rb'; $c = LRUCache.new(2); $c.set(:a, 1)",
            "1",
        ),
        (
            "$c.set(:b, 2); $c.get(:a); $c.set(:c, nil); [:a, :b, :c].map { |k| $c.get(k) }",
            "[1, nil, nil]",
        ),
        (
            "$c.set(:d, 4); [:a, :b, :c, :d].map { |k| $c.get(k) }",
            "[nil, nil, nil, 4]",
        ),
        ("c = LRUCache.new(0); c.set(1, 2); c.get(1)", "nil"),
        (
            "LRUCache.new(-1)",
            "raised capacity must not be negative (RuntimeError)",
        ),
    ]);
}

#[test]
fn addresses_are_found_in_their_blocks() {
    check(&[
        (
            "require 'trie_addr.rb'; $t = TrieAddr.new.add(['10.0.0.0/8', '192.168.1.0/24', '1.2.3.4', '172.16.0.0/12']); $t.class",
            "TrieAddr",
        ),
        (
            "%w[10.0.0.0 10.255.255.255 192.168.1.77 1.2.3.4 172.31.0.1].map { |a| $t.match?(a) }",
            "[true, true, true, true, true]",
        ),
        (
            "%w[11.0.0.0 192.168.2.1 1.2.3.5 172.32.0.1 ::1 010.0.0.1 10.0.0 10.0.0.256 10.0.0.x 10.0.0.1.].map { |a| $t.match?(a) }.uniq",
            "[false]",
        ),
        ("$t.add('10.1.0.0/16').match?('10.2.0.1')", "true"),
        ("TrieAddr.new.add('0.0.0.0/0').match?('8.8.8.8')", "true"),
        ("TrieAddr.new.match?(nil)", "false"),
        // Lines of a file have line ends, blanks, remarks and zeros before numbers.
        (
            r##"["10.0.0.0/8\n", "192.0.2.7\r\n", " 10.0.0.0/8", "10.0.0.0/ 8", "010.000.0.0/08", "10.0.0.0/8 # office"].map { |line| t = TrieAddr.new.add(line); [t.match?("10.1.2.3"), t.match?("192.0.2.7")] }"##,
            "[[true, false], [false, true], [true, false], [true, false], [true, false], [true, false]]",
        ),
        (
            "$t.add('1.2.3.256')",
            "raised invalid IPv4 address: 1.2.3.256 (ArgumentError)",
        ),
        (
            "$t.add('1.2..3')",
            "raised invalid IPv4 address: 1.2..3 (ArgumentError)",
        ),
        (
            "$t.add('a.b.c.d')",
            "raised invalid IPv4 address: a.b.c.d (ArgumentError)",
        ),
        (
            "$t.add('::1/128')",
            "raised invalid IPv4 address: ::1/128 (ArgumentError)",
        ),
        (
            "$t.add('1.2.3/8')",
            "raised invalid IPv4 address: 1.2.3/8 (ArgumentError)",
        ),
        (
            "$t.add('1.2.3.4/33')",
            "raised invalid IPv4 address: 1.2.3.4/33 (ArgumentError)",
        ),
    ]);
}

#[test]
fn clients_with_too_many_requests_are_detected() {
    check(&[
        (
            "require 'dos_detector.rb'; $s = DoSDetector::CountingStrategy.new(:period => 10, :threshold => 3, :ban_period => 20); $c = {}; nil",
            "nil",
        ),
        (
            "3.times.map { |i| $s.detect?($c, 100 + i, {})[0] }",
            "[false, false, true]",
        ),
        (
            "$s.detect?($c, 122, {})",
            "[true, {:count=>1, :banned_until=>122}]",
        ),
        // The client's ban has ended. Its count is 1 again: it decreases with each period (of 10 seconds) that begins.
        (
            "$s.detect?($c, 143, {})",
            "[false, {:count=>1, :banned_until=>122}]",
        ),
        (
            "$d = DoSDetector.new(:strategy => $s, :cache_size => 2); def ask(env) $d.call(env) end; 4.times.map { ask('REMOTE_ADDR' => '1.1.1.1')[0] }",
            "[399, 399, 403, 403]",
        ),
        (
            "ask('REMOTE_ADDR' => '2.2.2.2', 'HTTP_X_FORWARDED_FOR' => '1.1.1.1, 3.3.3.3')",
            r#"[403, {"Content-Type"=>"text/plain"}, ["Forbidden"]]"#,
        ),
        ("ask('REMOTE_ADDR' => '2.2.2.2')[0]", "399"),
        (
            "$d = DoSDetector.new(:forwarded => false, :strategy => $s, :callback => proc { |env, detected, ip, extra| [detected, ip, extra] }); ask('REMOTE_ADDR' => '5.5.5.5', 'HTTP_X_FORWARDED_FOR' => '1.1.1.1')",
            r#"[false, "5.5.5.5", {:count=>1, :banned_until=>0}]"#,
        ),
        (
            "call = DoSDetector.fallthrough_callback; [call.call({}, false, '1.1.1.1'), call.call({}, true, '1.1.1.1', {:count => 3, :banned_until => 9})]",
            r#"[[399, {}, []], [399, {"x-fallthru-set-dos-count"=>"3", "x-fallthru-set-dos-banned-until"=>"9", "x-fallthru-set-dos-ip"=>"1.1.1.1"}, []]]"#,
        ),
        (
            "DoSDetector.new(:strategy => nil)",
            "raised strategy must not be nil (RuntimeError)",
        ),
        (
            "DoSDetector.new(:callback => nil)",
            "raised callback must not be nil (RuntimeError)",
        ),
        (
            "DoSDetector::CountingStrategy.new(:period => 0)",
            "raised period must be greater than zero (RuntimeError)",
        ),
        (
            "DoSDetector::CountingStrategy.new(:threshold => 0)",
            "raised threshold must be greater than zero (RuntimeError)",
        ),
        (
            "DoSDetector::CountingStrategy.new(:ban_period => -1)",
            "raised ban_period must not be negative (RuntimeError)",
        ),
    ]);
}

#[test]
fn passwords_are_checked_against_the_hashes_of_htpasswd() {
    // The hashes were made by `openssl passwd -apr1`.
    check(&[
        (
            "require 'htpasswd.rb'; Htpasswd.crypt_md5('secret', 'abcdefgh')",
            r#""$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/""#,
        ),
        (
            "Htpasswd.validate('a longer password than sixteen octets', '$apr1$xy$VH1ahWB.kZg.TUyTC9ZzW1')",
            "true",
        ),
        (
            "Htpasswd.validate('', '$apr1$xy$VH1ahWB.kZg.TUyTC9ZzW1')",
            "false",
        ),
        (
            "Htpasswd.crypt_sha1('secret')",
            r#""{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=""#,
        ),
        (
            "Htpasswd.validate('wrong', '{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=')",
            "false",
        ),
        (
            "Htpasswd.validate('x', 'x')",
            "raised crypt-style password hash is not supported (RuntimeError)",
        ),
        (
            "Htpasswd.new('/f', 'r').call({'PATH_INFO' => '/a/.htpasswd'})[0]",
            "404",
        ),
    ]);
}

#[test]
fn digests_are_those_of_their_standards() {
    check(&[
        (
            "Digest::MD5.hexdigest('abc')",
            r#""900150983cd24fb0d6963f7d28e17f72""#,
        ),
        (
            "Digest::SHA1.new.update('a').<<('bc').to_s",
            r#""a9993e364706816aba3e25717850c26c9cd0d89d""#,
        ),
        (
            "Digest::SHA256.hexdigest('abc')[0, 16]",
            r#""ba7816bf8f01cfea""#,
        ),
        (
            "Digest::SHA512.hexdigest('abc')[0, 16]",
            r#""ddaf35a193617aba""#,
        ),
        (
            "d = Digest::SHA256.new << 'a'; e = d.dup << 'b'; [d == Digest::SHA256.new.update('a'), d == e, e.digest! == e.digest, d.length, d.block_length]",
            "[true, false, false, 32, 64]",
        ),
        (
            "Digest::MD5.file(__FILE__)",
            "raised No such file or directory - open test.rb (Errno::ENOENT)",
        ),
        // The examples of RFC 2202 and RFC 4231, test case 2.
        (
            "Digest::HMAC.hexdigest('what do ya want for nothing?', 'Jefe', Digest::MD5)",
            r#""750c783e6ab0b503eaa86e310a5db738""#,
        ),
        (
            "Digest::HMAC.new('Jefe', Digest::SHA256).update('what do ya want for nothing?').hexdigest[0, 16]",
            r#""5bdcc146bf60754e""#,
        ),
    ]);
}
