//! Directives for parts of H2O that this server does not have: the configuration may have them, and a warning says what happens
//! instead.

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::Scope;

/// Template of a directive of the global level.
const GLOBAL: Directive<Scope> = Directive::global("", "", "", "", |_, _| Ok(()));

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    Directive {
        name: "crash-handler",
        kinds: Kinds::SCALAR,
        value: "COMMAND",
        default: "none",
        help: "Accepted with a warning: no command is started. The error log has the server's report of a crash.",
        apply: |scope, command| {
            command.node.scalar()?;
            warn(
                scope,
                command,
                "no command is started; the error log has the server's report of a crash",
            );
            Ok(())
        },
        ..GLOBAL
    },
    Directive {
        name: "crash-handler.wait-pipe-close",
        value: "ON|OFF",
        default: "OFF",
        help: "Accepted without effect: there is no command to wait for.",
        apply: |_, command| command.node.on_off().map(drop),
        ..GLOBAL
    },
    Directive {
        name: "io_uring-batch-size",
        value: "1 or more",
        default: "1",
        help: "Accepted with a warning: `file.io_uring` has no effect, because other threads read the files that are not in memory.",
        apply: |scope, command| {
            command.node.integer::<u32>("%u", 1..=u64::from(u32::MAX))?;
            warn(
                scope,
                command,
                "support for io_uring is not available: other threads read files that are not in memory",
            );
            Ok(())
        },
        ..GLOBAL
    },
    Directive {
        name: "neverbleed-offload",
        value: "OFF|QAT|QAT-AUTO",
        default: "OFF",
        help: "Accepted, any value but `OFF` with a warning: the processor, not a QuickAssist card, does the work of private keys.",
        apply: |scope, command| {
            if command.node.one_of(&["OFF", "QAT", "QAT-AUTO"])? != 0 {
                warn(
                    scope,
                    command,
                    "QuickAssist cards are not used: the processor does the work of private keys",
                );
            }
            Ok(())
        },
        ..GLOBAL
    },
    Directive {
        name: "usdt-selective-tracing",
        value: "ON|OFF",
        default: "OFF",
        help: "Accepted; `ON` with a warning: this server has no USDT probes.",
        apply: |scope, command| {
            if command.node.on_off()? {
                warn(scope, command, "this server has no USDT probes");
            }
            Ok(())
        },
        ..GLOBAL
    },
    Directive {
        name: "h2olog",
        levels: Levels::HOST,
        value: "OFF|ON|appdata",
        default: "OFF",
        help: "Accepted, any value but `OFF` with a warning: there is no trace endpoint. The attribute `qlog` of a QUIC listener \
         ([`listen`](#listen)) writes traces of connections.",
        apply: |scope, command| {
            if command.node.one_of(&["OFF", "ON", "appdata"])? != 0 {
                warn(
                    scope,
                    command,
                    "there is no trace endpoint; the attribute `qlog` of a QUIC listener writes traces",
                );
            }
            Ok(())
        },
        ..GLOBAL
    },
    Directive {
        name: "self-trace",
        levels: Levels::PATH,
        pass: Pass::Content,
        value: "ON",
        default: "none",
        help: "Accepted with a warning; the handler serves no requests. The attribute `qlog` of a QUIC listener ([`listen`](#listen)) \
         writes traces of connections.",
        apply: |scope, command| {
            command.node.one_of(&["ON"])?;
            warn(
                scope,
                command,
                "this handler serves no requests; the attribute `qlog` of a QUIC listener writes traces",
            );
            Ok(())
        },
        ..GLOBAL
    },
];

fn warn(scope: &mut Scope, command: &Command<'_>, text: &str) {
    let error: Error = command.error(text);
    scope.warn(&error);
}
