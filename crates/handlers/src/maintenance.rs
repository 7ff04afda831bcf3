//! The directive `maintenance`: while a certain file exists, every request is answered with it instead of the site.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use h2o_config::{Attribute, Command, Directive, Error, Kinds, Levels};
use h2o_exchange::{Body, BodyUse, Exchange, Handler, Outcome, Response, Scope};
use h2o_http::{Known, StatusCode};

use crate::network::Network;
use crate::watched_file::{Loaded, WatchedFile};

const ATTRIBUTES: [Attribute; 3] = [
    Attribute::required(
        "file",
        Kinds::SCALAR,
        "FILE",
        "The HTML file whose content clients get.",
    ),
    Attribute::optional(
        "retry-after",
        Kinds::SCALAR,
        "SECONDS",
        "",
        "Value of the header `retry-after` of these responses: the time after which clients may request again.",
    ),
    Attribute::optional(
        "except",
        Kinds::SCALAR.or(Kinds::SEQUENCE),
        "ADDRESS[/BITS], or a sequence of these",
        "nobody",
        "Clients that get the site in place of the maintenance page, to test the site.",
    ),
];

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    levels: Levels::ALL_BUT_EXTENSION,
    kinds: Kinds::SCALAR
        .or(Kinds::MAPPING)
        .with_attributes(&ATTRIBUTES),
    ..Directive::setting(
        "maintenance",
        "FILE, `OFF`, or a mapping",
        "OFF",
        "While the file exists, requests are answered with 503 and the content of the file, an HTML page of at most 4 MiB. Creating \
         and removing it takes effect within a second, without a reload. `OFF` cancels the page of an outer level.",
        |scope, command| {
            scope.edit::<Maintenance>().0 = read(command)?;
            Ok(())
        },
    )
}];

/// The setting of `maintenance` at a configuration level.
#[derive(Clone, Default)]
struct Maintenance(Option<Arc<MaintenancePage>>);

struct MaintenancePage {
    file: WatchedFile<Bytes>,
    retry_after: Option<u32>,
    except: Box<[Network]>,
}

fn read(command: &Command<'_>) -> Result<Option<Arc<MaintenancePage>>, Error> {
    let page = |file: &str, retry_after, except| {
        let file = WatchedFile::new(Path::new(file), Bytes::from);
        Some(Arc::new(MaintenancePage {
            file,
            retry_after,
            except,
        }))
    };
    match command.node.as_str() {
        Some(text) if text.eq_ignore_ascii_case("OFF") => return Ok(None),
        Some(_) if command.node.means_on() => {
            return Err(command
                .error("the file that switches the page on must be named")
                .with_hint("write its path, and create the file to show the page"));
        }
        Some("") => return Err(command.error("a file name cannot be empty")),
        Some(file) => return Ok(page(file, None, Box::default())),
        None => {}
    }
    let attributes = command.node.attributes(&ATTRIBUTES)?;
    let retry_after = attributes
        .get("retry-after")
        .map(|node| node.integer("%u", 0..=u64::from(u32::MAX)))
        .transpose()?;
    let except = attributes
        .get("except")
        .map_or(&[][..], |node| node.one_or_more());
    let except = except.iter().map(Network::read).collect::<Result<_, _>>()?;
    let file = attributes.require("file")?.scalar()?;
    Ok(page(file, retry_after, except))
}

/// The guard of a path for which `maintenance` is set: a handler that runs before the path's own handlers.
pub(crate) fn guard(scope: &Scope) -> Option<Box<dyn Handler>> {
    let page = scope.settings.peek::<Maintenance>()?.0.clone()?;
    Some(Box::new(MaintenanceGuard(page)))
}

struct MaintenanceGuard(Arc<MaintenancePage>);

impl Handler for MaintenanceGuard {
    fn body_use(&self, _: &Exchange) -> BodyUse {
        BodyUse::None
    }

    fn on_request(&self, exchange: &mut Exchange) -> Outcome {
        let peer = exchange.client_address();
        if self.0.except.iter().any(|network| network.contains(peer)) {
            return Outcome::Declined;
        }
        let now = exchange.worker.clock.now();
        if let Some(content) = self.0.file.fresh(now) {
            return self.0.answer(exchange, &content);
        }
        let Some(reference) = exchange.reference() else {
            return Outcome::Declined;
        };
        let page = Arc::clone(&self.0);
        Outcome::Later(Box::pin(async move {
            let looking = Arc::clone(&page);
            match tokio::task::spawn_blocking(move || looking.file.look(now)).await {
                Ok(content) => page.answer(&mut reference.borrow_mut(), &content),
                Err(_) => Outcome::Declined,
            }
        }))
    }
}

impl MaintenancePage {
    fn answer(&self, exchange: &mut Exchange, content: &Loaded<Bytes>) -> Outcome {
        let body = match content {
            Ok(page) => Bytes::clone(page),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Outcome::Declined,
            // The maintenance file exists but cannot be read: maintenance is on, so answer with a plain text.
            Err(error) => {
                let path = self.file.path().display();
                exchange.note_error("maintenance", &format!("failed to read {path}:{error}"));
                Bytes::from_static(b"Service Unavailable\n")
            }
        };
        let status = StatusCode::SERVICE_UNAVAILABLE;
        exchange.worker.counters.count_status(status);
        let mut headers = exchange.headers();
        headers.push(Known::ContentType, b"text/html; charset=utf-8");
        headers.push(Known::CacheControl, b"no-store");
        if let Some(seconds) = self.retry_after {
            headers.push(Known::RetryAfter, seconds.to_string().as_bytes());
        }
        Outcome::Done(Response::new(status, headers, Body::Bytes(body)))
    }
}
