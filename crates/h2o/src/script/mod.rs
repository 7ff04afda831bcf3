//! `h2o mruby`: runs a script of `mruby.handler` without a server, on requests that the user describes, so that the script can be
//! tested before it is deployed.

mod case;
mod report;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use h2o_config::{Directive, Kinds, Levels, OsSource, Pass, Source};
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, Response, Scope};
use h2o_http::{Headers, StatusCode};
use h2o_server::TrialError;

use crate::getopt::{Argument, CommandLine, Known, help, letter, long};
use crate::quick::{BuiltIn, quoted};
use crate::usage::{Operands, Usage};
use crate::{Failure, print_out};
use case::Case;
use report::{DELEGATES, Report};

/// How long the script may take for a response, unless `--timeout` is given.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The text of `h2o mruby --help` and of the man page.
pub(crate) fn usage() -> Usage {
    Usage {
        name: "mruby",
        words: "[options] FILE [REQUEST...]",
        operands: Operands::Files,
        about: "Runs a handler file without a server: prints the responses to requests, or checks\nthose of a test file.",
        options: KNOWN.iter().map(Known::described).collect(),
        end: "A REQUEST is a line such as 'GET /a?b', or several: see docs/scripts.md. The
default is one for PATH. Exit status: 0, or 1 if an assertion does not hold or
the script raises, or 78 if the script does not load.
",
    }
}

/// The options on the command line of `h2o mruby`.
struct Options {
    file: String,
    path: String,
    tests: Option<String>,
    requests: Vec<String>,
    timeout: Duration,
}

/// Runs `h2o mruby`; `arguments` are the words after `mruby`.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let Some(options) = parse(arguments).map_err(Failure::config)? else {
        print_out(&usage().help());
        return Ok(());
    };
    let cases = read_cases(&options).map_err(Failure::config)?;
    let config = BuiltIn {
        name: "h2o mruby",
        text: format!(
            "listen: 80\nmruby.time-limit: {}\nhosts:\n  default:\n    paths:\n      {}:\n        mruby.handler-file: {}\n        {DELEGATED}: ON\n",
            options.timeout.as_millis(),
            quoted(&options.path),
            quoted(&options.file)
        ),
    };
    let features = h2o_server::features_with(&[DIRECTIVES]);
    let loaded = h2o_server::load_with(features, config.name, &config)
        .map_err(|error| Failure::config(error.message))?;
    let requests: Vec<_> = cases.iter().map(|case| case.request.clone()).collect();
    let count = requests.len();
    let failed = Rc::new(Cell::new(0));
    let mut rest = cases.into_iter();
    let has_file = options.tests.is_some();
    let show = {
        let (failed, tests) = (Rc::clone(&failed), options.tests.clone());
        move |response| {
            let Some(case) = rest.next() else { return };
            let report = Report::new(&case, &response, tests.as_deref());
            failed.set(failed.get() + usize::from(!report.is_good()));
            print_out(&if has_file {
                report.brief()
            } else {
                report.whole()
            });
        }
    };
    h2o_server::try_requests(&loaded, requests, options.timeout, show)
        .map_err(|error| explain(error, &options))?;
    if has_file {
        print_out(&format!("{count} requests, {} failed\n", failed.get()));
    }
    match failed.get() {
        0 => Ok(()),
        failed => Err(Failure::check(format!(
            "{failed} of {count} requests failed"
        ))),
    }
}

fn explain(error: TrialError, options: &Options) -> Failure {
    let seconds = options.timeout.as_secs_f64();
    match error {
        TrialError::Evaluation => {
            Failure::config(format!("{}: the script raised an exception", options.file))
        }
        TrialError::TimedOut => Failure::check(format!(
            "the script gave no response within {seconds} seconds"
        )),
        TrialError::System(text) => Failure::system(text),
    }
}

/// Reads the test cases of the test file, or the one case of the command line.
fn read_cases(options: &Options) -> Result<Vec<Case>, String> {
    if let Some(tests) = &options.tests {
        let text = OsSource
            .read(tests)
            .map_err(|error| format!("{tests}: {}", h2o_log::reason(&error)))?;
        let text = String::from_utf8(text).map_err(|_| format!("{tests}: not in UTF-8"))?;
        let cases = case::parse(&text).map_err(|(line, why)| format!("{tests}:{line}: {why}"))?;
        if cases.is_empty() {
            return Err(format!("{tests}: the file has no requests"));
        }
        return Ok(cases);
    }
    let default = [options.path.clone()];
    let requests = if options.requests.is_empty() {
        &default[..]
    } else {
        &options.requests
    };
    let mut cases = Vec::new();
    for request in requests {
        cases.extend(case::parse(request).map_err(|(_, why)| why)?);
    }
    Ok(cases)
}

#[derive(Clone, Copy)]
enum Flag {
    Path,
    Test,
    Timeout,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    letter('p', "path", true, Flag::Path)
        .help("PATH", "the path that the script answers (default: /)"),
    letter('t', "test", true, Flag::Test).help("FILE", "file of requests and assertions"),
    long("timeout", true, Flag::Timeout).help(
        "SECONDS",
        "how long a response of the script may take (default: 30)",
    ),
    help(Flag::Help),
];

/// Reads the command line. Returns `None` if `--help` is given.
fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut words = Vec::new();
    let mut options = Options {
        file: String::new(),
        path: "/".into(),
        tests: None,
        requests: Vec::new(),
        timeout: TIMEOUT,
    };
    let mut line = CommandLine::new("h2o mruby", KNOWN, arguments);
    while let Some(argument) = line.next()? {
        match argument {
            Argument::Option(Flag::Path, path) => options.path = path.unwrap_or(options.path),
            Argument::Option(Flag::Test, tests) => options.tests = tests,
            Argument::Option(Flag::Timeout, text) => {
                options.timeout = parse_timeout(&text.unwrap_or_default())?;
            }
            Argument::Option(Flag::Help, _) => return Ok(None),
            Argument::Word(word) => words.push(word),
            Argument::End => {
                words.extend(line.rest());
                break;
            }
        }
    }
    if words.is_empty() {
        return Err("h2o mruby: name a handler file (see h2o mruby --help)".into());
    }
    options.file = words.remove(0);
    if options.tests.is_some() && !words.is_empty() {
        return Err("h2o mruby: give either `--test` or requests".into());
    }
    options.requests = words;
    Ok(Some(options))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (1..=86_400).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        format!("h2o mruby: `{text}` is not a whole number of seconds up to 86400; write `10`")
    })?;
    Ok(Duration::from_secs(seconds))
}

/// Name of the directive in the generated configuration that adds the handler [`Delegated`] after the script.
const DELEGATED: &str = "mruby.delegated";

const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: DELEGATED,
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "ON",
    default: "",
    help: "Answers with status 399: shows that the script lets the next handler answer.",
    apply: |scope, _| {
        scope.handlers.push(Box::new(Delegated));
        Ok(())
    },
}];

/// A handler that stands for all handlers which would follow the script: its response shows that the script delegated the request.
struct Delegated;

impl Handler for Delegated {
    fn on_request(&self, _: &mut Exchange) -> Outcome {
        let status = StatusCode::new(DELEGATES).unwrap_or(StatusCode::NOT_FOUND);
        Outcome::Done(Response::new(status, Headers::new(), Body::Empty))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }
}
