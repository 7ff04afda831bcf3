//! The directives `file.dir` and `file.file`, and their handler.

use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{
    BodyUse, Counter, EarlyReroute, Exchange, Handler, Outcome, PathCheck, PathChecks, PathNeed,
    Scope, WorkerStarts,
};

use h2o_log::reason;
use rustix::io::Errno;

use super::cache::{CacheKey, CloseIdleFiles, ContentCache};
use super::document::Document;
use super::encoding::{AcceptedEncodings, VARIANTS};
use super::locate::{FoundFile, KeptVariant, Lookup, LookupResult};
use super::open::Access;
use super::service::{Service, ServiceTarget};
use super::settings::{SendCompressed, file_name};
use super::{listing, respond, try_files};

pub(super) const DIR: Directive<Scope> = Directive {
    name: "file.dir",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR,
    value: "DIRECTORY",
    default: "none",
    help: "Serves the files of a directory. If a file does not exist there, the next handler of the path is tried, so \
           directories can be stacked. A relative name is relative to the working directory of the server.",
    apply: |scope, command| {
        let name = some_file_name(command.node)?;
        let service = Service::directory(scope, &name);
        let need = PathNeed::Directory {
            is_listed: service.settings.listing,
        };
        check_later(scope, command, &name, need);
        try_files::note_root(scope, &name);
        add(scope, service);
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
        let name = some_file_name(command.node)?;
        let service = Service::file(scope, &name);
        check_later(scope, command, &name, PathNeed::File);
        add(scope, service);
        Ok(())
    },
};

/// Adds the handler of a service, and the work that the workers then do besides.
fn add(scope: &mut Scope, service: Arc<Service>) {
    scope.handlers.push(Box::new(FileHandler(service)));
    let starts = &mut scope.shared.edit::<WorkerStarts>().0;
    starts.push(Arc::new(CloseIdleFiles));
}

/// Reads the name of a file or directory, which may not be empty: the root of the file system would be served.
fn some_file_name(node: &Node) -> Result<Box<[u8]>, Error> {
    if node.as_str() == Some("") {
        return Err(node.error("a file name cannot be empty"));
    }
    file_name(node)
}

fn check_later(scope: &mut Scope, command: &Command<'_>, name: &[u8], need: PathNeed) {
    let path = Path::new(OsStr::from_bytes(name));
    let check = PathCheck::new(command, command.node, path, need);
    scope.shared.edit::<PathChecks>().0.push(check);
}

/// The names that a file for a request may have in the directory of a `file.dir`: the requested name, and the requested
/// name with the suffix of each precompressed form.
struct Names {
    root: CString,
    names: Vec<Vec<u8>>,
}

impl Names {
    /// The names for the path of a request. `None` for `file.file`, and for the directory of `file.dir` itself, whose
    /// index files have other names.
    fn of(service: &Service, path: &[u8]) -> Option<Self> {
        let ServiceTarget::Directory(root) = &service.target else {
            return None;
        };
        let name = service.rest(path);
        if matches!(name, b"" | b"/") {
            return None;
        }
        let is_off = service.settings.compressed == SendCompressed::Off;
        let suffixes = VARIANTS.iter().map(|(suffix, _)| *suffix);
        let suffixes = suffixes.filter(|_| !is_off);
        Some(Self {
            root: CString::new(&**root).ok()?,
            names: std::iter::once(&b""[..])
                .chain(suffixes)
                .map(|suffix| [name, suffix].concat())
                .collect(),
        })
    }

