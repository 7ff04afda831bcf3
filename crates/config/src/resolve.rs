//! Resolves the aliases and merge keys of a configuration file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::document::{Document, ResolvedNode};
use crate::error::Error;
use crate::merge::{MAX_MERGED, MergeError, is_merge_key, merge};
use crate::nearest::nearest;
use crate::node::{Node, Value};
use crate::pos::Pos;
use crate::tree::{MAX_DEPTH, Tree, TreeContent};

/// Maximum number of nodes of a configuration, where each alias counts as many nodes as it refers to. The nodes of aliases
/// are shared, not copied, but code that walks over the tree visits them each time.
const MAX_NODES: usize = 10_000_000;

/// Resolves the aliases and merge keys of a file whose tags have been resolved. `merged` counts the entries that merge keys
/// copied, over all files.
pub(crate) fn resolve(
    tree: &Tree,
    included_from: Option<&Pos>,
    merged: &mut usize,
) -> Result<Document, Error> {
    let mut resolver = Resolver {
        anchors: HashMap::new(),
        depth: 0,
        included_from,
        merged,
    };
    resolver.collect(tree);
    let root = resolver.resolve(tree)?;
    let anchors = resolver
        .anchors
        .into_iter()
        .filter_map(|(name, anchor)| match anchor {
            Anchor::Done(_, resolved) => Some((name, resolved)),
            Anchor::Waiting(_) | Anchor::Active(_) => None,
        });
    Ok(Document {
        root,
        anchors: anchors.collect(),
    })
}

struct Resolver<'a> {
    anchors: HashMap<Arc<str>, Anchor<'a>>,
    /// Current depth of the recursion, which also follows aliases.
    depth: usize,
    included_from: Option<&'a Pos>,
    merged: &'a mut usize,
}

