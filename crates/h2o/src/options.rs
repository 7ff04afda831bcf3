//! The command line, read as GNU `getopt_long` reads it. H2O compatibility: H2O applies options from left to right, accepts
//! abbreviations of long ones, and ignores other words. No argument parser we know does all three.

use crate::DEFAULT_CONFIG;

/// The action that the command line asks for.
pub(crate) enum Command {
    Run(Options),
    /// Print this and end.
    Print(String),
}

/// How to run.
pub(crate) struct Options {
    /// `-c`.
    pub(crate) config: Option<String>,
    pub(crate) mode: Mode,
    /// The first word that is not an option. H2O compatibility: H2O ignores such words; we do if there is a configuration.
    pub(crate) stray: Option<String>,
    /// `--strict`: not in H2O.
    pub(crate) is_strict: bool,
}

/// `-m`.
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
            .ok_or_else(|| format!("unknown mode:{name} (`worker` and `test` are supported)"))
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
}

/// Added to the texts of `getopt_long`.
const SEE: &str = " (see h2o --help)";

const LONG: &[(&str, Flag)] = &[
    ("conf", Flag::Conf),
    ("mode", Flag::Mode),
    ("test", Flag::Test),
    ("strict", Flag::Strict),
    ("version", Flag::Version),
    ("help", Flag::Help),
    ("list-directives", Flag::ListDirectives),
];

const SHORT: &[(char, Flag)] = &[
    ('c', Flag::Conf),
    ('m', Flag::Mode),
    ('t', Flag::Test),
    ('v', Flag::Version),
    ('h', Flag::Help),
];

impl Flag {
    fn takes_value(self) -> bool {
        matches!(self, Self::Conf | Self::Mode)
    }
}

/// Reads the command line, program name left out.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        config: None,
        mode: Mode::Worker,
        stray: None,
        is_strict: false,
    };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            options.stray = options.stray.or_else(|| arguments.next());
            break;
        }
        if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| {
                (name, Some(value.to_string()))
            });
            let flag = find_long(name)?;
            let value =
                match (flag.takes_value(), value) {
                    (true, None) => Some(arguments.next().ok_or_else(|| {
                        format!("h2o: option '--{name}' requires an argument{SEE}")
                    })?),
                    (false, Some(_)) => {
                        return Err(format!(
                            "h2o: option '--{name}' doesn't allow an argument{SEE}"
                        ));
                    }
                    (_, value) => value,
                };
            if let Some(text) = apply(&mut options, flag, value)? {
                return Ok(Command::Print(text));
            }
        } else if let Some(mut letters) = argument
            .strip_prefix('-')
            .filter(|letters| !letters.is_empty())
        {
            while let Some(letter) = letters.chars().next() {
                letters = &letters[letter.len_utf8()..];
                let flag = SHORT
                    .iter()
                    .find(|(short, _)| *short == letter)
                    .map(|(_, flag)| *flag);
                let flag = flag.ok_or_else(|| format!("h2o: invalid option -- '{letter}'{SEE}"))?;
                let mut value = None;
                if flag.takes_value() {
                    let rest = std::mem::take(&mut letters);
                    let next = if rest.is_empty() {
                        arguments.next()
                    } else {
                        Some(rest.to_string())
                    };
                    value = Some(next.ok_or_else(|| {
                        format!("h2o: option requires an argument -- '{letter}'{SEE}")
                    })?);
                }
                if let Some(text) = apply(&mut options, flag, value)? {
                    return Ok(Command::Print(text));
                }
            }
        } else {
            options.stray.get_or_insert(argument);
        }
    }
    Ok(Command::Run(options))
}

fn find_long(name: &str) -> Result<Flag, String> {
    if let Some((_, flag)) = LONG.iter().find(|(long, _)| *long == name) {
        return Ok(*flag);
    }
    let mut found = LONG
        .iter()
        .filter(|(long, _)| !name.is_empty() && long.starts_with(name));
    match (found.next(), found.next()) {
        (Some((_, flag)), None) => Ok(*flag),
        (None, _) => Err(format!("h2o: unrecognized option '--{name}'{SEE}")),
        (Some(_), Some(_)) => Err(format!("h2o: option '--{name}' is ambiguous{SEE}")),
    }
}

/// Applies one option. Returns a text that is to be printed at once.
fn apply(
    options: &mut Options,
    flag: Flag,
    value: Option<String>,
) -> Result<Option<String>, String> {
    match flag {
        Flag::Conf => options.config = value,
        Flag::Mode => options.mode = Mode::parse(&value.unwrap_or_default())?,
        Flag::Test => options.mode = Mode::Test,
        Flag::Strict => options.is_strict = true,
        Flag::Version => return Ok(Some(version())),
        Flag::Help => return Ok(Some(help())),
        Flag::ListDirectives => return Ok(Some(list_directives())),
    }
    Ok(None)
}

fn version() -> String {
    format!(
        "h2o version {}\nOpenSSL: {}\nkey-exchanges: {}\n",
        h2o_handlers::SERVER_VERSION,
        h2o_handlers::TLS_LIBRARY,
        h2o_server::tls_group_names().join(", ")
    )
}

fn help() -> String {
    format!(
        "h2o version {}

Usage:
  h2o [options]
  h2o mruby FILE [REQUEST...]  runs a handler file without a server
                               (see h2o mruby --help)

Options:
  -c, --conf FILE        configuration file (default: {DEFAULT_CONFIG};
                         if that does not exist, the current directory is
                         served on ports 8080 and 8443)
  -m, --mode MODE        one of the following modes:
                         - worker: serves in the foreground (default)
                         - test:   checks the configuration and exits
                         - master, daemon: not supported yet
  -t, --test             the same as --mode=test
      --strict           with --test: exits with 78 if there are warnings
  -v, --version          prints versions and key exchange groups
  -h, --help             prints this help
      --list-directives  prints the name of every directive

docs/directives.md says for every directive where it may be used, how its value
is written and what its default is. The manual begins at docs/README.md.
",
        h2o_handlers::SERVER_VERSION
    )
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
        }
    }

    #[test]
    fn options_are_read_as_getopt_long_reads_them() {
        let run = |config: Option<&str>, mode| Ok((config.map(str::to_string), mode));
        let version = format!("h2o version {}", h2o_handlers::SERVER_VERSION);
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
            (
                &["-m", "Worker"],
                Err("unknown mode:Worker (`worker` and `test` are supported)".into()),
            ),
            (&["--ver", "--nonsense"], Err(version.clone())),
            (&["-vx"], Err(version)),
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
