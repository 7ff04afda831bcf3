//! The table of all directives, and the execution of mappings of directives.

use std::collections::HashMap;
use std::fmt;

use crate::directive::{Command, Directive, Pass};
use crate::error::Error;
use crate::kinds::Kinds;
use crate::known::KNOWN;
use crate::levels::Level;
use crate::nearest::nearest;
use crate::node::Kind;
use crate::node::{Node, Value};

/// Maximum number of entries that all mappings of one path of the configuration may have together. This is far more than
/// real paths have, and limits the time for a list with many aliases of one long mapping.
const MAX_PATH_ENTRIES: usize = 1 << 20;

/// All directives of the server. `C` is the type of the state that the directives edit.
pub struct Registry<C: 'static> {
    by_name: HashMap<&'static str, &'static Directive<C>>,
    /// All directives, in the order of the groups that were passed to `new`.
    pub(crate) built: Vec<&'static Directive<C>>,
}

impl<C> Registry<C> {
    /// Joins the tables of directives that the features of the server export. Each name may occur only once.
    #[must_use]
    pub fn new(groups: &[&'static [Directive<C>]]) -> Self {
        let mut registry = Self {
            by_name: HashMap::new(),
            built: Vec::new(),
        };
        for directive in groups.iter().flat_map(|group| group.iter()) {
            let other = registry.by_name.insert(directive.name, directive);
            debug_assert!(
                other.is_none(),
                "two directives are called `{}`",
                directive.name
            );
            registry.built.push(directive);
        }
        registry
    }

    /// The directive with this name, if this server supports it.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Directive<C>> {
        self.by_name.get(name).copied()
    }

