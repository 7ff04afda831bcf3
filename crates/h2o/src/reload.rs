//! Reloading the configuration while the server runs: HUP, and `h2o reload`.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use h2o_config::OsSource;
use h2o_log::{report, report_plainly};
use h2o_server::LoadedConfig;

use crate::control::{self, Answer, Question};
use crate::supervise::RunningServer;
use crate::{DEFAULT_CONFIG, Failure, print_out, privileges, run};

/// Does what a client of the control socket, or HUP, asks for. The error log gets what came of a reload.
pub(crate) fn answer(running: &mut RunningServer<'_>, question: Question) -> Answer {
    let done = match question {
        Question::Reload => reload(running),
        Question::Differences => next(running).map(|next| Answer {
            lines: running.loaded.differences(&next),
            ..Answer::default()
        }),
    };
    done.unwrap_or_else(|text| {
        if question == Question::Reload {
            report!(
                error,
                "{text}; the configuration was not reloaded, the one in use stays"
            );
        }
        refused(&text)
    })
}

/// The answer to a question that the server does not follow.
pub(crate) fn refused(text: &str) -> Answer {
    let failure = Failure::config(text);
    Answer {
        code: failure.code,
        messages: vec![failure.text],
        ..Answer::default()
    }
}

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

/// Reloads the configuration. On an error nothing has changed.
///
/// # Errors
/// The text to show.
fn reload(running: &mut RunningServer<'_>) -> Result<Answer, String> {
    let result = serve_next(running);
    let reloads = &running.server.shared().reloads;
    let count = match result {
        Ok(_) => &reloads.succeeded,
        Err(_) => &reloads.failed,
    };
    count.fetch_add(1, Relaxed);
    let messages = result?;
    for warning in &messages {
        report!(warning, "{warning}");
    }
    let done = format!("reloaded the configuration: {}", running.config);
    report!(notice, "{done}");
    Ok(Answer {
        code: 0,
        lines: vec![done],
        messages,
    })
}

/// The configuration as it is now.
fn next(running: &RunningServer<'_>) -> Result<LoadedConfig, String> {
    // A pipe would be waited for, and signals meanwhile not be heeded.
    if std::fs::metadata(running.config).is_ok_and(|file| !file.is_file()) {
        return Err(format!(
            "{} is not a file that can be read again",
            running.config
        ));
    }
    // What is wrong with the configuration is found below as well.
    let _ = h2o_opener::learn(running.config);
    h2o_server::reload(running.config, running.source, &running.loaded)
        .map_err(|error| error.to_string())
}

/// Returns warnings.
fn serve_next(running: &mut RunningServer<'_>) -> Result<Vec<String>, String> {
    let next = next(running)?;
    let settings = next.settings();
    let text = |failure: Failure| failure.text().to_owned();
    privileges::check_descriptor_limit(&settings).map_err(text)?;
    run::check_temp_buffer_path(&settings).map_err(text)?;
    let mut warnings = next.warnings.clone();
    warnings.extend(run::inspect_as_running_user(&next, None, true));
    warnings.extend(running.server.reload(&next)?);
    running.loaded = next;
    Ok(warnings)
}
