//! Builds the tree of a configuration file from YAML events. Tags, anchors and aliases are resolved later.

use std::rc::Rc;
use std::sync::Arc;

use crate::document::Document;
use crate::error::Error;
use crate::explain::explain;
use crate::pos::Pos;
use crate::yaml::{Event, EventKind, Parser, Properties};

/// Maximum depth of nested nodes, including those in aliases and included files. This is far more than directives need, and
/// keeps recursive functions over the tree within the stack.
pub(crate) const MAX_DEPTH: usize = 100;

/// Maximum number of `%TAG` directives in a file. No configuration needs any, and libyaml compares each with all before it.
const MAX_TAG_DIRECTIVES: usize = 1000;

/// A node as it is written in the file.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) content: TreeContent,
    pub(crate) anchor: Option<Arc<str>>,
    pub(crate) tag: Option<Tag>,
    pub(crate) pos: Pos,
}

#[derive(Debug)]
pub(crate) enum TreeContent {
    Scalar(Arc<str>),
    Sequence(Vec<Tree>),
    Mapping(Vec<(Tree, Tree)>),
    Alias(Arc<str>),
    /// The document of the file that a `!file` node includes.
    Included(Rc<Document>),
}

/// The tags that have a meaning in a configuration, such as `!file`; all others are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    File,
    Env,
}

impl Tag {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "!file" => Some(Self::File),
            "!env" => Some(Self::Env),
            _ => None,
        }
    }
}

/// Reads the first document of a file; `None` if the file has no document.
pub(crate) fn parse(
    file: &Arc<str>,
    input: &[u8],
    included_from: Option<&Pos>,
) -> Result<Option<Tree>, Error> {
    if tag_directives(input) > MAX_TAG_DIRECTIVES {
        let message = format!("more than {MAX_TAG_DIRECTIVES} %TAG directives");
        return Err(Error::load(
            Pos::new(file.clone(), 1, 1),
            included_from.cloned(),
            message,
        ));
    }
    let mut reader = Reader {
        parser: Parser::new(input),
        input,
        file,
        included_from,
    };
    let Some(root) = reader.root()? else {
        return Ok(None);
    };
    reader.end()?;
    Ok(Some(root))
}

/// Counts the occurrences of `%TAG`, also in UTF-16 and within scalars: the number may be too high, but never too low.
fn tag_directives(input: &[u8]) -> usize {
    let after_percent = input.split(|&byte| byte == b'%').skip(1);
    let letters = |rest: &&[u8]| rest.iter().filter(|&&byte| byte != 0).take(3).eq(b"TAG");
    after_percent.filter(letters).count()
}

struct Reader<'a> {
    parser: Parser<'a>,
    input: &'a [u8],
    file: &'a Arc<str>,
    included_from: Option<&'a Pos>,
}

impl Reader<'_> {
    fn root(&mut self) -> Result<Option<Tree>, Error> {
        let mut open: Vec<Collection> = Vec::new();
        loop {
            let event = self.poll_event()?;
            let pos = self.pos(event.line, event.column);
            let node = match event.kind {
                EventKind::Started => continue,
                EventKind::DocumentEnd { .. } | EventKind::StreamEnd => return Ok(None),
                EventKind::SequenceStart(_) | EventKind::MappingStart(_)
                    if open.len() >= MAX_DEPTH =>
                {
                    let message =
                        format!("sequences and mappings are nested deeper than {MAX_DEPTH} levels");
                    return Err(Error::load(pos, self.included_from.cloned(), message));
                }
                EventKind::SequenceStart(properties) => {
                    open.push(Collection {
                        is_mapping: false,
                        items: Vec::new(),
                        properties,
                        pos,
                    });
                    continue;
                }
                EventKind::MappingStart(properties) => {
                    open.push(Collection {
                        is_mapping: true,
                        items: Vec::new(),
                        properties,
                        pos,
                    });
                    continue;
                }
                EventKind::End => match open.pop() {
                    Some(collection) => collection.finish(),
                    None => continue,
                },
                EventKind::Alias(name) => Tree {
                    content: TreeContent::Alias(name.into()),
                    anchor: None,
                    tag: None,
                    pos,
                },
                EventKind::Scalar {
                    properties,
                    text,
                    block,
                } => {
                    // The position of a block scalar is the first line of its text, so that line numbers in a script count
                    // from there.
                    let pos = if block {
                        self.pos(event.line.saturating_add(1), 0)
                    } else {
                        pos
                    };
                    Tree::new(TreeContent::Scalar(text.into()), properties, pos)
                }
            };
            match open.last_mut() {
                Some(collection) => collection.items.push(node),
                None => return Ok(Some(node)),
            }
        }
    }

    /// Refuses a second document that begins without `---` or `...`. Usually it begins by mistake, with a line that is
    /// indented less than the first one, and everything from there on would be ignored.
    fn end(&mut self) -> Result<(), Error> {
        let explicit = matches!(
            self.poll_event()?.kind,
            EventKind::DocumentEnd { explicit: true }
        );
        if !explicit {
            self.poll_event()?;
        }
        Ok(())
    }

    fn poll_event(&mut self) -> Result<Event, Error> {
        self.parser.poll_event().map_err(|problem| {
            let explanation = explain(self.input, &problem);
            let place = explanation
                .as_ref()
                .map_or(problem.place, |explanation| explanation.place);
            let error = Error::load(
                self.pos(place.line, place.column),
                self.included_from.cloned(),
                problem.message,
            );
            match (explanation, problem.context) {
                (Some(explanation), _) => error.with_hint(explanation.hint),
                (None, Some((context, start))) => {
                    let line = start.line.saturating_add(1);
                    error.with_hint(format!("{context} that begins in line {line}"))
                }
                (None, None) => error,
            }
        })
    }

    /// The position in the file for a line and column that count from 0.
    fn pos(&self, line: u32, column: u32) -> Pos {
        Pos::new(
            self.file.clone(),
            line.saturating_add(1),
            column.saturating_add(1),
        )
    }
}

impl Tree {
    fn new(content: TreeContent, properties: Properties, pos: Pos) -> Self {
        Self {
            content,
            anchor: properties.anchor.map(Into::into),
            tag: properties.tag.as_deref().and_then(Tag::from_name),
            pos,
        }
    }
}

/// A sequence or mapping of which the end has not been read.
struct Collection {
    is_mapping: bool,
    /// The items of a sequence, or the keys and values of a mapping in turn.
    items: Vec<Tree>,
    properties: Properties,
    pos: Pos,
}

impl Collection {
    fn finish(self) -> Tree {
        let content = if self.is_mapping {
            let mut entries = Vec::with_capacity(self.items.len() / 2);
            let mut items = self.items.into_iter();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                entries.push((key, value));
            }
            TreeContent::Mapping(entries)
        } else {
            TreeContent::Sequence(self.items)
        };
        Tree::new(content, self.properties, self.pos)
    }
}
