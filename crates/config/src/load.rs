//! Loading of a configuration: its file, the files that it includes, and the environment variables to which it refers.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::document::{Document, ResolvedNode};
use crate::error::Error;
use crate::merge::MAX_MERGED;
use crate::node::{Node, Value};
use crate::pos::Pos;
use crate::resolve::resolve;
use crate::source::Source;
use crate::tree::{Tag, Tree, TreeContent, parse};

/// Maximum depth of files that include files.
const MAX_INCLUDES: usize = 16;

/// Loads a configuration file and everything it includes. Only the first document of each file is read.
///
/// `!file PATH` is replaced by the contents of that file. If no such file exists and the path has `*`, `?` or `[`, it is a
/// pattern: all files that match it, in the order of their names, are joined to one mapping or one sequence; files without a
/// document add nothing, and if no file matches, the mapping is empty. `!env NAME` is replaced by the value of the variable.
/// Then aliases are resolved, wherever in the file their anchors are, then merge keys.
///
/// # Errors
/// The messages are `could not open configuration file PATH: REASON` and, for a mistake within a file, `failed to parse
/// configuration file F line N: PROBLEM`.
pub fn load(path: &str, source: &dyn Source) -> Result<Node, Error> {
    load_noting(path, source, &mut UnmatchedPatterns::default())
}

/// Loads a configuration like [`load`], and records the patterns of `!file` that matched no file.
///
/// # Errors
/// The errors are those of [`load`].
pub fn load_noting(
    path: &str,
    source: &dyn Source,
    unmatched: &mut UnmatchedPatterns,
) -> Result<Node, Error> {
    let mut loader = Loader {
        source,
        loaded: HashMap::new(),
        open: vec![path.to_owned()],
        merged: 0,
        unmatched,
    };
    let input = source
        .read(path)
        .map_err(|error| Error::new(could_not_open(path, &error)))?;
    match loader.document(path, &input, None)? {
        Some(document) => Ok(document.root.node),
        None => Err(no_document(path, None)),
    }
}

/// The patterns of `!file` that matched no file. That is not an error, but it explains why a mapping is empty.
#[derive(Debug, Default)]
pub struct UnmatchedPatterns(Vec<(Pos, Box<str>)>);

impl UnmatchedPatterns {
    /// Adds a hint to `error` if it is at the position of a `!file` whose pattern matched no file.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        let found = self
            .0
            .iter()
            .find(|(pos, _)| error.pos.as_ref() == Some(pos));
        match found {
            Some((_, pattern)) => error.with_hint(format!("no file matches `{pattern}`")),
            None => error,
        }
    }
}

struct Loader<'a> {
    source: &'a dyn Source,
    unmatched: &'a mut UnmatchedPatterns,
    /// For each path or pattern of a `!file` that was loaded, its document; `None` if the file has no document.
    loaded: HashMap<String, Option<Rc<Document>>>,
    /// The paths of the files that are being loaded; each file is included by the previous one.
    open: Vec<String>,
    /// Number of entries that were copied so far, by merge keys (`<<`) and by joining the files that match the pattern
    /// of a `!file`.
    merged: usize,
}

