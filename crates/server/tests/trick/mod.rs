//! Directives that tests define to add their own handlers to a path.

#![allow(dead_code, reason = "each test file uses a part of this module")]

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::{Handler, Scope};

/// A test handler that has one of several behaviours, each with a name.
pub(crate) trait Tricks: Handler + Copy + 'static {
    /// The behaviours, with their names.
    const ALL: &'static [(&'static str, Self)];
}

/// The directive `test.trick`: adds the test handler whose name is its argument.
pub(crate) const fn tricks<T: Tricks>() -> Directive<Scope> {
    handlers("test.trick", |scope, command| {
        let name = command.node.scalar()?;
        let found = T::ALL.iter().find(|(known, _)| *known == name);
        let (_, trick) = found.ok_or_else(|| command.error("no test handler has this name"))?;
        scope.handlers.push(Box::new(*trick));
        Ok(())
    })
}

/// Returns the lines of the configuration that define, for each test handler, a path of the handler's name.
pub(crate) fn paths_of_tricks<T: Tricks>() -> String {
    T::ALL
        .iter()
        .map(|(name, _)| format!("      /{name}: {{ test.trick: {name} }}\n"))
        .collect()
}

/// Makes a directive of the path level whose function `apply` adds test handlers.
pub(crate) const fn handlers(
    name: &'static str,
    apply: fn(&mut Scope, &Command<'_>) -> Result<(), Error>,
) -> Directive<Scope> {
    Directive {
        name,
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SCALAR,
        value: "NAME",
        default: "none",
        help: "For tests.",
        apply,
    }
}
