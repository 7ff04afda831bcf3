//! The command line of `start_server`.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::getopt::{Argument, CommandLine, Known, long};

/// The task that the command line of `start_server` asks for.
pub(crate) enum Task {
    /// Supervise workers, which are started by this command.
    Supervise(Box<Options>, Vec<String>),
    /// `--restart`: make the running supervisor replace its workers, and wait until all old workers have ended.
    Restart {
        pid_file: PathBuf,
        status_file: PathBuf,
    },
    /// `--stop`: end the running supervisor, and wait for its end.
    Stop { pid_file: PathBuf },
    /// Print this text and end.
    Print(String),
    /// Internal task: replace this process by the worker's command, or report why that is impossible.
    Exec(Vec<String>),
}

/// A listening socket of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// A TCP socket, given as `HOST:PORT` or `PORT`.
    Tcp(String),
    /// A UDP socket, given as `uHOST:PORT` or `uPORT`; the value is the part after the `u`.
    Udp(String),
    /// A Unix socket at this path, given by `--path`.
    Unix(PathBuf),
}

/// The options that say how to supervise workers.
pub(crate) struct Options {
    pub(crate) listen: Vec<Listen>,
    /// `--interval`: how long a new worker must live to count as started.
    pub(crate) interval: Duration,
    pub(crate) log_file: Option<String>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) status_file: Option<PathBuf>,
    /// `--dir`: the directory in which workers are started.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) signal_on_hup: Signal,
    pub(crate) signal_on_term: Signal,
    pub(crate) backlog: i32,
    /// `--envdir`: a directory with one file for each environment variable of the workers.
    pub(crate) environment: Option<PathBuf>,
    /// `--enable-auto-restart` with `--auto-restart-interval`: after how long a worker is replaced.
    pub(crate) auto_restart: Option<Duration>,
    pub(crate) kill_old_delay: Duration,
    pub(crate) is_daemon: bool,
    /// The path of the program that obtains certificates (`loader` of `acme`), followed by its arguments; empty if there
    /// is no such program.
    pub(crate) loader: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Port,
    Path,
    Interval,
    LogFile,
    PidFile,
    StatusFile,
    Dir,
    SignalOnHup,
    SignalOnTerm,
    Backlog,
    EnvDir,
    EnableAutoRestart,
    AutoRestartInterval,
    KillOldDelay,
    Daemonize,
    Loader,
    Restart,
    Stop,
    Help,
    Version,
    Exec,
}

/// An internal option, with which the supervisor starts this program so that it becomes a worker, see [`super::workers`].
pub(super) const EXEC: &str = "exec-worker";

/// The name of an internal option, by which `-m master` passes on the command that obtains certificates: once for the
/// program and once for each of its arguments.
pub(crate) const LOADER: &str = "acme-loader";

const KNOWN: &[Known<Flag>] = &[
    long("port", true, Flag::Port),
    long("path", true, Flag::Path),
    long("interval", true, Flag::Interval),
    long("log-file", true, Flag::LogFile),
    long("pid-file", true, Flag::PidFile),
    long("status-file", true, Flag::StatusFile),
    long("dir", true, Flag::Dir),
    long("signal-on-hup", true, Flag::SignalOnHup),
    long("signal-on-term", true, Flag::SignalOnTerm),
    long("backlog", true, Flag::Backlog),
    long("envdir", true, Flag::EnvDir),
    long("enable-auto-restart", false, Flag::EnableAutoRestart),
    long("auto-restart-interval", true, Flag::AutoRestartInterval),
    long("kill-old-delay", true, Flag::KillOldDelay),
    long("daemonize", false, Flag::Daemonize),
    long("restart", false, Flag::Restart),
    long("stop", false, Flag::Stop),
    long("help", false, Flag::Help),
    long("version", false, Flag::Version),
    long(EXEC, false, Flag::Exec),
    long(LOADER, true, Flag::Loader),
];

const HELP: &str = "Usage:
  start_server [options] -- COMMAND [ARGUMENT]...

Opens sockets, starts the command as a worker that serves on them, and starts it
again when it ends. HUP replaces the worker without an outage, TERM and INT end
it, USR1 is passed on.

