//! `file.dir` and `file.file`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Command, Directive, Kinds, Levels, Pass};
use h2o_exchange::{BodyUse, Exchange, Handler, Outcome, PathCheck, PathChecks, PathNeed, Scope};

use h2o_log::reason;
use rustix::io::Errno;

use super::cache::{ContentCache, Key};
use super::document::Document;
use super::encoding::Forms;
use super::locate::{Found, Job, Located};
use super::open::Access;
use super::service::{Service, Target};
use super::settings::file_name;
use super::{listing, respond};

pub(super) const DIR: Directive<Scope> = Directive {
    name: "file.dir",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "DIRECTORY",
    default: "none",
    help: "Serves the files of a directory. If a file does not exist there, the next handler of the path is tried, so \
           directories can be stacked. A relative name counts from the working directory.",
    apply: |scope, command| {
        let name = file_name(command.node)?;
        let service = Service::directory(scope, &name);
        let need = PathNeed::Directory {
            is_listed: service.settings.listing,
        };
        check_later(scope, command, &name, need);
        scope
            .handlers
            .push(Box::new(FileHandler(Arc::new(service))));
        Ok(())
    },
};

pub(super) const FILE: Directive<Scope> = Directive {
    name: "file.file",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "FILE",
    default: "none",
    help: "Serves one file for everything below the path. If it does not exist, the next handler of the path is tried.",
    apply: |scope, command| {
        let name = file_name(command.node)?;
        let service = Service::file(scope, &name);
        check_later(scope, command, &name, PathNeed::File);
        scope
            .handlers
            .push(Box::new(FileHandler(Arc::new(service))));
        Ok(())
    },
};

fn check_later(scope: &mut Scope, command: &Command<'_>, name: &[u8], need: PathNeed) {
    let path = Path::new(OsStr::from_bytes(name));
    let check = PathCheck::new(command, command.node, path, need);
    scope.shared.edit::<PathChecks>().0.push(check);
}

/// Label of lines in the error log.
const LABEL: &str = "lib/handler/file.c";

/// The handler of a `file.dir` or a `file.file`.
struct FileHandler(Arc<Service>);

impl Handler for FileHandler {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        if self.0.has_dynamic_types() {
            // The lookup decides whether a custom handler gets the request.
            BodyUse::Whole
        } else {
            BodyUse::None
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let service = &self.0;
        if exchange.request.path_has_nul() && matches!(service.target, Target::Directory(_)) {
            return Outcome::Declined;
        }
        if service.settings.listing
            && matches!(service.target, Target::Directory(_))
            && matches!(service.rest(exchange.request.path()), b"" | b"/")
            && let Some(asset) = listing::asset(exchange.request.query())
        {
            return Outcome::Done(asset.respond(exchange, true));
        }
        let forms = Forms::of(service.settings.compressed, &exchange.request);
        let cache = exchange.worker.local::<ContentCache>();
        let key = Key {
            service: service.id,
            forms,
            path: service.distinct(exchange.request.path()),
        };
        if let Some(entry) = cache.get(key, &exchange.worker.clock) {
            return respond::document(exchange, &entry.document);
        }
        let job = Job {
            service: Arc::clone(service),
            path: exchange.request.path().to_vec(),
            forms,
            now: wall_clock(exchange),
            turn: exchange.worker.clock.turn(),
        };
        match job.run(Access::InMemory) {
            Ok(located) => answer(exchange, &job, located),
            Err(_) => answer_later(exchange, job),
        }
    }
}

fn wall_clock(exchange: &Exchange) -> Duration {
    let now = exchange.worker.clock.unix();
    #[cfg(test)]
    let now = now + super::testing::clock_ahead();
    now
}

/// Looks the path up on the thread pool.
fn answer_later(exchange: &Exchange, job: Job) -> Outcome {
    let Some(reference) = exchange.reference() else {
        debug_assert!(false, "only exchanges of the worker reach a handler");
        return respond::internal_error(exchange);
    };
    Outcome::Later(Box::pin(async move {
        let work = tokio::task::spawn_blocking(move || {
            let located = job.run(Access::Waiting);
            (job, located)
        });
        let result = work.await;
        let mut outcome = {
            let mut exchange = reference.borrow_mut();
            match result {
                Ok((job, Ok(located))) => answer(&mut exchange, &job, located),
                Ok((_, Err(_))) | Err(_) => respond::internal_error(&exchange),
            }
        };
        // A custom handler may return a future, too.
        while let Outcome::Later(future) = outcome {
            outcome = future.await;
        }
        outcome
    }))
}

fn answer(exchange: &mut Exchange, job: &Job, located: Located) -> Outcome {
    match located {
        Located::File(found) => file(exchange, job, found),
        Located::Redirect(path) => respond::redirect(exchange, &path),
        Located::Listing(directory) => {
            let service = &job.service;
            let hidden = &service.settings.hidden;
            listing::respond(exchange, directory, hidden, service.rest(&job.path))
        }
        Located::Script { number, script } => match job.service.custom(number) {
            Some(custom) => custom.on_request(exchange, script),
            None => respond::internal_error(exchange),
        },
        Located::Missing => Outcome::Declined,
        Located::NoRoot(error) => {
            job.note_failure(exchange, error);
            Outcome::Declined
        }
        Located::Forbidden(error) => {
            if matches!(error, Errno::ACCESS | Errno::IO) {
                job.note_failure(exchange, error);
            }
            respond::forbidden(exchange)
        }
        Located::Busy => {
            job.note_failure(exchange, Errno::MFILE);
            respond::busy(exchange)
        }
    }
}

impl Job {
    /// Logs the file that could not be opened, and the reason.
    #[cold]
    fn note_failure(&self, exchange: &mut Exchange, error: Errno) {
        let path = match (&self.service.target, error) {
            (Target::Directory(root), Errno::NOENT | Errno::NOTDIR) => root.to_vec(),
            (Target::Directory(root), _) => {
                let rest = self.service.rest(&self.path);
                [root, rest.strip_prefix(b"/").unwrap_or(rest)].concat()
            }
            (Target::File { path, .. }, _) => path.to_vec(),
        };
        let mut text = format!("{}:{}", path.escape_ascii(), reason(&error.into()));
        if error == Errno::ACCESS {
            let user = rustix::process::geteuid().as_raw();
            let _ = write!(text, " (the server runs as user {user})");
        }
        exchange.note_error_within(&self.service.failures, LABEL, &text);
    }
}

fn file(exchange: &mut Exchange, job: &Job, found: Found) -> Outcome {
    let document = Document::new(&job.service, &found);
    let Some(witnesses) = found.witnesses else {
        return respond::document(exchange, &document);
    };
    let key = Key {
        service: job.service.id,
        forms: job.forms,
        path: job.service.distinct(&job.path),
    };
    let cache = exchange.worker.local::<ContentCache>();
    let clock = &exchange.worker.clock;
    let entry = cache.insert(key, document, witnesses, found.settled, job.turn, clock);
    respond::document(exchange, &entry.document)
}
