//! The command line of `h2o`. H2O compatibility: H2O applies options from left to right, accepts abbreviations of long options, and
//! ignores words that are no options. H2O has no commands: the name of a command behind the options is refused.

use crate::getopt::{Argument, CommandLine, Known, help, letter, long};
use crate::usage::{Operands, Usage};

/// The words that name a command if the command line begins with them.
pub(crate) const COMMANDS: &[&str] = &[
    "reload",
    "top",
    "compress",
    #[cfg(feature = "mruby")]
    "mruby",
];

/// The action that the command line asks for.
pub(crate) enum Command {
    Run(Options),
    /// Print this text and end.
    Print(String),
    /// `--help`: print the help text and end.
    Help,
    /// `--generate`: print a man page or shell completions, and end.
    Generate(String),
}

/// The options of the command line that say how to run.
pub(crate) struct Options {
    /// `-c`: the configuration file.
    pub(crate) config: Option<String>,
    pub(crate) mode: Mode,
    /// The first word of the command line that is not an option. H2O compatibility: H2O ignores such words; this server
    /// ignores them if a configuration is given and the first of them is not the name of a command.
    pub(crate) stray: Option<String>,
    /// `--strict`, which H2O does not have: whether warnings make the test of a configuration fail.
    pub(crate) is_strict: bool,
}

/// `-m`: the run mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Worker,
    Master,
    Daemon,
    Test,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Master => "master",
            Self::Daemon => "daemon",
            Self::Test => "test",
        }
    }

    fn parse(name: &str) -> Result<Self, String> {
        let all = [Self::Worker, Self::Master, Self::Daemon, Self::Test];
        all.into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| format!("unknown mode:{name}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Conf,
    Mode,
    Test,
    Strict,
    Version,
    Help,
    ListDirectives,
    Generate,
}

const KNOWN: &[Known<Flag>] = &[
    letter('c', "conf", true, Flag::Conf).help(
        "FILE",
        "configuration file (default: /usr/local/etc/h2o.conf;
if that does not exist, the modes test, master and
daemon use /etc/h2o/h2o.conf, and the mode worker
serves the current directory on ports 8080 and 8443)",
    ),
    letter('m', "mode", true, Flag::Mode).one_of(
        "MODE",
        &["worker", "test", "master", "daemon"],
        "one of the following modes:
- worker: serves in the foreground (default)
- test:   checks the configuration and exits
- master: checks the configuration, then starts and
  supervises workers in the foreground
- daemon: the same in the background",
    ),
    letter('t', "test", false, Flag::Test).help("", "the same as --mode=test"),
    long("strict", false, Flag::Strict)
        .help("", "with --test: exits with 78 if there are warnings"),
    letter('v', "version", false, Flag::Version)
        .help("", "prints the versions of h2o and its TLS library, the\noptional parts, and the key exchange groups of TLS"),
    help(Flag::Help),
    long("list-directives", false, Flag::ListDirectives)
        .help("", "prints the name of every directive"),
    long("generate", true, Flag::Generate).one_of(
        "KIND",
        &["h2o.8", "h2o.conf.5", "bash", "zsh", "fish"],
        "prints a man page, or completions of a shell:
h2o.8, h2o.conf.5, bash, zsh or fish",
    ),
];

/// Reads the command line; `words` does not include the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        config: None,
        mode: Mode::Worker,
        stray: None,
        is_strict: false,
    };
    let mut line = CommandLine::new("h2o", KNOWN, arguments);
    while let Some(argument) = line.next()? {
        match argument {
            Argument::Option(flag, value) => {
                if let Some(command) = apply(&mut options, flag, value)? {
                    return Ok(command);
                }
            }
            Argument::Word(word) => {
                options.stray.get_or_insert(word);
            }
            Argument::End => {
                options.stray = options.stray.or_else(|| line.rest().next());
                break;
            }
        }
    }
    match options.stray.as_deref() {
        // The server would start although the user wants something else.
        Some(word) if COMMANDS.contains(&word) => Err(format!(
            "unexpected argument: {word} (the command comes first: `h2o {word} [options]`)"
        )),
        Some(_) | None => Ok(Command::Run(options)),
    }
}