Options:
  --port=(HOST:PORT|PORT)     a TCP socket; with `u` before the port, a UDP socket
  --path=PATH                 a Unix socket
  --interval=SECONDS          how long a worker must live to count as started,
                              and the pause between attempts (default: 1)
  --log-file=FILE             where messages of all processes go; `| COMMAND`
                              starts a command that reads them
  --pid-file=FILE             where the process id is written
  --status-file=FILE          where `GENERATION:PID` of each worker is written
  --dir=DIRECTORY             where workers are started
  --signal-on-hup=SIGNAL      what ends old workers after HUP (default: TERM)
  --signal-on-term=SIGNAL     what ends workers after TERM and INT (default: TERM)
  --backlog=NUMBER            length of the accept queues
  --envdir=DIRECTORY          a file for each environment variable of workers,
                              read whenever one is started
  --enable-auto-restart       replaces the worker again and again
  --auto-restart-interval=SECONDS  how often (default: 360)
  --kill-old-delay=SECONDS    time between the start of a new worker and the end
                              of old ones (default: 0; 5 with auto restart)
  --daemonize                 goes to the background
  --restart                   asks a running supervisor, found by --pid-file, to
                              replace its workers, and waits until --status-file
                              says that it has
  --stop                      ends a running supervisor, found by --pid-file
  --help, --version
";

/// The options that were read so far.
struct Reading {
    options: Options,
    environment_interval: Option<Duration>,
    kill_old_delay: Option<Duration>,
    is_restart: bool,
    is_stop: bool,
    is_exec: bool,
}

/// Reads the command line; `words` does not include the program's name. `variable` reads an environment variable.
///
/// # Errors
/// The error message for the administrator.
pub(crate) fn parse(
    arguments: impl Iterator<Item = String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Task, String> {
    let mut reading = from_environment(variable)?;
    let mut line = CommandLine::new("start_server", KNOWN, arguments);
    let mut command = Vec::new();
    while let Some(argument) = line.next()? {
        match argument {
            Argument::Option(Flag::Help, _) => return Ok(Task::Print(HELP.to_owned())),
            Argument::Option(Flag::Version, _) => {
                return Ok(Task::Print(format!("{}\n", h2o_handlers::SERVER_VERSION)));
            }
            Argument::Option(flag, value) => reading.apply(flag, value.unwrap_or_default())?,
            // This word and all after it are the worker's command; the options among them are not the supervisor's.
            Argument::Word(word) => {
                command.push(word);
                break;
            }
            Argument::End => break,
        }
    }
    command.extend(line.rest());
    reading.finish(command)
}

fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Reading, String> {
    let seconds_in = |name: &str| variable(name).map(|text| seconds(name, &text)).transpose();
    let is_set = |name: &str| variable(name).is_some_and(|text| !text.is_empty() && text != "0");
    Ok(Reading {
        options: Options {
            listen: Vec::new(),
            interval: Duration::from_secs(1),
            log_file: None,
            pid_file: None,
            status_file: None,
            directory: None,
            signal_on_hup: Signal::SIGTERM,
            signal_on_term: Signal::SIGTERM,
            backlog: 65_535,
            environment: variable("ENVDIR").map(PathBuf::from),
            auto_restart: is_set("ENABLE_AUTO_RESTART").then_some(DEFAULT_AUTO_RESTART),
            kill_old_delay: Duration::ZERO,
            is_daemon: false,
            loader: Vec::new(),
        },
        environment_interval: seconds_in("AUTO_RESTART_INTERVAL")?,
        kill_old_delay: seconds_in("KILL_OLD_DELAY")?,
        is_restart: false,
        is_stop: false,
        is_exec: false,
    })
}

const DEFAULT_AUTO_RESTART: Duration = Duration::from_secs(360);

impl Reading {
    fn apply(&mut self, flag: Flag, value: String) -> Result<(), String> {
        let options = &mut self.options;
        match flag {
            Flag::Port => options.listen.push(port(&value)?),
            Flag::Path => options.listen.push(Listen::Unix(value.into())),
            Flag::Interval => options.interval = seconds("--interval", &value)?,
            Flag::LogFile => options.log_file = Some(value),
            Flag::PidFile => options.pid_file = Some(value.into()),
            Flag::StatusFile => options.status_file = Some(value.into()),
            Flag::Dir => options.directory = Some(value.into()),
            Flag::SignalOnHup => options.signal_on_hup = signal(&value)?,
            Flag::SignalOnTerm => options.signal_on_term = signal(&value)?,
            Flag::Backlog => {
                let number = value.parse().ok().filter(|number| *number > 0);
                options.backlog =
                    number.ok_or_else(|| format!("--backlog: `{value}` is not a number"))?;
            }
            Flag::EnvDir => options.environment = Some(value.into()),
            Flag::EnableAutoRestart => options.auto_restart = Some(DEFAULT_AUTO_RESTART),
            Flag::AutoRestartInterval => {
                self.environment_interval = Some(seconds("--auto-restart-interval", &value)?);
            }
            Flag::KillOldDelay => {
                self.kill_old_delay = Some(seconds("--kill-old-delay", &value)?);
            }
            Flag::Daemonize => options.is_daemon = true,
            Flag::Loader => options.loader.push(value),
            Flag::Restart => self.is_restart = true,
            Flag::Stop => self.is_stop = true,
            Flag::Exec => self.is_exec = true,
            // [`parse`] handles `--help` and `--version` before it calls this function.
            Flag::Help | Flag::Version => {}
        }
        Ok(())
    }

    fn finish(mut self, command: Vec<String>) -> Result<Task, String> {
        let options = &mut self.options;
        if self.is_exec {
            return Ok(Task::Exec(command));
        }
        let pid_file = options.pid_file.clone();
        if self.is_stop {
            let pid_file = pid_file.ok_or("--stop option requires --pid-file to be set as well")?;
            return Ok(Task::Stop { pid_file });
        }
        if self.is_restart {
            let files = pid_file.zip(options.status_file.take());
            let (pid_file, status_file) =
                files.ok_or("--restart option requires --pid-file and --status-file to be set")?;
            return Ok(Task::Restart {
                pid_file,
                status_file,
            });
        }
        if command.is_empty() {
            return Err("server program not specified (see start_server --help)".to_owned());
        }
        if let (Some(interval), Some(given)) =
            (&mut options.auto_restart, self.environment_interval)
        {
            *interval = given;
        }
        let default_delay = if options.auto_restart.is_some() { 5 } else { 0 };
        options.kill_old_delay = self
            .kill_old_delay
            .unwrap_or(Duration::from_secs(default_delay));
        Ok(Task::Supervise(Box::new(self.options), command))
    }
}

fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{name}: `{text}` is not a number of seconds"))
}

