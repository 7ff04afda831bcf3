//! The directive `file.try-files`: which file or path answers if no file has the path of the request.

use std::ffi::CString;
use std::sync::Arc;

use h2o_config::{Command, Directive, Error, Kinds, Levels, Node, Pass};
use h2o_exchange::{
    BodyUse, EarlyReroute, Exchange, Handler, LocalBoxFuture, Outcome, Reroute, RerouteKind,
    Response, Scope,
};
use h2o_http::{StatusCode, escape};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::open::{self, Access, LOOK};
use super::settings::{FileSettings, SendCompressed};
use crate::redirect::key_of;

pub(super) const TRY_FILES: Directive<Scope> = Directive {
    name: "file.try-files",
    levels: Levels::PATH,
    pass: Pass::Content,
    kinds: Kinds::SCALAR.or(Kinds::SEQUENCE),
    value: "a sequence of files, the last one a path of the site or `=STATUS`",
    default: "none",
    help: "Tells which file or path answers a request if the first `file.dir` of the path has no file for it. The elements are \
           tried in order: names of files in that directory, or of directories in it if they end with `/`; `$path` stands for \
           the path of the request after the configured path. The last element is used without looking for a file: a path such \
           as `/index.php$query`, at which the server runs the request again, or a status such as `=404`. Clients do not see \
           which file answers. It is a handler: write it above `file.dir`, and below `rewrite`.",
    apply: |scope, command| {
        let elements = read(command)?;
        scope.handlers.push(Box::new(TryFilesHandler(elements)));
        Ok(())
    },
};

/// The directory of the first `file.dir` of a path; `None` before that directive.
#[derive(Clone, Default)]
struct Root(Option<Arc<CString>>);

struct Elements {
    files: Box<[Box<str>]>,
    last: Last,
}

enum Last {
    Path(Box<str>),
    Status(StatusCode),
}

fn read(command: &Command<'_>) -> Result<Arc<Elements>, Error> {
    let Some((last, files)) = command.node.one_or_more().split_last() else {
        return Err(command.error("the sequence cannot be empty"));
    };
    let text = last.scalar()?;
    let last = match text.strip_prefix('=') {
        Some(code) => {
            let code = code.parse().ok().filter(|code| (400..=599).contains(code));
            let status = code.and_then(StatusCode::new);
            Last::Status(status.ok_or_else(|| last.error("status should be within 400 to 599"))?)
        }
        None => Last::Path(read_path(last)?),
    };
    let files = files.iter().map(read_path).collect::<Result<_, _>>()?;
    Ok(Arc::new(Elements { files, last }))
}

fn read_path(node: &Node) -> Result<Box<str>, Error> {
    let text = node.scalar()?;
    let is_path = text.starts_with('/') && !text.starts_with("//") || text.starts_with("$path");
    if !is_path || text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(node.error(format!("`{text}` is not a path")).with_hint(
            "expected paths such as `$path.html` or `/index.html`; the last one may be a status such as `=404`",
        ));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(node.error("a path cannot have `..`, which leads out of the directory"));
    }
    Ok(text.into())
}

/// Notes the directory of a `file.dir`. Called for each such directive.
pub(super) fn note_root(scope: &mut Scope, name: &[u8]) {
    let root = &mut scope.edit::<Root>().0;
    if root.is_none() {
        *root = CString::new(name).ok().map(Arc::new);
    }
}

struct TryFilesHandler(Arc<Elements>);

/// The result of trying the elements of `file.try-files`.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The file that the request itself names exists.
    Itself,
    /// Another file exists, at this path below the configured path.
    Other(Vec<u8>),
    Nothing,
}

impl Handler for TryFilesHandler {
    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let elements = &self.0;
        match self.find(exchange) {
            None => Outcome::Declined,
            Some(Search::Done(found)) => elements.decide(exchange, found).carry_out(exchange),
            Some(Search::Disk(look_up)) => {
                let Some(reference) = exchange.reference() else {
                    return Outcome::Declined;
                };
                let elements = Arc::clone(elements);
                Outcome::Later(Box::pin(async move {
                    let found = look_up.await;
                    let exchange = &mut *reference.borrow_mut();
                    elements.decide(exchange, found).carry_out(exchange)
                }))
            }
        }
    }

    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::Whole
    }

    fn early_reroute(&self, exchange: &Exchange) -> EarlyReroute {
        let elements = &self.0;
        match self.find(exchange) {
            None => EarlyReroute::Declines,
            Some(Search::Done(found)) => elements.decide(exchange, found).early(),
            Some(Search::Disk(look_up)) => {
                let Some(reference) = exchange.reference() else {
                    return EarlyReroute::None;
                };
                let elements = Arc::clone(elements);
                EarlyReroute::Later(Box::pin(async move {
                    let found = look_up.await;
                    elements.decide(&reference.borrow(), found).early()
                }))
            }
        }
    }
}

/// A search for the first element for which a file exists.
enum Search {
    Done(Found),
    /// The disk is needed, so another thread searches.
    Disk(LocalBoxFuture<Found>),
}