impl Loader<'_> {
    fn document(
        &mut self,
        path: &str,
        input: &[u8],
        included_from: Option<&Pos>,
    ) -> Result<Option<Document>, Error> {
        let file = Arc::from(path);
        let Some(mut tree) = parse(&file, input, included_from)? else {
            return Ok(None);
        };
        self.resolve_tags(&mut tree)?;
        resolve(&tree, included_from, &mut self.merged).map(Some)
    }

    fn resolve_tags(&mut self, tree: &mut Tree) -> Result<(), Error> {
        if let Some(tag) = tree.tag {
            return self.resolve_tag(tag, tree);
        }
        match &mut tree.content {
            TreeContent::Sequence(items) => items
                .iter_mut()
                .try_for_each(|item| self.resolve_tags(item)),
            TreeContent::Mapping(entries) => entries.iter_mut().try_for_each(|(key, value)| {
                self.resolve_tags(key)?;
                self.resolve_tags(value)
            }),
            TreeContent::Scalar(_) | TreeContent::Alias(_) | TreeContent::Included(_) => Ok(()),
        }
    }

    fn resolve_tag(&mut self, tag: Tag, tree: &mut Tree) -> Result<(), Error> {
        let TreeContent::Scalar(text) = &tree.content else {
            let cause = match tag {
                Tag::File => "!file must be followed by a path",
                Tag::Env => "!env must be followed by the name of a variable",
            };
            return Err(Error::tag(tree.pos.clone(), cause));
        };
        match tag {
            Tag::Env => {
                tree.content = TreeContent::Scalar(self.source.env(text).unwrap_or_default().into())
            }
            Tag::File => {
                let path = text.clone();
                let document = self
                    .include(&path, &tree.pos)?
                    .ok_or_else(|| no_document(&path, Some(&tree.pos)))?;
                tree.content = TreeContent::Included(document);
                tree.anchor = None;
            }
        }
        Ok(())
    }

    /// The document that replaces the `!file` at `pos`. Each file is loaded only once.
    fn include(&mut self, path: &str, pos: &Pos) -> Result<Option<Rc<Document>>, Error> {
        if let Some(document) = self.loaded.get(path) {
            return Ok(document.clone());
        }
        let refuse = |cause: String| Error::tag(pos.clone(), cause);
        if self.open.iter().any(|open| open == path) {
            return Err(refuse(format!("configuration file {path} includes itself")));
        }
        if self.open.len() > MAX_INCLUDES {
            return Err(refuse(format!(
                "could not open configuration file {path}: files are included more than {MAX_INCLUDES} levels deep"
            )));
        }
        self.open.push(path.to_owned());
        let document = match self.source.read(path) {
            Ok(input) => self.document(path, &input, Some(pos))?,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && path.contains(['*', '?', '[']) =>
            {
                Some(self.include_all(path, pos)?)
            }
            Err(error) => return Err(refuse(could_not_open(path, &error))),
        };
        self.open.pop();
        let document = document.map(Rc::new);
        self.loaded.insert(path.to_owned(), document.clone());
        Ok(document)
    }

    /// The contents of all files that match `pattern`, joined to one document.
    fn include_all(&mut self, pattern: &str, pos: &Pos) -> Result<Document, Error> {
        let mut paths = self
            .source
            .glob(pattern)
            .map_err(|error| Error::tag(pos.clone(), could_not_open(pattern, &error)))?;
        if paths.is_empty() {
            self.unmatched.0.push((pos.clone(), pattern.into()));
        }
        paths.sort();
        let mut documents = Vec::with_capacity(paths.len());
        for path in paths {
            documents.extend(self.include(&path, pos)?);
        }
        // Joining the files copies their entries; these copies count against the limit of entries that merge keys
        // (`<<`) may copy, too.
        let sizes = documents.iter().map(|document| document.root.size);
        self.merged = sizes.fold(self.merged, usize::saturating_add);
        if self.merged > MAX_MERGED {
            return Err(Error::tag(
                pos.clone(),
                format!("merge keys (`<<`) and included files copy more than {MAX_MERGED} entries"),
            ));
        }
        concatenate(&documents, pos).ok_or_else(|| {
            Error::tag(
                pos.clone(),
                format!("the files of {pattern} must all be mappings or all be sequences"),
            )
        })
    }
}

/// Joins documents into one: all mappings into a mapping, or all sequences into a sequence. `None` if the documents are
/// not all of one kind.
fn concatenate(documents: &[Rc<Document>], pos: &Pos) -> Option<Document> {
    let mappings: Option<Vec<_>> = documents
        .iter()
        .map(|document| document.root.node.as_mapping())
        .collect();
    let sequences: Option<Vec<_>> = documents
        .iter()
        .map(|document| document.root.node.as_sequence())
        .collect();
    let value = match (mappings, sequences) {
        (Some(mappings), _) => Value::Mapping(mappings.concat().into()),
        (None, Some(sequences)) => Value::Sequence(sequences.concat().into()),
        (None, None) => return None,
    };
    let pos = documents
        .first()
        .map_or(pos, |first| &first.root.node.pos)
        .clone();
    let depth = documents
        .iter()
        .map(|document| document.root.depth)
        .max()
        .unwrap_or(1);
    let size = documents.iter().fold(1_usize, |size, document| {
        size.saturating_add(document.root.size)
    });
    let mut anchors = HashMap::new();
    for (name, resolved) in documents.iter().flat_map(|document| &document.anchors) {
        anchors
            .entry(name.clone())
            .or_insert_with(|| resolved.clone());
    }
    Some(Document {
        root: ResolvedNode {
            node: Node { value, pos },
            depth,
            size,
        },
        anchors,
    })
}

fn could_not_open(path: &str, error: &io::Error) -> String {
    let reason = error.to_string();
    // Removes the number of the system error from its text, since C programs do not print it.
    let number = error
        .raw_os_error()
        .map(|number| format!(" (os error {number})"));
    let reason = number
        .and_then(|number| reason.strip_suffix(&number))
        .unwrap_or(&reason);
    format!("could not open configuration file {path}: {reason}")
}

/// The error that a file is empty or has only comments. H2O prints `(null)` in this case.
fn no_document(path: &str, included_from: Option<&Pos>) -> Error {
    Error::load(
        Pos::new(path.into(), 1, 1),
        included_from.cloned(),
        "the file is empty or has only comments",
    )
}
