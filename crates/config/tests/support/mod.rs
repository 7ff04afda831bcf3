//! Helpers of tests: load configurations from memory, and format nodes on one line.

#![allow(dead_code, reason = "each test file uses a part of this module")]

use h2o_config::{Error, Memory, Node, Value, load};

/// Formats a node as `{key: value}` or `[item]`. Scalars are not quoted, except the empty one, which is `''`.
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

/// Loads a configuration from files in memory: the first file is the configuration, which may include the others.
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

/// Loads a configuration from files in memory. Returns the tree or the error as text.
pub(crate) fn shown(files: &[(&str, &str)]) -> String {
    load_files(files).map_or_else(|error| error.to_string(), |node| show(&node))
}