impl TryFilesHandler {
    /// Searches for the file that answers the request. `None` if the request cannot name a file.
    fn find(&self, exchange: &Exchange) -> Option<Search> {
        if exchange.request.path_has_nul() {
            return None;
        }
        let path = exchange.request.path();
        let rest = path.get(key_of(exchange).len()..).unwrap_or_default();
        let rest = if rest.is_empty() { b"/" } else { rest };
        let settings = &exchange.site.path(exchange.route).settings;
        let Some(root) = settings.peek::<Root>().and_then(|root| root.0.clone()) else {
            return Some(Search::Done(Found::Nothing));
        };
        let directory = Directory {
            root,
            settings: settings.peek::<FileSettings>().unwrap_or_default(),
        };
        if let Ok(found) = self.0.find(&directory, rest, Access::InMemory) {
            return Some(Search::Done(found));
        }
        let (elements, rest) = (Arc::clone(&self.0), rest.to_vec());
        Some(Search::Disk(Box::pin(async move {
            let look = move || elements.find(&directory, &rest, Access::Waiting);
            match tokio::task::spawn_blocking(look).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) | Err(_) => Found::Nothing,
            }
        })))
    }
}

/// The directory of the first `file.dir` of a path.
struct Directory {
    root: Arc<CString>,
    settings: Arc<FileSettings>,
}

impl Directory {
    /// Whether `file.dir` serves a file of this name, or there is a directory if the name ends with `/`.
    fn has(&self, name: &[u8], access: Access) -> Result<bool, Errno> {
        if self.settings.hidden.hides_any_of(without_slashes(name)) {
            return Ok(false);
        }
        if is_there(&self.root, name, access)? {
            return Ok(true);
        }
        let is_unpacked = self.settings.compressed == SendCompressed::Gunzip;
        if is_unpacked && !name.ends_with(b"/") {
            return is_there(&self.root, &[name, b".gz"].concat(), access);
        }
        Ok(false)
    }
}

/// What the handler does with a request.
enum Decision {
    /// The next handler of the path serves the request.
    Decline,
    Status(StatusCode),
    Redirect(Reroute),
}

impl Decision {
    fn carry_out(self, exchange: &Exchange) -> Outcome {
        match self {
            Self::Decline => Outcome::Declined,
            Self::Status(status) => {
                exchange.worker.counters.count_status(status);
                let reason = status.reason();
                Outcome::Done(Response::error(status, reason, reason))
            }
            Self::Redirect(order) => Outcome::Reroute(order),
        }
    }

    fn early(self) -> EarlyReroute {
        match self {
            Self::Redirect(order) => EarlyReroute::Now(order),
            Self::Decline => EarlyReroute::Declines,
            Self::Status(_) => EarlyReroute::None,
        }
    }
}

impl Elements {
    /// Tries the elements, and returns the first one for which a file exists.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if the disk is needed and the call may not wait for it.
    fn find(&self, directory: &Directory, rest: &[u8], access: Access) -> Result<Found, Errno> {
        if !rest.ends_with(b"/") && directory.has(rest, access)? {
            return Ok(Found::Itself);
        }
        for element in &self.files {
            let mut name = fill_in(element, rest, b"", |text, out| out.extend_from_slice(text));
            // The element `$path/` gives several slashes at the end if the request's path already ends with a slash:
            // one is kept.
            while name.ends_with(b"//") {
                name.pop();
            }
            if directory.has(&name, access)? {
                return Ok(if name == rest {
                    Found::Itself
                } else {
                    Found::Other(name)
                });
            }
        }
        Ok(Found::Nothing)
    }

    fn decide(&self, exchange: &Exchange, found: Found) -> Decision {
        let request = &exchange.request;
        let url = match (found, &self.last) {
            (Found::Itself, _) => return Decision::Decline,
            (Found::Other(name), _) => {
                let mut url = Vec::new();
                let path = [key_of(exchange).as_bytes(), &name].concat();
                escape::uri(&path, b"/@:", &mut url);
                url.extend_from_slice(request.query());
                url
            }
            (Found::Nothing, Last::Status(status)) => return Decision::Status(*status),
            (Found::Nothing, Last::Path(path)) => {
                let rest = request.path().get(key_of(exchange).len()..);
                let rest = rest.unwrap_or_default();
                let url = fill_in(path, rest, request.query(), |text, out| {
                    escape::uri(text, b"/@:", out);
                });
                let end = url
                    .iter()
                    .position(|&byte| byte == b'?')
                    .unwrap_or(url.len());
                // The request has this path already, so a redirect would lead nowhere else: the next handler serves the
                // request.
                if url[..end] == *request.path() || url[..end] == *request.raw_path() {
                    return Decision::Decline;
                }
                url
            }
        };
        let slashes = url.iter().take_while(|byte| **byte == b'/').count();
        let url = [b"/", &url[slashes..]].concat();
        let mut order = Reroute::to(url, request.method.clone());
        // If the other path responds with a redirect, that is sent to the client, and not followed by the server.
        order.kind = RerouteKind::Reprocess;
        Decision::Redirect(order)
    }
}

