//! Directives: a `Directive` is the definition of one, and a `Command` is one occurrence of it in a file.

use crate::error::Error;
use crate::kinds::Kinds;
use crate::levels::{Level, Levels};
use crate::node::Node;

/// When a directive is executed, relative to the other directives of its mapping. Settings are executed before handlers are
/// created, so they also apply to handlers that are above them in the file. Handlers keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Executed first: ordinary settings.
    Settings,
    /// Executed second: `listen` and `file.custom-handler`.
    Listen,
    /// Executed last: `hosts`, `paths` and all directives that create handlers, which therefore see all settings of the
    /// mapping.
    Content,
}

/// A directive of the configuration, defined in one place beside the code that implements it. `C` is the type of the
/// state that it edits.
#[derive(Clone, Copy)]
pub struct Directive<C: 'static> {
    /// The name of the directive; letter case matters.
    pub name: &'static str,
    /// The levels of the configuration at which the directive is allowed.
    pub levels: Levels,
    /// When the directive is executed, relative to others of its mapping.
    pub pass: Pass,
    /// The kinds of node that are allowed as the directive's argument.
    pub kinds: Kinds,
    /// The grammar of the directive's argument, such as `ON|OFF`; for the manual.
    pub value: &'static str,
    /// What the server does if the directive is absent; for the manual.
    pub default: &'static str,
    /// What the directive does, in a sentence or two of Markdown; for the manual.
    pub help: &'static str,
    /// Checks the argument and edits the state of the configuration being read. Must not have side effects such as
    /// opening files or starting threads.
    pub apply: fn(&mut C, &Command<'_>) -> Result<(), Error>,
}

impl<C> Directive<C> {
    /// The definition of a setting with a scalar argument that is allowed at any level.
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

    /// The definition of a setting with a scalar argument that applies to the whole server and is allowed at the global
    /// level only.
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

/// One occurrence of a directive in a file. Its argument has been checked to be of a kind that the directive accepts.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The name of the directive.
    pub name: &'static str,
    /// The argument of the directive.
    pub node: &'a Node,
    /// The name of the directive as a node of the file.
    pub key: &'a Node,
    /// The level at which the directive occurs.
    pub level: Level,
}

impl Command<'_> {
    /// An error of this directive at the position of its argument.
    pub fn error(&self, message: impl Into<String>) -> Error {
        self.error_at(self.node, message)
    }

    /// An error of this directive at the position of a part of its argument.
    pub fn error_at(&self, part: &Node, message: impl Into<String>) -> Error {
        part.error(message).in_command(self.name, &part.pos)
    }
}