    /// The names of all directives, supported or not: those of [`KNOWN`], then those that H2O does not have.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let known: std::collections::HashSet<_> = KNOWN.iter().copied().collect();
        let own = self
            .built
            .iter()
            .map(|directive| directive.name)
            .filter(|name| !known.contains(name));
        KNOWN.iter().copied().chain(own).collect()
    }

    /// Executes a mapping of directives at `level`: first ordinary settings in the order of the file, then `listen` and
    /// `file.custom-handler`, then `hosts`, `paths` and all directives that create handlers.
    ///
    /// # Errors
    /// The messages are `node must be a MAPPING`, `command must be a string`, `unknown command: X`, `the directive is not
    /// supported yet`, `the command cannot be used at this level`, `argument cannot be a scalar`, and those of the
    /// directives.
    pub fn run(&self, level: Level, mapping: &Node, context: &mut C) -> Result<(), Error> {
        let Some(entries) = mapping.as_mapping() else {
            let error = Error::structure(mapping.pos.clone(), "node must be a MAPPING");
            return Err(match mapping.as_str() {
                Some(text) if text.contains('{') => error.with_hint(
                    "a configuration is YAML, with lines of the form `directive: value`; this file looks like the configuration of another server",
                ),
                Some(_) | None => {
                    error.with_hint("lines of the form `directive: value` are expected here")
                }
            });
        };
        self.run_entries(level, entries.iter(), context)
    }

    /// Executes the value of an entry of `paths`: a mapping, or a sequence of mappings, which is executed like one mapping.
    ///
    /// # Errors
    /// The message is `value must be a mapping or sequence of mapping`; other errors are those of [`Self::run`].
    pub fn run_path(&self, value: &Node, context: &mut C) -> Result<(), Error> {
        let mut mappings = Vec::new();
        let mut count = 0;
        for part in value.one_or_more() {
            let Value::Mapping(entries) = &part.value else {
                return Err(part
                    .error("value must be a mapping or sequence of mapping")
                    .with_hint(
                        "lines of the form `directive: value` are expected here, such as `file.dir: /var/www`",
                    ));
            };
            count += entries.len();
            if count > MAX_PATH_ENTRIES {
                return Err(value.error(format!(
                    "a path cannot have more than {MAX_PATH_ENTRIES} directives"
                )));
            }
            mappings.push(entries);
        }
        self.run_entries(
            Level::Path,
            mappings.into_iter().flat_map(|entries| entries.iter()),
            context,
        )
    }

    fn run_entries<'a>(
        &self,
        level: Level,
        entries: impl Iterator<Item = &'a (Node, Node)>,
        context: &mut C,
    ) -> Result<(), Error> {
        let mut listens = Vec::new();
        let mut contents = Vec::new();
        for (key, node) in entries {
            let directive = self.check(level, key, node)?;
            let command = Command {
                name: directive.name,
                node,
                key,
                level,
            };
            match directive.pass {
                Pass::Settings => directive.run(&command, context)?,
                Pass::Listen => listens.push((directive, command)),
                Pass::Content => contents.push((directive, command)),
            }
        }
        for (directive, command) in listens.into_iter().chain(contents) {
            directive.run(&command, context)?;
        }
        Ok(())
    }

    /// The directive that `key` names, if it is allowed at this level and accepts the kind of its argument, `node`.
    fn check(&self, level: Level, key: &Node, node: &Node) -> Result<&'static Directive<C>, Error> {
        let Some(name) = key.as_str() else {
            return Err(Error::structure(
                key.pos.clone(),
                "command must be a string",
            ));
        };
        let Some(directive) = self.find(name) else {
            return Err(self.not_found(level, name, key, node));
        };
        if !directive.levels.contains(level) {
            return Err(key
                .error("the command cannot be used at this level")
                .in_command(name, &key.pos)
                .with_hint(format!(
                    "this is {level} level, it may be used at: {}",
                    directive.levels
                )));
        }
        if !directive.kinds.contains(node.kind()) {
            return Err(wrong_kind(node, directive.kinds).in_command(name, &node.pos));
        }
        Ok(directive)
    }

    fn not_found(&self, level: Level, name: &str, key: &Node, node: &Node) -> Error {
        if KNOWN.contains(&name) {
            return key
                .error("the directive is not supported yet")
                .in_command(name, &key.pos);
        }
        let usable = self
            .built
            .iter()
            .filter(|directive| directive.levels.contains(level));
        let error = Error::structure(key.pos.clone(), format!("unknown command: {name}"));
        let alike = nearest(name, usable.map(|directive| directive.name));
        let is_directive = |text: &str| self.built.iter().any(|directive| directive.name == text);
        match name {
            _ if name
                .split_once(':')
                .is_some_and(|(start, _)| is_directive(start)) =>
            {
                error.with_hint("a blank must follow the colon after a directive")
            }
            _ if alike.is_some() => error.did_you_mean(alike),
            // Too little indentation makes a path or a host a key of an outer level.
            _ if name.starts_with('/') => {
                error.with_hint("a path belongs under `paths`, and is indented further than it")
            }
            _ if name.contains([':', '*', '.']) && node.as_mapping().is_some() => {
                error.with_hint("a host belongs under `hosts`, and is indented further than it")
            }
            // A name with a dot is that of a directive, perhaps of another level.
            _ if name.contains('.') => error.did_you_mean(nearest(
                name,
                self.built.iter().map(|directive| directive.name),
            )),
            _ => error,
        }
    }
}

impl<C> Directive<C> {
    fn run(&self, command: &Command<'_>, context: &mut C) -> Result<(), Error> {
        (self.apply)(context, command)
            .map_err(|error| error.in_command(self.name, &command.node.pos))
    }
}

impl<C> fmt::Debug for Registry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.built.iter().map(|directive| directive.name))
            .finish()
    }
}

fn wrong_kind(node: &Node, kinds: Kinds) -> Error {
    let found = node.kind();
    let error = node.error(format!("argument cannot be {found}"));
    error.with_hint(match node.as_str() {
        Some("") => format!("the value is missing, expected {kinds}"),
        Some(text) if kinds.contains(Kind::Sequence) => {
            format!("expected {kinds}: write `[{text}]`")
        }
        Some(_) | None => format!("expected {kinds}"),
    })
}