/// Replaces the variables in an element. `write` appends the path of the request.
fn fill_in(
    element: &str,
    rest: &[u8],
    query: &[u8],
    write: impl Fn(&[u8], &mut Vec<u8>),
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut text = element;
    while let Some(at) = text.find('$') {
        out.extend_from_slice(&text.as_bytes()[..at]);
        text = &text[at..];
        if let Some(behind) = text.strip_prefix("$path") {
            write(rest, &mut out);
            text = behind;
        } else if let Some(behind) = text.strip_prefix("$query") {
            out.extend_from_slice(query);
            text = behind;
        } else {
            out.push(b'$');
            text = &text[1..];
        }
    }
    out.extend_from_slice(text.as_bytes());
    out
}

/// The name without the slashes at its beginning; `.` if nothing else is in it.
fn without_slashes(name: &[u8]) -> &[u8] {
    let start = name.iter().position(|&byte| byte != b'/');
    start.map_or(b".", |start| &name[start..])
}

/// Whether nothing in the directory `root` has this name, and no file has a part of it, as `a.php` has of `a.php/more`.
pub(super) fn is_nothing(root: &CString, name: &[u8], access: Access) -> Result<bool, Errno> {
    let Ok(relative) = CString::new(without_slashes(name)) else {
        return Ok(false);
    };
    let root = open::configured(root, LOOK | OFlags::DIRECTORY, access);
    let looked = root
        .and_then(|root| open::beneath(std::os::fd::AsFd::as_fd(&root), &relative, LOOK, access));
    match looked {
        Err(Errno::AGAIN) => Err(Errno::AGAIN),
        Err(Errno::NOENT) => Ok(true),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Whether the directory `root` has a file of this name, or a directory if the name ends with `/`.
fn is_there(root: &CString, name: &[u8], access: Access) -> Result<bool, Errno> {
    let wants_directory = name.ends_with(b"/");
    let looked = || {
        let root = open::configured(root, LOOK | OFlags::DIRECTORY, access)?;
        let relative = CString::new(without_slashes(name)).map_err(|_| Errno::INVAL)?;
        let file = open::beneath(std::os::fd::AsFd::as_fd(&root), &relative, LOOK, access)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        Ok(match kind {
            FileType::Directory => wants_directory,
            FileType::RegularFile => !wants_directory,
            _ => false,
        })
    };
    match looked() {
        Err(Errno::AGAIN) => Err(Errno::AGAIN),
        Err(_) => Ok(false),
        Ok(is_there) => Ok(is_there),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hide::Hidden;
    use super::*;

    #[test]
    fn the_first_element_with_a_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        for name in ["a.html", "b", "b.html", "docs/index.html", "old.txt.gz"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let root = CString::new(folder.path().to_str().unwrap()).unwrap();
        let directory = |settings: FileSettings| Directory {
            root: Arc::new(root.clone()),
            settings: Arc::new(settings),
        };
        let elements = Elements {
            files: ["$path.html", "$path/", "$path/$path.x"]
                .map(Box::from)
                .into(),
            last: Last::Status(StatusCode::NOT_FOUND),
        };
        for (rest, want) in [
            ("/a", Found::Other(b"/a.html".to_vec())),
            ("/b", Found::Itself),
            ("/docs", Found::Other(b"/docs/".to_vec())),
            ("/docs/", Found::Itself),
            ("/c", Found::Nothing),
            ("/a.html/", Found::Nothing),
            ("/../a", Found::Nothing),
            ("/old.txt", Found::Nothing),
        ] {
            let directory = directory(FileSettings::default());
            let got = elements.find(&directory, rest.as_bytes(), Access::Waiting);
            assert_eq!(got, Ok(want), "{rest}");
        }
        // Files that `file.dir` does not serve are not found, and those that it unpacks are.
        for (rest, want) in [
            ("/a", Found::Nothing),
            ("/a.html", Found::Nothing),
            ("/docs", Found::Nothing),
            ("/b", Found::Itself),
            ("/old.txt", Found::Itself),
        ] {
            let directory = directory(FileSettings {
                hidden: Hidden::of(&["a.*", "docs"]),
                compressed: SendCompressed::Gunzip,
                ..FileSettings::default()
            });
            let got = elements.find(&directory, rest.as_bytes(), Access::Waiting);
            assert_eq!(got, Ok(want), "{rest}");
        }
    }

    #[test]
    fn variables_are_filled_in() {
        let fill = |element: &str| {
            let filled = fill_in(element, b"/a b", b"?c=d", |text, out| {
                escape::uri(text, b"/", out);
            });
            String::from_utf8(filled).unwrap()
        };
        assert_eq!(fill("/index.php$query"), "/index.php?c=d");
        assert_eq!(fill("/x$path.html"), "/x/a%20b.html");
        assert_eq!(fill("/$5/$"), "/$5/$");
    }
}
