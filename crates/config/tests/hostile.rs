//! Tests with hostile configurations, which try to exhaust the stack, the memory or the time of the program that loads
//! them.

mod support;

use std::fmt::Write;

use h2o_config::{Memory, load};
use support::{load_files, shown};

#[track_caller]
fn refused(text: &str, problem: &str) {
    let error = shown(&[("f", text)]);
    assert!(
        error.contains(problem),
        "{}",
        &error[..error.len().min(300)]
    );
}

#[test]
fn nesting_is_limited_at_its_value() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(load_files(&[("f", &nested(100))]).is_ok());
    refused(
        &nested(101),
        "sequences and mappings are nested deeper than 100 levels (column 101)",
    );
    refused(&"[".repeat(1_000_000), "nested deeper");
    refused(&"[\n".repeat(100_000), "nested deeper");
    refused(&"- ".repeat(100_000), "nested deeper");
    refused(&"? ".repeat(100_000), "nested deeper");
    refused(&"{a: ".repeat(100_000), "nested deeper");
}

#[test]
fn aliases_cannot_nest_deeper_than_brackets() {
    let chain = |length: usize, forward: bool| {
        let mut lines: Vec<_> = (1..length)
            .map(|i| format!("- &a{i} [*a{}]", i - 1))
            .collect();
        lines.insert(0, "- &a0 []".to_owned());
        if forward {
            lines.reverse();
        }
        lines.join("\n")
    };
    assert!(load_files(&[("f", &chain(99, false))]).is_ok());
    refused(&chain(100, false), "nested deeper");
    refused(&chain(50_000, false), "nested deeper");
    refused(&chain(50_000, true), "nested deeper");
}

#[test]
fn a_long_chain_of_merges_is_not_deep() {
    let mut text = String::from("m0: &m0 {a: 1}\n");
    for i in 1..1000 {
        let _ = writeln!(text, "m{i}: &m{i} {{<<: *m{}}}", i - 1);
    }
    assert!(load_files(&[("f", &text)]).is_ok());
    // In reverse order each alias is before its anchor, so that resolving an alias recurses into the next one.
    let forward: String = text.lines().rev().flat_map(|line| [line, "\n"]).collect();
    refused(&forward, "nested deeper");
}

#[test]
fn included_files_count_towards_the_depth() {
    let deep = "[".repeat(60) + "!file v" + &"]".repeat(60);
    let inner = "[".repeat(60) + &"]".repeat(60);
    let error = shown(&[("f", &deep), ("v", &inner)]);
    assert!(error.contains("nested deeper"), "{error}");
    let chain: Vec<_> = (0..20)
        .map(|i| (format!("f{i}"), format!("!file f{}", i + 1)))
        .collect();
    let error = shown(
        &chain
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect::<Vec<_>>(),
    );
    assert!(
        error.contains("configuration file f17: files are included more than 16 levels deep"),
        "{error}"
    );
}

#[test]
fn aliases_cannot_multiply_without_end() {
    let laughs = |opening: &str, closing: &str, item: &str| {
        let mut text = format!("- &a0 {opening}{closing}\n");
        for i in 1..30 {
            let items = vec![format!("{item}*a{}", i - 1); 10].join(", ");
            let _ = writeln!(text, "- &a{i} {opening}{items}{closing}");
        }
        text
    };
    refused(
        &laughs("[", "]", ""),
        "aliases expand to more than 10000000 nodes",
    );
    refused(
        &laughs("{", "}", "k: "),
        "aliases expand to more than 10000000 nodes",
    );
    let mut merges = String::from("- &a0 {k: v}\n");
    for i in 1..30 {
        let keys = vec![format!("<<: *a{}", i - 1); 10].join(", ");
        let _ = writeln!(merges, "- &a{i} {{{keys}}}");
    }
    // A merge keeps only one entry of each name, so the merged mappings stay small; the aliases exceed the limit of nodes.
    refused(&merges, "aliases expand");
    let many: String = (0..3000).map(|i| format!("k{i}: v, ")).collect();
    let mut merges = format!("- &a {{{many}}}\n");
    merges.push_str(&"- {<<: *a}\n".repeat(400));
    refused(
        &merges,
        "merge keys (`<<`) and included files copy more than 1048576 entries",
    );
}

#[test]
fn long_words_and_many_names_are_read_in_time() {
    let long = "x".repeat(1_000_000);
    assert!(load_files(&[("f", &format!("a: {long}"))]).is_ok());
    refused(
        &format!("- &{long} a\n- *{long}y"),
        "could not resolve the alias (column",
    );
    let mut text = String::new();
    for i in 0..50_000 {
        let _ = writeln!(text, "- &a{i} x\n- *a{i}");
    }
    assert!(load_files(&[("f", &text)]).is_ok());
}

#[test]
fn tag_directives_are_limited_at_their_value() {
    let many = |count: usize| {
        let mut text: String = (0..count).map(|i| format!("%TAG !t{i}! x\n")).collect();
        text.push_str("--- a");
        text
    };
    assert!(load_files(&[("f", &many(1000))]).is_ok());
    refused(&many(1001), "more than 1000 %TAG directives");
    let wide: Vec<u8> = format!("\u{feff}{}", many(1001))
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert!(load("f", &Memory::new().file("f", wide)).is_err());
}

/// Makes random changes to a configuration that uses every feature. Loading it may succeed or fail, but must end.
#[test]
fn damaged_configurations_are_answered() {
    const TEXT: &str = "%YAML 1.2\n---\nstash: &tls\n  key-file: !env K\nhosts: !file v\nlisten: {<<: *tls, port: 1}\n\
                        mruby.handler: |\n  x = 1\nlist: &l [*tls, *n, \"a\\x41\", 'b', !file 'd/*']\n<<: [*tls, {a: b}]\nn: &n x\n";
    const PIECES: [&str; 16] = [
        "*l", "&l ", "<<: ", "!file ", "f\n", "[", "]", "{", "}", "\n", "- ", "? ", "\u{0}", "é",
        "%TAG ! a", "---",
    ];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for _ in 0..20_000 {
        let mut text = TEXT.as_bytes().to_vec();
        for _ in 0..=random(4) {
            let at = random(text.len() + 1);
            let end = (at + random(8)).min(text.len());
            text.splice(at..end, PIECES[random(PIECES.len())].bytes());
        }
        let source = Memory::new()
            .file("f", text)
            .file("v", "a: &n 1\nb: *n")
            .file("d/x", "[!file v]");
        if let Ok(node) = load("f", &source) {
            let _ = support::show(&node);
        }
    }
}