/// Applies one option. Returns an action if the option, such as `--help`, asks for one in place of serving.
fn apply(
    options: &mut Options,
    flag: Flag,
    value: Option<String>,
) -> Result<Option<Command>, String> {
    match flag {
        Flag::Conf => options.config = value,
        Flag::Mode => options.mode = Mode::parse(&value.unwrap_or_default())?,
        Flag::Test => options.mode = Mode::Test,
        Flag::Strict => options.is_strict = true,
        Flag::Version => return Ok(Some(Command::Print(version()))),
        Flag::Help => return Ok(Some(Command::Help)),
        Flag::ListDirectives => return Ok(Some(Command::Print(list_directives()))),
        Flag::Generate => return Ok(Some(Command::Generate(value.unwrap_or_default()))),
    }
    Ok(None)
}

/// The text of `--version`, with the features of this build and of the kernel. The words and their order are H2O's, since other
/// programs search for them.
fn version() -> String {
    let parts = [
        ("mruby", cfg!(feature = "mruby")),
        ("brotli", true),
        ("zstd", true),
        ("capabilities", true),
        ("ktls", h2o_server::has_kernel_tls()),
    ];
    let parts: String = parts
        .iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(name, _)| format!("{name}: YES\n"))
        .collect();
    format!(
        "h2o version {}\nOpenSSL: {}\n{parts}key-exchanges: {}\n",
        h2o_handlers::SERVER_VERSION,
        h2o_handlers::TLS_LIBRARY,
        h2o_server::tls_group_names().join(", ")
    )
}

/// The text of `h2o --help` and of the man page.
pub(crate) fn usage() -> Usage {
    Usage {
        name: "",
        words: "[options]",
        operands: Operands::None,
        about: "",
        options: KNOWN.iter().map(Known::described).collect(),
        end: "docs/directives.md says for every directive where it may be used, how its value
is written and what its default is. The manual begins at docs/README.md.
",
    }
}

fn list_directives() -> String {
    h2o_server::features()
        .registry
        .names()
        .into_iter()
        .map(|name| format!("{name}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<(Option<String>, Mode), String>;

    fn read(words: &[&str]) -> Read {
        match parse(words.iter().map(|word| (*word).to_string()))? {
            Command::Run(options) => Ok((options.config, options.mode)),
            Command::Print(text) => Err(text.lines().next().unwrap_or_default().to_string()),
            Command::Help | Command::Generate(_) => Err("other".into()),
        }
    }

    #[test]
    fn options_are_read_as_getopt_long_reads_them() {
        let run = |config: Option<&str>, mode| Ok((config.map(str::to_string), mode));
        let version = format!("h2o version {}", h2o_handlers::SERVER_VERSION);
        let misplaced = |word: &str| {
            Err(format!(
                "unexpected argument: {word} (the command comes first: `h2o {word} [options]`)"
            ))
        };
        let cases: &[(&[&str], Read)] = &[
            (&[], run(None, Mode::Worker)),
            (&["-c", "a"], run(Some("a"), Mode::Worker)),
            (&["-ca"], run(Some("a"), Mode::Worker)),
            (&["--conf=a", "--conf", "b"], run(Some("b"), Mode::Worker)),
            (&["--co", "a", "stray", "-t"], run(Some("a"), Mode::Test)),
            (&["-tc", "a"], run(Some("a"), Mode::Test)),
            (&["-m", "test"], run(None, Mode::Test)),
            (&["--mode=daemon"], run(None, Mode::Daemon)),
            (&["--", "-t"], run(None, Mode::Worker)),
            (&["-m", "Worker"], Err("unknown mode:Worker".into())),
            (&["--ver", "--nonsense"], Err(version.clone())),
            (&["-vx"], Err(version)),
            (
                &["-c", "reload", "a", "reload"],
                run(Some("reload"), Mode::Worker),
            ),
            (&["-c", "a", "reload"], misplaced("reload")),
            (&["-t", "top", "-c", "a"], misplaced("top")),
            (&["-m", "master", "--", "compress"], misplaced("compress")),
            (
                &["-x"],
                Err("h2o: invalid option -- 'x' (see h2o --help)".into()),
            ),
            (
                &["-c"],
                Err("h2o: option requires an argument -- 'c' (see h2o --help)".into()),
            ),
            (
                &["--conf"],
                Err("h2o: option '--conf' requires an argument (see h2o --help)".into()),
            ),
            (
                &["--test=1"],
                Err("h2o: option '--test' doesn't allow an argument (see h2o --help)".into()),
            ),
            (
                &["--nonsense"],
                Err("h2o: unrecognized option '--nonsense' (see h2o --help)".into()),
            ),
        ];
        for (words, want) in cases {
            assert_eq!(read(words), *want, "{words:?}");
        }
    }
}
