//! For tests: loads configurations from memory, and writes nodes on one line.

#![allow(dead_code, reason = "each test file uses a part of it")]

use h2o_config::{Error, Memory, Node, Value, load};

/// Writes a node as `{key: value}` or `[item]`; scalars are not quoted, except the empty one, which is `''`.
pub(crate) fn show(node: &Node) -> String {
    match &node.value {
        Value::Scalar(text) if text.is_empty() => "''".to_owned(),
        Value::Scalar(text) => text.escape_debug().to_string(),
        Value::Sequence(items) => format!(
            "[{}]",
            items.iter().map(show).collect::<Vec<_>>().join(", ")
        ),
        Value::Mapping(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", show(key), show(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Loads a configuration from files in memory: the first is the configuration, which may include the others.
pub(crate) fn load_files(files: &[(&str, &str)]) -> Result<Node, Error> {
    let source = Memory::new()
        .variable("PORT", "8080")
        .variable("NAME", "listen");
    load(
        files[0].0,
        &files
            .iter()
            .fold(source, |source, (path, text)| source.file(*path, *text)),
    )
}

/// The node or the error as text.
pub(crate) fn shown(files: &[(&str, &str)]) -> String {
    load_files(files).map_or_else(|error| error.to_string(), |node| show(&node))
}
