//! `h2o top`: shows on a terminal what the running server does, and updates it each second.

mod report;
mod view;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::control::{self, ServerChoice};
use crate::getopt::{Argument, CommandLine, Known, help, letter};
use crate::question::Question;
use crate::usage::{Operands, Usage};
use crate::{Failure, print_out};

use report::Report;
use view::{Order, lines};

/// Time between two requests for the server's status report.
const INTERVAL: Duration = Duration::from_secs(1);
/// Rows and columns that are assumed for a terminal that does not tell its size.
const USUAL_SIZE: (usize, usize) = (24, 80);

/// Runs `h2o top`, which shows what the running server does; `arguments` are the words after `top`.
///
/// # Errors
/// If no server answers.
pub(crate) fn command(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let Some(options) = Options::parse(arguments).map_err(Failure::config)? else {
        print_out(&usage().help());
        return Ok(());
    };
    let pid_file = options.server.find()?;
    let is_live = !options.is_once && std::io::stdout().is_terminal();
    let look = || look(Path::new(&pid_file));
    let (mut before, mut at) = (look()?, now());
    loop {
        std::thread::sleep(INTERVAL);
        let (report, later) = (look()?, now());
        let seconds = later.saturating_duration_since(at).as_secs_f64();
        let lines = lines(&before, &report, seconds, options.order);
        if !is_live {
            print_out(&(lines.join("\n") + "\n"));
            return Ok(());
        }
        if show(&lines).is_err() {
            // The terminal has been closed.
            return Ok(());
        }
        (before, at) = (report, later);
    }
}

/// Requests the status report of the running server.
fn look(pid_file: &Path) -> Result<Report, Failure> {
    let answer = control::ask(pid_file, Question::Status)?;
    if answer.code != 0 {
        return Err(Failure {
            text: answer.messages.join("\n"),
            code: answer.code,
        });
    }
    let report = Report::parse(&answer.lines.concat());
    report.ok_or_else(|| Failure::system("the answer of the server is not a status report"))
}

/// Shows `lines` on the terminal in place of what it shows now; lines for which it has no room are left out.
fn show(lines: &[String]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let size = rustix::termios::tcgetwinsize(&out).ok();
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or(USUAL_SIZE, |size| {
        (usize::from(size.ws_row), usize::from(size.ws_col))
    });
    // The cursor goes to the upper left corner. Each line is followed by a code that clears the rest of its row, the last line also
    // by a code that clears the rows below.
    let mut text = "\x1b[H".to_owned();
    for (number, line) in lines.iter().take(rows).enumerate() {
        if number > 0 {
            text += "\r\n";
        }
        text.extend(line.chars().take(columns));
        text += "\x1b[K";
    }
    text += "\x1b[J";
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[expect(
    clippy::disallowed_methods,
    reason = "h2o top is a process without workers, and so without a worker's clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// The text of `h2o top --help` and of the man page.
pub(crate) fn usage() -> Usage {
    Usage {
        name: "top",
        words: "[options]",
        operands: Operands::None,
        about: "Shows what the running server does: requests per second, paths, backends,\n\
                connections. On a terminal anew each second, until Ctrl-C; otherwise once.",
        options: KNOWN.iter().map(Known::described).collect(),
        end: "Paths are counted where the configuration has metrics: ON.\n\
              Exit status: 0; 71 if no server answers.\n",
    }
}

/// The command line of `h2o top`.
struct Options {
    server: ServerChoice,
    is_once: bool,
    order: Order,
}

#[derive(Clone, Copy)]
enum Flag {
    Conf,
    PidFile,
    Once,
    Sort,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    ServerChoice::conf(Flag::Conf),
    ServerChoice::pid_file(Flag::PidFile),
    letter('1', "once", false, Flag::Once).help("", "prints the numbers of one second, and ends"),
    letter('s', "sort", true, Flag::Sort).one_of(
        "ORDER",
        &["requests", "time"],
        "which paths come first: those with the most requests,\nor the slowest (default: requests)",
    ),
    help(Flag::Help),
];

impl Options {
    /// Reads the command line. Returns `None` if `--help` is given.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            server: ServerChoice::default(),
            is_once: false,
            order: Order::Requests,
        };
        let mut line = CommandLine::new("h2o top", KNOWN, arguments);
        while let Some(argument) = line.next()? {
            match argument {
                Argument::Option(Flag::Conf, path) => options.server.config = path,
                Argument::Option(Flag::PidFile, path) => options.server.pid_file = path,
                Argument::Option(Flag::Once, _) => options.is_once = true,
                Argument::Option(Flag::Sort, name) => {
                    options.order = match name.as_deref() {
                        Some("requests") => Order::Requests,
                        Some("time") => Order::Time,
                        _ => {
                            return Err("h2o top: --sort takes requests or time".to_owned());
                        }
                    };
                }
                Argument::Option(Flag::Help, _) => return Ok(None),
                Argument::Word(word) => return Err(line.unexpected(&word)),
                Argument::End => {}
            }
        }
        Ok(Some(options))
    }
}
