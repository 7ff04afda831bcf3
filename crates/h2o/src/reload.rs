//! `h2o reload`: asks the running server to reload its configuration, or to report what a reload would change.

use std::path::Path;

use h2o_log::report_plainly;

use crate::control::{self, ServerChoice};
use crate::getopt::{Argument, CommandLine, Known, help, long};
use crate::question::Question;
use crate::usage::{Operands, Usage};
use crate::{Failure, print_out};

/// Runs `h2o reload`, which asks the running server; `arguments` are the words after `reload`.
///
/// # Errors
/// The message and exit status that the server has sent, or that no server answers.
pub(crate) fn command(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let Some(options) = Options::parse(arguments).map_err(Failure::config)? else {
        print_out(&usage().help());
        return Ok(());
    };
    let pid_file = options.server.find()?;
    let answer = control::ask(Path::new(&pid_file), options.question)?;
    for message in &answer.messages {
        report_plainly(message);
    }
    for line in &answer.lines {
        print_out(&format!("{line}\n"));
    }
    match answer.code {
        0 => Ok(()),
        // The messages of the server have been printed, so the failure has no text.
        code => Err(Failure {
            text: String::new(),
            code,
        }),
    }
}

/// The text of `h2o reload --help` and of the man page.
pub(crate) fn usage() -> Usage {
    Usage {
        name: "reload",
        words: "[options]",
        operands: Operands::None,
        about: "Has the running server reload its configuration, and prints the result.",
        options: KNOWN.iter().map(Known::described).collect(),
        end: "Exit status: 0; 78 if nothing has changed, because the configuration has an\nerror; 71 if no server answers.\n",
    }
}

/// The command line of `h2o reload`.
struct Options {
    server: ServerChoice,
    question: Question,
}

#[derive(Clone, Copy)]
enum Flag {
    Conf,
    PidFile,
    Diff,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    ServerChoice::conf(Flag::Conf),
    ServerChoice::pid_file(Flag::PidFile),
    long("diff", false, Flag::Diff).help("", "changes nothing, prints what would change"),
    help(Flag::Help),
];

impl Options {
    /// Reads the command line. Returns `None` if `--help` is given.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            server: ServerChoice::default(),
            question: Question::Reload,
        };
        let mut line = CommandLine::new("h2o reload", KNOWN, arguments);
        while let Some(argument) = line.next()? {
            match argument {
                Argument::Option(Flag::Conf, path) => options.server.config = path,
                Argument::Option(Flag::PidFile, path) => options.server.pid_file = path,
                Argument::Option(Flag::Diff, _) => options.question = Question::Differences,
                Argument::Option(Flag::Help, _) => return Ok(None),
                Argument::Word(word) => return Err(line.unexpected(&word)),
                Argument::End => {}
            }
        }
        Ok(Some(options))
    }
}
