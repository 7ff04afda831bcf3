//! The directives of scripts, and the check of scripts while the configuration is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::{Scope, WorkerStarts};
use h2o_mruby::CompileFault;

use super::handler::ScriptHandler;
use super::machine::{LEAST_MEMORY, Script, ScriptLimits};

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "mruby.handler",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SCALAR,
        value: "Ruby",
        default: "",
        help: "Answers requests by the object that this Ruby text evaluates to: its method `call` gets the request and returns status, \
               header fields and body (see the manual on [scripts](scripts.md)).",
        apply: |scope, command| {
            let text = command.node.scalar()?;
            let pos = &command.node.pos;
            add(scope, text.as_bytes(), pos.file(), pos.line(), |fault| {
                command.error(format!(
                    "ruby compile error:line {}:{}{}",
                    fault.line,
                    fault.message,
                    excerpt(text, pos.line(), &fault)
                ))
            })
        },
    },
    Directive {
        name: "mruby.handler-file",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SCALAR,
        value: "FILE",
        default: "",
        help: "Like `mruby.handler`, for the Ruby text in a file.",
        apply: |scope, command| {
            let path = command.node.scalar()?;
            let text = read(path, command)?;
            add(scope, &text, path, 1, |fault| {
                command.error(format!(
                    "failed to compile file:{path}:line {}:{}{}",
                    fault.line,
                    fault.message,
                    excerpt(&String::from_utf8_lossy(&text), 1, &fault)
                ))
            })
        },
    },
    Directive::global(
        "mruby.memory-limit",
        "BYTES",
        "268435456",
        "How much memory the scripts of each worker thread may use, their compiled patterns included; at least 33554432 (32 MiB). A \
         script that needs more than seven eighths of this limit gets NoMemoryError, and its request is answered with 500; the \
         last eighth is kept to end the script cleanly. The memory of scripts counts against `max-memory`, and all workers \
         together get at most half of that.",
        |scope, command| {
            let bytes: u64 = command.node.integer("%d", LEAST_MEMORY as u64..=1 << 40)?;
            scope.edit::<ScriptLimits>().memory = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(())
        },
    ),
    Directive::global(
        "mruby.time-limit",
        "MILLISECONDS",
        "10000",
        "How long a script may use the processor without waiting. A script that takes longer is interrupted, and its request \
         answered with 500. `0`: no limit.",
        |scope, command| {
            let millis: u64 = command.node.integer("%d", 0..=86_400_000)?;
            scope.edit::<ScriptLimits>().time = Duration::from_millis(millis);
            Ok(())
        },
    ),
    Directive {
        name: "mruby.handler_path",
        levels: Levels::PATH,
        pass: Pass::Content,
        kinds: Kinds::SCALAR,
        value: "FILE",
        default: "",
        help: "Removed: use `mruby.handler-file`.",
        apply: |_, command| {
            Err(command
                .error("the command has been removed; see https://github.com/h2o/h2o/pull/467"))
        },
    },
];

fn read(path: &str, command: &Command<'_>) -> Result<Vec<u8>, Error> {
    h2o_opener::read(path.as_ref()).map_err(|error| {
        let text = error.to_string();
        let reason = text.split(" (os error").next().unwrap_or_default();
        command.error(if std::path::Path::new(path).is_dir() {
            format!("I/O error occurred while reading file:{path}:{reason}")
        } else {
            format!("failed to open file: {path}:{reason}")
        })
    })
}

/// Checks the text of a script and adds a handler for it.
fn add(
    scope: &mut Scope,
    text: &[u8],
    file: &str,
    line: u32,
    refuse: impl FnOnce(CompileFault) -> Error,
) -> Result<(), Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    h2o_mruby::check(text, file, line).map_err(refuse)?;
    let script = Arc::new(Script {
        id: NEXT.fetch_add(1, Relaxed),
        text: text.into(),
        file: file.into(),
        line,
    });
    scope
        .handlers
        .push(Box::new(ScriptHandler::new(Arc::clone(&script))));
    scope.shared.edit::<WorkerStarts>().0.push(script);
    Ok(())
}

/// The script line with a syntax error, and a mark below the column of the error. `first` is the number of the text's
/// first line.
fn excerpt(text: &str, first: u32, fault: &CompileFault) -> String {
    let number = fault
        .line
        .checked_sub(first)
        .and_then(|number| usize::try_from(number).ok());
    let Some(line) = number.and_then(|number| text.lines().nth(number)) else {
        return String::new();
    };
    let column = usize::try_from(fault.column)
        .unwrap_or(0)
        .saturating_sub(1)
        .min(line.len());
    format!("\n\n{line}\n{}^\n", " ".repeat(column))
}
