//! `h2o compress`: publishes the compressed variants of files that `file.send-compressed` serves.

mod find;
mod progress;
mod variant;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::getopt::{Argument, CommandLine, Known, help, letter};
use crate::usage::{Operands, Usage};
use crate::{Failure, print_out};
use progress::Progress;
use variant::{Coding, Outcome};

/// The text of `h2o compress --help` and of the man page.
pub(crate) fn usage() -> Usage {
    Usage {
        name: "compress",
        words: "[options] DIRECTORY...",
        operands: Operands::Directories,
        about: "Publishes compressed variants beside the files of a directory, for\nfile.send-compressed: NAME.br, NAME.zst and NAME.gz.",
        options: KNOWN.iter().map(Known::described).collect(),
        end: "A variant is published only if the type of the file gains by compression and the
variant is smaller. It gets the mtime of the file, and a variant with that mtime
is not made again. Exit status: 0; 1 if a file could not be compressed.
",
    }
}

/// Largest number of threads that compress at the same time: each holds a whole file and the memory of a compressor.
const MAX_JOBS: usize = 256;

/// The command line of `h2o compress`.
struct Options {
    directories: Vec<PathBuf>,
    jobs: usize,
    is_quiet: bool,
}

#[derive(Clone, Copy)]
enum Flag {
    Jobs,
    Quiet,
    Help,
}

const KNOWN: &[Known<Flag>] = &[
    letter('j', "jobs", true, Flag::Jobs).help(
        "NUMBER",
        "files compressed at the same time (default: the number of\nprocessors)",
    ),
    letter('q', "quiet", false, Flag::Quiet).help("", "prints errors only"),
    help(Flag::Help),
];

/// Runs `h2o compress`; `arguments` are the words after `compress`.
///
/// # Errors
/// The files that could not be compressed, or what is wrong with the command line.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let Some(options) = parse(arguments).map_err(Failure::config)? else {
        print_out(&usage().help());
        return Ok(());
    };
    let mut errors = Vec::new();
    let mut originals = Vec::new();
    for directory in &options.directories {
        find::below(directory, &mut originals, &mut errors);
    }
    let is_interrupted = watch_signals()?;
    let (summary, failed) = publish(&originals, &options, &is_interrupted);
    errors.extend(failed);
    if !options.is_quiet {
        print_out(&summary.text());
    }
    if is_interrupted.load(Ordering::Relaxed) {
        errors.push("interrupted: some files are not compressed".into());
    }
    if errors.is_empty() {
        return Ok(());
    }
    errors.sort();
    Err(Failure::check(errors.join("\n")))
}

/// Reads the command line. Returns `None` if `--help` is given.
fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        directories: Vec::new(),
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        is_quiet: false,
    };
    let mut line = CommandLine::new("h2o compress", KNOWN, arguments);
    while let Some(argument) = line.next()? {
        match argument {
            Argument::Option(Flag::Jobs, value) => {
                let value = value.unwrap_or_default();
                let number = value
                    .parse()
                    .ok()
                    .filter(|jobs| (1..=MAX_JOBS).contains(jobs));
                options.jobs = number.ok_or_else(|| {
                    format!("--jobs: `{value}` is not a number from 1 to {MAX_JOBS}")
                })?;
            }
            Argument::Option(Flag::Quiet, _) => options.is_quiet = true,
            Argument::Option(Flag::Help, _) => return Ok(None),
            Argument::Word(word) => options.directories.push(word.into()),
            Argument::End => {
                options.directories.extend(line.rest().map(PathBuf::from));
                break;
            }
        }
    }
    if options.directories.is_empty() {
        return Err("h2o compress: name a directory (see h2o compress --help)".into());
    }
    Ok(Some(options))
}

/// Returns a flag that the first SIGINT or SIGTERM sets, so that the command can stop without leaving temporary files.
/// A second signal ends the program at once.
fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Failure::system(format!("cannot catch signals: {error}")))?;
    }
    Ok(flag)
}

/// Counts of the variants by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    published: u64,
    current: u64,
    not_smaller: u64,
    /// Size in bytes of the original files of which variants were published.
    original: u64,
    /// Size in bytes of the published variants.
    compressed: u64,
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Published {
                original,
                compressed,
            } => {
                self.published += 1;
                self.original += original;
                self.compressed += compressed;
            }
            Outcome::Current => self.current += 1,
            Outcome::NotSmaller => self.not_smaller += 1,
        }
    }

    fn text(&self) -> String {
        let saved = self.original - self.compressed;
        let percent = (saved * 100).checked_div(self.original).unwrap_or(0);
        format!(
            "{} variants published, {} up to date, {} not smaller than the file; saved {saved} of {} bytes ({percent} %)\n",
            self.published, self.current, self.not_smaller, self.original,
        )
    }
}

/// Publishes the variants of all files, and returns messages about the files that failed.
fn publish(
    originals: &[PathBuf],
    options: &Options,
    is_interrupted: &AtomicBool,
) -> (Summary, Vec<String>) {
    let jobs: Vec<(&PathBuf, Coding)> = originals
        .iter()
        .flat_map(|original| Coding::ALL.map(|coding| (original, coding)))
        .collect();
    let next = AtomicUsize::new(0);
    let progress = Progress::new(jobs.len(), options.is_quiet);
    let done = Mutex::new((Summary::default(), Vec::new(), progress));
    let work = || {
        while !is_interrupted.load(Ordering::Relaxed)
            && let Some(&(original, coding)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let outcome = variant::publish(original, coding);
            let mut done = done
                .lock()
                .expect("no thread panics while it holds the lock of the counts");
            let (summary, errors, progress) = &mut *done;
            match outcome {
                Ok(outcome) => summary.add(outcome),
                Err(error) => errors.push(format!("{}: {error}", original.display())),
            }
            progress.advance();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..options.jobs.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    let (summary, errors, progress) = done.into_inner().expect("no thread has panicked");
    progress.finish();
    (summary, errors)
}
