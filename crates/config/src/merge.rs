//! YAML merge keys, such as `<<: *defaults`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::node::{Node, Value};

/// The key whose value is merged into the mapping that contains the key.
pub(crate) const MERGE_KEY: &str = "<<";

/// Maximum number of entries that all merge keys of a configuration may copy. Without a limit, a chain of merges could
/// multiply the entries.
pub(crate) const MAX_MERGED: usize = 1 << 20;

/// Why the value of a `<<` cannot be merged. The number is the index of the `<<` entry in its mapping.
#[derive(Debug)]
pub(crate) enum MergeError {
    NotMappings(usize),
    TooMany(usize),
}

/// Replaces each `<<` entry of a mapping by the entries of the mapping to which it refers. `merged` counts the copied
/// entries over all calls.
///
/// A key *after* the `<<` overrides a merged entry of the same name; a key before it does not. Of several mappings in the
/// value of one `<<`, an earlier one overrides a later one. Duplicate keys within one of the mappings are kept.
pub(crate) fn merge(
    entries: Vec<(Node, Node)>,
    merged: &mut usize,
) -> Result<Vec<(Node, Node)>, MergeError> {
    let mut taken: HashSet<Arc<str>> = HashSet::new();
    let mut backwards = Vec::with_capacity(entries.len());
    for (index, (key, value)) in entries.into_iter().enumerate().rev() {
        if !is_merge_key(&key) {
            taken.extend(name(&key));
            backwards.push((key, value));
            continue;
        }
        let mut block = Vec::new();
        for source in sources(&value).ok_or(MergeError::NotMappings(index))? {
            *merged = merged.saturating_add(source.len());
            if *merged > MAX_MERGED {
                return Err(MergeError::TooMany(index));
            }
            let before = block.len();
            block.extend(
                source
                    .iter()
                    .filter(|(key, _)| name(key).is_none_or(|name| !taken.contains(&name)))
                    .cloned(),
            );
            taken.extend(block[before..].iter().filter_map(|(key, _)| name(key)));
        }
        backwards.extend(block.into_iter().rev());
    }
    backwards.reverse();
    Ok(backwards)
}

pub(crate) fn is_merge_key(key: &Node) -> bool {
    key.as_str() == Some(MERGE_KEY)
}

/// The mappings in the value of a `<<`; `None` if the value is anything else.
fn sources(value: &Node) -> Option<Vec<&[(Node, Node)]>> {
    value
        .as_sequence()
        .unwrap_or(std::slice::from_ref(value))
        .iter()
        .map(Node::as_mapping)
        .collect()
}

fn name(key: &Node) -> Option<Arc<str>> {
    match &key.value {
        Value::Scalar(text) => Some(text.clone()),
        Value::Sequence(_) | Value::Mapping(_) => None,
    }
}