fn signal(name: &str) -> Result<Signal, String> {
    let long = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(name));
    long.parse()
        .map_err(|_| format!("`{name}` is not the name of a signal"))
}

/// Reads `HOST:PORT`, `[IPV6]:PORT` or `PORT`.
fn port(text: &str) -> Result<Listen, String> {
    let (host, number) = match text.rsplit_once(':') {
        Some((host, number)) => (format!("{host}:"), number),
        None => (String::new(), text),
    };
    let udp = number.strip_prefix('u');
    let number: u16 = (udp.unwrap_or(number).parse())
        .map_err(|_| format!("--port: `{text}` is not an address (HOST:PORT or PORT)"))?;
    let address = format!("{host}{number}");
    Ok(if udp.is_some() {
        Listen::Udp(address)
    } else {
        Listen::Tcp(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str, variables: &[(&str, &str)]) -> Result<Task, String> {
        parse(words.split_whitespace().map(str::to_owned), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn options_end_where_the_command_begins() {
        for separator in ["--", ""] {
            let line = format!(
                "--port=127.0.0.1:80 --port=u443 --port [::1]:u8443 --path=/s --interval=0.5 {separator} h2o -c f --stop"
            );
            let Ok(Task::Supervise(options, command)) = read(&line, &[]) else {
                panic!("the options are refused");
            };
            assert_eq!(command, ["h2o", "-c", "f", "--stop"]);
            let want = [
                Listen::Tcp("127.0.0.1:80".to_owned()),
                Listen::Udp("443".to_owned()),
                Listen::Udp("[::1]:8443".to_owned()),
                Listen::Unix("/s".into()),
            ];
            assert_eq!(options.listen, want);
            assert_eq!(options.interval, Duration::from_millis(500));
            assert_eq!(options.auto_restart, None);
            assert_eq!(options.kill_old_delay, Duration::ZERO);
        }
    }

    #[test]
    fn options_come_before_the_environment_and_both_before_defaults() {
        let delays = |line: &str, variables: &[(&str, &str)]| match read(line, variables) {
            Ok(Task::Supervise(options, _)) => (
                options.auto_restart.map(|every| every.as_secs()),
                options.kill_old_delay.as_secs(),
            ),
            _ => panic!("the options are refused"),
        };
        let variables = [
            ("ENABLE_AUTO_RESTART", "1"),
            ("AUTO_RESTART_INTERVAL", "7"),
            ("KILL_OLD_DELAY", "3"),
        ];
        assert_eq!(delays("true", &[]), (None, 0));
        assert_eq!(delays("--enable-auto-restart true", &[]), (Some(360), 5));
        assert_eq!(delays("true", &variables), (Some(7), 3));
        let line = "--auto-restart-interval=9 --kill-old-delay=0 true";
        assert_eq!(delays(line, &variables), (Some(9), 0));
    }

    #[test]
    fn no_command_line_is_half_understood() {
        for line in [
            "",
            "--port=80 --",
            "--port=x true",
            "--port=127.0.0.1 true",
            "--port=127.0.0.1:80=3 true",
            "--interval=-1 true",
            "--interval=soon true",
            "--backlog=0 true",
            "--signal-on-hup=NONSENSE true",
            "--stop",
            "--restart --pid-file=p",
            "--nonsense true",
        ] {
            assert!(read(line, &[]).is_err(), "{line}");
        }
    }
}
