//! Access logs: one line per request, in a configurable format, to files, commands and sockets.

mod escape;
mod field;
mod format;
mod json;
mod local_time;
mod render;
mod rotation;
mod strftime;
mod target;

#[cfg(test)]
pub(crate) mod kit;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use h2o_config::{
    Attribute, Attributes, Command, Directive, Error, Kind, Kinds, Levels, Node, Pass,
};
use h2o_exchange::{Exchange, Logger, PathCheck, PathChecks, PathNeed, Scope};

pub(crate) use escape::Escape;
pub(crate) use format::Format;
pub(crate) use local_time::LocalTime;
pub(crate) use rotation::DIRECTIVES as ROTATION;
pub use rotation::rotate_logs;
use target::LogTarget;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "access-log",
    levels: Levels::ALL_BUT_EXTENSION,
    pass: Pass::Settings,
    kinds: Kinds::ANY.with_attributes(&ATTRIBUTES),
    value: "PATH, `| COMMAND`, or a mapping",
    default: "none",
    help: "Writes a line about each request to a file, to the standard input of a command or to a Unix socket. May be \
           repeated; a host or path adds to the logs of the levels around it.",
    apply,
}];

const ATTRIBUTES: [Attribute; 4] = [
    Attribute::required(
        "path",
        Kinds::SCALAR,
        "PATH, or `| COMMAND`",
        "The file, the existing Unix socket, or the command (run by `/bin/sh -c`) that gets the lines.",
    ),
    Attribute::optional(
        "format",
        Kinds::SCALAR,
        "FORMAT, or `json`",
        "`%h %l %u %t \"%r\" %s %b \"%{Referer}i\" \"%{User-agent}i\"`",
        "What a line consists of; `json` for a JSON object with `fields`. See [the page on logs](logs.md).",
    ),
    Attribute::optional(
        "fields",
        Kinds::SEQUENCE,
        "list of names",
        json::DEFAULT,
        "For `format: json`: what the object of a line has, in this order; see [the list](logs.md#write-json).",
    ),
    Attribute::optional(
        "escape",
        Kinds::SCALAR,
        "apache|json",
        "apache",
        "How values are escaped: for reading (`\\xHH`, absent values are `-`), or for use within JSON strings (absent \
         values are `null`).",
    ),
];

/// Most bytes of a log line whose buffer a worker keeps for the next line. A longer buffer is freed.
const KEPT_LINE: usize = 64 * 1024;

fn apply(scope: &mut Scope, command: &Command<'_>) -> Result<(), Error> {
    let (path, format) = match command.node.kind() {
        Kind::Scalar => {
            let format = compile(command.node, format::DEFAULT, Escape::Apache)?;
            (command.node, format)
        }
        Kind::Mapping => {
            let attributes = command.node.attributes(&ATTRIBUTES)?;
            (
                attributes.require("path")?,
                chosen_format(command, &attributes)?,
            )
        }
        Kind::Sequence => return Err(command.error("node must be a scalar or a mapping")),
    };
    let name = path.scalar()?;
    let target = LogTarget::of(scope, name, command.error_at(path, ""));
    if name
        .strip_prefix('|')
        .is_some_and(|program| program.trim().is_empty())
    {
        let error = path
            .error("no program follows the `|`")
            .in_command(command.name, &path.pos);
        scope.warn(&error.with_hint("name a program that reads the log from its standard input"));
    }
    if !name.starts_with('|') {
        let check = PathCheck::new(command, path, Path::new(name), PathNeed::Parent);
        scope.shared.edit::<PathChecks>().0.push(check);
    }
    scope.loggers.push(Arc::new(AccessLog { format, target }));
    Ok(())
}

fn chosen_format(command: &Command<'_>, attributes: &Attributes<'_>) -> Result<Format, Error> {
    let (format, fields) = (attributes.get("format"), attributes.get("fields"));
    let escape = attributes.get("escape");
    let text = format.map_or(Ok(format::DEFAULT), Node::scalar)?;
    let node = format.unwrap_or(command.node);
    let chosen = escape.map(|escape| escape.one_of(&["apache", "json"]));
    let chosen = match chosen.transpose()? {
        Some(1) => Some(Escape::Json),
        Some(_) => Some(Escape::Apache),
        None => None,
    };
    if text == "json" {
        if let (Some(Escape::Apache), Some(escape)) = (chosen, escape) {
            return Err(escape.error("`format: json` needs `escape: json`; remove this line"));
        }
        return compile(node, &json::format(fields)?, Escape::Json);
    }
    if let Some(fields) = fields {
        return Err(fields.error("`fields` needs `format: json`"));
    }
    compile(node, text, chosen.unwrap_or_default())
}

fn compile(node: &Node, text: &str, escape: Escape) -> Result<Format, Error> {
    Format::compile(text, escape).map_err(|message| node.error(message))
}

/// The logger that one `access-log` directive creates.
struct AccessLog {
    format: Format,
    target: Arc<LogTarget>,
}

/// Buffers that all access logs of a worker share.
#[derive(Default)]
struct LogBuffers {
    time: LocalTime,
    line: RefCell<Vec<u8>>,
}

impl Logger for AccessLog {
    fn log(&self, exchange: &Exchange) {
        let buffers = exchange.worker.local::<LogBuffers>();
        let mut line = buffers.line.borrow_mut();
        line.clear();
        self.format.render(exchange, &buffers.time, &mut line);
        line.push(b'\n');
        self.target.write(&line, exchange.worker.clock.unix());
        line.shrink_to(KEPT_LINE);
    }

    fn wants_unfiltered_headers(&self) -> bool {
        self.format.wants_unfiltered_headers()
    }

    fn wants_trace(&self) -> bool {
        self.format.wants_trace()
    }
}
