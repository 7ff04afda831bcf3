//! `h2o reload`: asks the running server to reload its configuration, or what that would change.

use std::path::Path;

use h2o_config::OsSource;
use h2o_log::report_plainly;

use crate::question::Question;
use crate::{DEFAULT_CONFIG, Failure, control, print_out};

/// `h2o reload`: asks the running server. `arguments` are those behind `reload`.
///
/// # Errors
/// The text and exit status of the server, or that there is none.
pub(crate) fn command(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut options = Options::parse(arguments).map_err(Failure::config)?;
    let pid_file = match options.pid_file.take() {
        Some(path) => path,
        None => configured_pid_file(&options.config)?,
    };
    let answer = control::ask(Path::new(&pid_file), options.question)?;
    for message in &answer.messages {
        report_plainly(message);
    }
    for line in &answer.lines {
        print_out(&format!("{line}\n"));
    }
    match answer.code {
        0 => Ok(()),
        // Everything is said.
        code => Err(Failure {
            text: String::new(),
            code,
        }),
    }
}

/// The command line of `h2o reload`.
struct Options {
    config: String,
    pid_file: Option<String>,
    question: Question,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            config: DEFAULT_CONFIG.to_owned(),
            pid_file: None,
            question: Question::Reload,
        };
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (&*argument, None),
            };
            let mut value = || {
                let value = value.clone().or_else(|| arguments.next());
                value.ok_or_else(|| format!("h2o reload: option '{name}' requires an argument"))
            };
            match name {
                "-c" | "--conf" => options.config = value()?,
                "--pid-file" => options.pid_file = Some(value()?),
                "--diff" => options.question = Question::Differences,
                _ => {
                    return Err(format!(
                        "h2o reload: unrecognized option '{argument}' (usage: h2o reload [-c FILE] [--pid-file FILE] [--diff])"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// `pid-file` of a configuration. Only that is read: the server says what is wrong with the rest.
fn configured_pid_file(config: &str) -> Result<String, Failure> {
    let top =
        h2o_config::load(config, &OsSource).map_err(|error| Failure::config(error.to_string()))?;
    let entries = top.as_mapping().unwrap_or_default().iter();
    let named = entries.filter(|(key, _)| key.as_str() == Some("pid-file"));
    let path = named.filter_map(|(_, value)| value.as_str()).next_back();
    path.map(str::to_owned).ok_or_else(|| {
        Failure::config(format!(
            "{config} has no `pid-file`, so the running server cannot be found; send it the signal HUP"
        ))
    })
}
