//! The YAML dialect of configurations: aliases, merge keys, includes.

use h2o_config::{Memory, Node, Value, load};

/// Number of nodes of a tree that are checked: a shared node may be reached in very many ways.
const MAX_NODES: usize = 20_000;

/// Loading twice gives the same tree, or the same error with a position.
///
/// # Panics
/// If an invariant does not hold.
pub fn configuration(input: &[u8]) {
    // The input can include itself (`h2o.conf`), and a file with the same content that is not yet being read (`other.conf`).
    let source = Memory::new()
        .file("h2o.conf", input)
        .file("other.conf", input)
        .file("tls.conf", "certificate-file: &cert a\nkey-file: b\n")
        .variable("PORT", "80");
    let lines = input.split(|&byte| byte == b'\n' || byte == b'\r').count();
    let first = load("h2o.conf", &source);
    let second = load("h2o.conf", &source);
    match (&first, &second) {
        (Ok(one), Ok(other)) => {
            let mut left = MAX_NODES;
            check(one, other, lines, 0, &mut left);
        }
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string());
            assert!(one.to_string().contains("line"), "{one}");
            if let Some(pos) = &one.pos {
                assert!(pos.line() >= 1 && pos.column() >= 1, "{one}");
            }
        }
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => {
            panic!("loading succeeded once and failed once: {error}")
        }
    }
}

fn check(one: &Node, other: &Node, lines: usize, depth: usize, left: &mut usize) {
    assert!(depth <= 1000, "the tree is nested deeper than allowed");
    if *left == 0 {
        return;
    }
    *left -= 1;
    assert_eq!(one.pos, other.pos);
    // Line and column are counted from 1, and may be one past the end of the file.
    let line = usize::try_from(one.pos.line()).unwrap_or(usize::MAX);
    assert!(
        (1..=lines.max(2) + 1).contains(&line),
        "a node has line {line} of {lines} lines"
    );
    match (&one.value, &other.value) {
        (Value::Scalar(one), Value::Scalar(other)) => assert_eq!(one, other),
        (Value::Sequence(one), Value::Sequence(other)) => {
            assert_eq!(one.len(), other.len());
            for (one, other) in one.iter().zip(other.iter()) {
                check(one, other, lines, depth + 1, left);
            }
        }
        (Value::Mapping(one), Value::Mapping(other)) => {
            assert_eq!(one.len(), other.len());
            for (one, other) in one.iter().zip(other.iter()) {
                assert_ne!(
                    one.0.as_str(),
                    Some("<<"),
                    "the loaded tree has an unresolved merge key"
                );
                check(&one.0, &other.0, lines, depth + 1, left);
                check(&one.1, &other.1, lines, depth + 1, left);
            }
        }
        _ => panic!("loading twice gave different trees"),
    }
}
