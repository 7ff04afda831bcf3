//! Makes warnings about parts of a configuration that is otherwise accepted.

use h2o_config::{Command, Node};
use h2o_exchange::Scope;

/// Adds a warning about `node`, an argument of `command`.
pub(crate) fn warn(scope: &mut Scope, command: &Command<'_>, node: &Node, text: &str) {
    scope.warnings.push(format!(
        "[warning] [{}:{}] in command {}, {text}",
        node.pos.file(),
        node.pos.line(),
        command.name
    ));
}