/// How far the first definition of an anchor has been resolved. Its `Tree` is the node of that definition, and
/// distinguishes it from later definitions of the same name. Anchors of included files have none, since their nodes are
/// resolved already.
#[derive(Clone)]
enum Anchor<'a> {
    Waiting(&'a Tree),
    /// The anchor's node is being resolved. An alias to it that is found now is within the node itself, which is an error.
    Active(&'a Tree),
    Done(Option<&'a Tree>, ResolvedNode),
}

impl<'a> Resolver<'a> {
    /// Records the first definition of each anchor in the order of the file.
    fn collect(&mut self, tree: &'a Tree) {
        if let Some(name) = &tree.anchor {
            self.anchors
                .entry(name.clone())
                .or_insert(Anchor::Waiting(tree));
        }
        match &tree.content {
            TreeContent::Scalar(_) | TreeContent::Alias(_) => {}
            TreeContent::Sequence(items) => items.iter().for_each(|item| self.collect(item)),
            TreeContent::Mapping(entries) => entries.iter().for_each(|(key, value)| {
                self.collect(key);
                self.collect(value);
            }),
            TreeContent::Included(document) => {
                for (name, resolved) in &document.anchors {
                    if let Entry::Vacant(vacant) = self.anchors.entry(name.clone()) {
                        vacant.insert(Anchor::Done(None, resolved.clone()));
                    }
                }
            }
        }
    }

    fn resolve(&mut self, tree: &'a Tree) -> Result<ResolvedNode, Error> {
        let Some(name) = &tree.anchor else {
            return self.resolve_content(tree);
        };
        match self.anchors.get(name).cloned() {
            Some(Anchor::Waiting(first)) if std::ptr::eq(first, tree) => {
                self.resolve_anchor(name, tree)
            }
            Some(Anchor::Active(first)) if std::ptr::eq(first, tree) => {
                Err(self.error(tree, "the alias contains itself"))
            }
            Some(Anchor::Done(Some(first), resolved)) if std::ptr::eq(first, tree) => Ok(resolved),
            // This node is not the first definition of the anchor's name: aliases refer to the first one.
            Some(Anchor::Waiting(_) | Anchor::Active(_) | Anchor::Done(..)) | None => {
                self.resolve_content(tree)
            }
        }
    }

    fn resolve_anchor(&mut self, name: &Arc<str>, tree: &'a Tree) -> Result<ResolvedNode, Error> {
        self.anchors.insert(name.clone(), Anchor::Active(tree));
        let resolved = self.resolve_content(tree)?;
        self.anchors
            .insert(name.clone(), Anchor::Done(Some(tree), resolved.clone()));
        Ok(resolved)
    }

    fn resolve_alias(&mut self, alias: &'a Tree, name: &Arc<str>) -> Result<ResolvedNode, Error> {
        match self.anchors.get(name).cloned() {
            Some(Anchor::Done(_, resolved)) => Ok(resolved),
            Some(Anchor::Waiting(tree)) => self.resolve_anchor(name, tree),
            Some(Anchor::Active(_)) => {
                Err(self.error(alias, "the alias refers to a node that contains it"))
            }
            None => {
                let meant = nearest(name, self.anchors.keys().map(AsRef::as_ref));
                let meant = meant.map_or_else(
                    || format!("write `&{name}` before the value it stands for"),
                    |meant| format!("did you mean `*{meant}`?"),
                );
                let error = self.error(alias, "could not resolve the alias");
                Err(error.with_hint(format!("there is no anchor `&{name}`; {meant}")))
            }
        }
    }

    fn resolve_content(&mut self, tree: &'a Tree) -> Result<ResolvedNode, Error> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error(
                tree,
                format!("sequences and mappings are nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        self.depth += 1;
        let (value, depth, size) = match &tree.content {
            TreeContent::Scalar(text) => (Value::Scalar(text.clone()), 0, 1),
            TreeContent::Sequence(items) => self.resolve_sequence(items)?,
            TreeContent::Mapping(entries) => self.resolve_mapping(entries)?,
            TreeContent::Alias(name) => {
                let resolved = self.resolve_alias(tree, name)?;
                self.depth -= 1;
                return Ok(resolved);
            }
            TreeContent::Included(document) => {
                self.depth -= 1;
                return Ok(document.root.clone());
            }
        };
        self.depth -= 1;
        if depth > MAX_DEPTH {
            return Err(self.error(
                tree,
                format!("sequences and mappings are nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        if size > MAX_NODES {
            return Err(self.error(
                tree,
                format!("aliases expand to more than {MAX_NODES} nodes"),
            ));
        }
        Ok(ResolvedNode {
            node: Node {
                value,
                pos: tree.pos.clone(),
            },
            depth,
            size,
        })
    }

    fn resolve_sequence(&mut self, items: &'a [Tree]) -> Result<(Value, usize, usize), Error> {
        let (mut depth, mut size) = (0, 1_usize);
        let mut nodes = Vec::with_capacity(items.len());
        for item in items {
            let item = self.resolve(item)?;
            depth = depth.max(item.depth);
            size = size.saturating_add(item.size);
            nodes.push(item.node);
        }
        Ok((Value::Sequence(nodes.into()), depth + 1, size))
    }

    fn resolve_mapping(
        &mut self,
        entries: &'a [(Tree, Tree)],
    ) -> Result<(Value, usize, usize), Error> {
        let (mut depth, mut size) = (1, 1_usize);
        let mut merges = false;
        let mut nodes = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.resolve(key)?, self.resolve(value)?);
            // The value of a `<<` key is not one level deeper, since its entries become entries of this mapping.
            let below = if is_merge_key(&key.node) { 0 } else { 1 };
            merges |= below == 0;
            depth = depth.max(value.depth + below).max(key.depth + 1);
            size = size.saturating_add(key.size).saturating_add(value.size);
            nodes.push((key.node, value.node));
        }
        if merges {
            nodes = merge(nodes, self.merged).map_err(|error| self.merge_error(entries, &error))?;
        }
        Ok((Value::Mapping(nodes.into()), depth, size))
    }

    fn merge_error(&self, entries: &'a [(Tree, Tree)], error: &MergeError) -> Error {
        match *error {
            MergeError::NotMappings(index) => self.error(
                &entries[index].1,
                "value of the merge key MUST be a mapping or a sequence of mappings",
            ),
            MergeError::TooMany(index) => self.error(
                &entries[index].1,
                format!("merge keys (`<<`) and included files copy more than {MAX_MERGED} entries"),
            ),
        }
    }

    fn error(&self, tree: &Tree, message: impl Into<String>) -> Error {
        Error::load(tree.pos.clone(), self.included_from.cloned(), message)
    }
}