    /// Whether nothing in the directory has one of the names.
    fn are_absent(&self, access: Access) -> Result<bool, Errno> {
        for name in &self.names {
            if !try_files::is_nothing(&self.root, name, access)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Label of the file handler's lines in the error log.
const LABEL: &str = "lib/handler/file.c";

/// The handler of a `file.dir` or a `file.file`.
struct FileHandler(Arc<Service>);

impl Handler for FileHandler {
    fn reads_files(&self) -> bool {
        matches!(self.0.target, ServiceTarget::Directory(_))
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        if self.0.has_dynamic_types() {
            // Keep the request body: only the lookup of the file shows whether a custom handler gets the request, and
            // that handler may read the body.
            BodyUse::Whole
        } else {
            BodyUse::None
        }
    }

    fn early_reroute(&self, exchange: &Exchange) -> EarlyReroute {
        let Some(names) = Names::of(&self.0, exchange.request.path()) else {
            return EarlyReroute::None;
        };
        let early = |is_absent| match is_absent {
            true => EarlyReroute::Declines,
            false => EarlyReroute::None,
        };
        match names.are_absent(Access::InMemory) {
            Ok(is_absent) => early(is_absent),
            Err(_) => EarlyReroute::Later(Box::pin(async move {
                let look = move || names.are_absent(Access::Waiting);
                let looked = tokio::task::spawn_blocking(look).await;
                early(matches!(looked, Ok(Ok(true))))
            })),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let service = &self.0;
        if exchange.request.path_has_nul() && matches!(service.target, ServiceTarget::Directory(_))
        {
            return Outcome::Declined;
        }
        if service.settings.listing
            && matches!(service.target, ServiceTarget::Directory(_))
            && matches!(service.rest(exchange.request.path()), b"" | b"/")
            && let Some(asset) = listing::asset(exchange.request.query())
        {
            return Outcome::Done(asset.respond(exchange, true));
        }
        let encodings = AcceptedEncodings::of(
            service.settings.compressed,
            service.variants.is_some(),
            &exchange.request,
        );
        let cache = exchange.worker.local::<ContentCache>();
        let key = CacheKey {
            service: service.id,
            encodings,
            path: service.cache_path(exchange.request.path()),
        };
        if let Some(entry) = cache.get(key, &exchange.worker.clock) {
            exchange.worker.counters.count(Counter::CacheHits);
            let outcome = respond::document(exchange, &entry.document);
            exchange.premise = Some(entry);
            return outcome;
        }
        look_up(exchange, service, encodings)
    }
}

/// Looks up a file that is not in the cache. This function is never inlined, so that the code for cached files stays
/// small.
#[inline(never)]
fn look_up(
    exchange: &mut Exchange,
    service: &Arc<Service>,
    encodings: AcceptedEncodings,
) -> Outcome {
    exchange.worker.counters.count(Counter::CacheMisses);
    let lookup = Lookup {
        service: Arc::clone(service),
        path: exchange.request.path().to_vec(),
        encodings,
        now: wall_clock(exchange),
        turn: exchange.worker.clock.turn(),
    };
    let mut located = lookup.run(Access::InMemory);
    // The files that the cache keeps open for later requests may have taken the last descriptors.
    if matches!(located, Ok(LookupResult::Busy))
        && exchange.worker.local::<ContentCache>().close_files()
    {
        located = lookup.run(Access::InMemory);
    }
    match located {
        Ok(located) => answer(exchange, &lookup, located),
        Err(_) => answer_later(exchange, lookup),
    }
}

fn wall_clock(exchange: &Exchange) -> Duration {
    let now = exchange.worker.clock.unix();
    #[cfg(test)]
    let now = now + super::testing::clock_ahead();
    now
}

/// Looks the file up on the thread pool, and answers then.
fn answer_later(exchange: &Exchange, lookup: Lookup) -> Outcome {
    let Some(reference) = exchange.reference() else {
        debug_assert!(false, "only exchanges of the worker reach a handler");
        return respond::internal_error(exchange);
    };
    Outcome::Later(Box::pin(async move {
        let work = tokio::task::spawn_blocking(move || {
            let located = lookup.run(Access::Waiting);
            (lookup, located)
        });
        let result = work.await;
        let mut outcome = {
            let mut exchange = reference.borrow_mut();
            match result {
                Ok((lookup, Ok(located))) => answer(&mut exchange, &lookup, located),
                Ok((_, Err(_))) | Err(_) => respond::internal_error(&exchange),
            }
        };
        // The custom handler of the file may return a future as well.
        while let Outcome::Later(future) = outcome {
            outcome = future.await;
        }
        outcome
    }))
}

fn answer(exchange: &mut Exchange, lookup: &Lookup, located: LookupResult) -> Outcome {
    match located {
        LookupResult::File(found) => file(exchange, lookup, found),
        LookupResult::Redirect(path) => respond::redirect(exchange, &path),
        LookupResult::Listing(directory) => {
            let service = &lookup.service;
            let hidden = &service.settings.hidden;
            listing::respond(exchange, directory, hidden, service.rest(&lookup.path))
        }
        LookupResult::Script { number, script } => match lookup.service.custom(number) {
            Some(custom) => custom.on_request(exchange, script),
            None => respond::internal_error(exchange),
        },
        LookupResult::Missing => Outcome::Declined,
        LookupResult::NoRoot(error) => {
            lookup.note_failure(exchange, error);
            Outcome::Declined
        }
        LookupResult::Forbidden(error) => {
            if matches!(error, Errno::ACCESS | Errno::IO) {
                lookup.note_failure(exchange, error);
            }
            respond::forbidden(exchange)
        }
        LookupResult::Busy => {
            lookup.note_failure(exchange, Errno::MFILE);
            respond::busy(exchange)
        }
    }
}

impl Lookup {
    /// Logs the file that could not be opened, and the reason.
    #[cold]
    fn note_failure(&self, exchange: &mut Exchange, error: Errno) {
        let path = match (&self.service.target, error) {
            (ServiceTarget::Directory(root), Errno::NOENT | Errno::NOTDIR) => root.to_vec(),
            (ServiceTarget::Directory(root), _) => {
                let rest = self.service.rest(&self.path);
                [root, rest.strip_prefix(b"/").unwrap_or(rest)].concat()
            }
            (ServiceTarget::File { path, .. }, _) => path.to_vec(),
        };
        let mut text = format!("{}:{}", path.escape_ascii(), reason(&error.into()));
        if error == Errno::ACCESS {
            let user = rustix::process::geteuid().as_raw();
            let _ = write!(text, " (the server runs as user {user})");
        }
        exchange.note_error_within(&self.service.failures, LABEL, &text);
    }
}

fn file(exchange: &mut Exchange, lookup: &Lookup, mut found: FoundFile) -> Outcome {
    let document = Document::new(&lookup.service, &found);
    // The server asks for no compressed form of a file that was written a moment ago: the file may be written again and keep its mtime.
    if found.mtime_is_reliable
        && let Some(variants) = &lookup.service.variants
    {
        match found.variant.take() {
            KeptVariant::Wanted(wanted) => variants.store.want(*wanted),
            KeptVariant::Sent { variant, .. } => variants.store.note_used(variant),
            KeptVariant::Nothing => {}
        }
    }
    let Some(stamps) = found.stamps else {
        return respond::document(exchange, &document);
    };
    let key = CacheKey {
        service: lookup.service.id,
        encodings: lookup.encodings,
        path: lookup.service.cache_path(&lookup.path),
    };
    let cache = exchange.worker.local::<ContentCache>();
    let entry = cache.insert(
        key,
        document,
        stamps,
        found.mtime_is_reliable,
        lookup.turn,
        &exchange.worker,
    );
    respond::document(exchange, &entry.document)
}
