//! Directives: everything known about one in one value, and one occurrence of it in a file.

use crate::error::Error;
use crate::kinds::Kinds;
use crate::levels::{Level, Levels};
use crate::node::Node;

/// When a directive is executed, relative to the others of its mapping. Settings therefore apply to handlers before and after
/// them, while handlers keep their order among each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// First: ordinary settings.
    Settings,
    /// Then `listen` and `file.custom-handler`.
    Listen,
    /// Last: `hosts`, `paths` and everything that produces content. These see all settings of the mapping.
    Content,
}

/// A directive, written once beside the code that obeys it. `C` is the context it edits.
#[derive(Clone, Copy)]
pub struct Directive<C: 'static> {
    /// Its name; letter case matters.
    pub name: &'static str,
    /// Where it may stand.
    pub levels: Levels,
    /// When it is executed.
    pub pass: Pass,
    /// What its argument may be.
    pub kinds: Kinds,
    /// The grammar of its argument, such as `ON|OFF`; for the manual.
    pub value: &'static str,
    /// Its effect when it is absent; for the manual.
    pub default: &'static str,
    /// What it does, in a sentence or two of Markdown; for the manual.
    pub help: &'static str,
    /// Checks the argument and edits the context. Building a configuration has no side effects: it opens and starts nothing.
    pub apply: fn(&mut C, &Command<'_>) -> Result<(), Error>,
}

impl<C> Directive<C> {
    /// A setting with a scalar argument that may stand at any level.
    #[must_use]
    pub const fn setting(
        name: &'static str,
        value: &'static str,
        default: &'static str,
        help: &'static str,
        apply: fn(&mut C, &Command<'_>) -> Result<(), Error>,
    ) -> Self {
        Self {
            name,
            levels: Levels::ALL,
            pass: Pass::Settings,
            kinds: Kinds::SCALAR,
            value,
            default,
            help,
            apply,
        }
    }

    /// A setting with a scalar argument of the whole server.
    #[must_use]
    pub const fn global(
        name: &'static str,
        value: &'static str,
        default: &'static str,
        help: &'static str,
        apply: fn(&mut C, &Command<'_>) -> Result<(), Error>,
    ) -> Self {
        Self {
            levels: Levels::GLOBAL_ONLY,
            ..Self::setting(name, value, default, help, apply)
        }
    }
}

/// One occurrence of a directive. The node of its argument is of one of the directive's kinds.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The name of the directive.
    pub name: &'static str,
    /// The argument.
    pub node: &'a Node,
    /// The name as it stands in the file.
    pub key: &'a Node,
    /// The level it stands at.
    pub level: Level,
}

impl Command<'_> {
    /// An error at the argument.
    pub fn error(&self, message: impl Into<String>) -> Error {
        self.error_at(self.node, message)
    }

    /// An error at a part of the argument.
    pub fn error_at(&self, part: &Node, message: impl Into<String>) -> Error {
        part.error(message).in_command(self.name, &part.pos)
    }
}
