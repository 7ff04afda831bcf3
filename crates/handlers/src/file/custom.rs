//! The directive `file.custom-handler`: files with certain extensions are passed to a handler instead of being sent.

use std::sync::Arc;

use h2o_config::{Attribute, Command, Directive, Error, Kinds, Level, Levels, Node, Pass, Value};
use h2o_exchange::{EnvCommands, Exchange, Handler, Outcome, Scope, ScriptPath};
use h2o_http::mime::{MimeEntry, MimeMap};

use super::mime::extension;
use super::settings::FileSettings;

/// The handler that a `file.custom-handler` configures. All paths that inherit the directive share it.
pub(super) struct CustomHandler {
    handler: Box<dyn Handler>,
    /// The `setenv` and `unsetenv` commands in the mapping of the directive. They run after the commands of the path.
    env: EnvCommands,
    /// The value of `error-log.emit-request-errors`, which the mapping of the directive may have too.
    emit_request_errors: bool,
}

impl CustomHandler {
    /// Passes the request to the handler. Filters, access logs and header rules stay those of the path.
    pub(super) fn on_request(&self, exchange: &mut Exchange, script: ScriptPath) -> Outcome {
        self.env.apply(exchange);
        exchange.script = Some(script);
        exchange.emit_request_errors = Some(self.emit_request_errors);
        let outcome = self.handler.on_request(exchange);
        // The script path is for this handler only, not for the handlers that are tried after it.
        exchange.script = None;
        if matches!(outcome, Outcome::Declined) {
            exchange.emit_request_errors = None;
        }
        outcome
    }
}

pub(super) const CUSTOM_HANDLER: Directive<Scope> = Directive {
    name: "file.custom-handler",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Listen,
    // Every kind of node is accepted here, so that `custom_handler` can report a wrong kind with a message of its own.
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "a mapping of `extension` and of directives",
    default: "none",
    help: "Hands requests for files with these extensions to a handler, which is given with its settings in the same \
           mapping, such as `fastcgi.connect`. The file must exist; `/FILE.EXT/MORE` reaches the handler with `/MORE` as path info.",
    apply: custom_handler,
};

/// The only attribute of the directive's mapping that is not a directive itself.
const ATTRIBUTES: [Attribute; 1] = [Attribute::required(
    "extension",
    Kinds::SCALAR.or(Kinds::SEQUENCE),
    "`.EXT`, or a sequence of `.EXT` and `default`",
    "The extensions; `default` stands for files whose extension is absent or has no MIME type.",
)];

fn custom_handler(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let Some(entries) = command.node.as_mapping() else {
        return Err(command.error("argument must be a MAPPING"));
    };
    let (own, inner): (Vec<_>, Vec<_>) = entries
        .iter()
        .cloned()
        .partition(|(key, _)| key.as_str() == Some(ATTRIBUTES[0].name));
    let Some((_, extensions)) = own.last() else {
        return Err(command.error("mandatory key `extension` is missing"));
    };
    let extensions = parse_extensions(extensions)?;
    let directives = Node {
        value: Value::Mapping(inner.into()),
        pos: command.node.pos.clone(),
    };
    let custom = scope.enter(Level::Extension, |scope| {
        scope.env = EnvCommands::default();
        scope.run(&directives)?;
        let mut handlers = std::mem::take(&mut scope.handlers);
        let handler = handlers
            .pop()
            .ok_or_else(|| command.error("no handler declared for given extension"))?;
        if !handlers.is_empty() {
            return Err(command.error("cannot assign more than one handler for given extension"));
        }
        Ok(CustomHandler {
            handler,
            env: std::mem::take(&mut scope.env),
            emit_request_errors: scope.emit_request_errors,
        })
    })?;
    let customs = &mut scope.edit::<FileSettings>().custom;
    let number = u32::try_from(customs.len())
        .map_err(|_| command.error("the configuration has too many `file.custom-handler`"))?;
    customs.push(Arc::new(custom));
    let map = scope.edit::<MimeMap>();
    for extension in extensions {
        match extension {
            Some(extension) => map.insert(extension.as_bytes(), MimeEntry::Dynamic(number)),
            None => map.set_default(MimeEntry::Dynamic(number)),
        }
    }
    Ok(())
}

/// Reads the extensions, without their dots; `None` for `default`.
fn parse_extensions(node: &Node) -> Result<Vec<Option<&str>>, Error> {
    let malformed = |node: &Node| {
        node.error("`extensions` must be a scalar or sequence of scalar")
            .with_hint("such as `extension: .php`")
    };
    if node.as_mapping().is_some() {
        return Err(malformed(node));
    }
    let nodes = node.one_or_more();
    if nodes.is_empty() {
        return Err(node.error("the sequence cannot be empty"));
    }
    nodes
        .iter()
        .map(|node| match node.as_str() {
            None => Err(malformed(node)),
            Some("default") => Ok(None),
            Some(_) => extension(node).map(Some),
        })
        .collect()
}
