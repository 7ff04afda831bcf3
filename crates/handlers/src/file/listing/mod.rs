//! Directory listings (`file.dirlisting`).
//!
//! The thread pool generates the page piece by piece while it is sent, so that a directory of any size costs bounded
//! memory. The page's style sheet, script and icon are served at the URL of the configured path, with a query
//! ([`asset`]).

mod directory;
mod order;
mod page;

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2o_exchange::{Body, BodyError, BodySource, Exchange, Outcome, Response};
use h2o_http::{Known, StatusCode};
use tokio::task::JoinHandle;

use self::directory::Names;
use super::hide::Hidden;
use super::respond::{is_read, method_not_allowed};
use crate::asset::Asset;

/// Bytes of memory for the sorted names of one listing.
const NAMES_BUDGET: usize = 4 * 1024 * 1024;
/// A piece of the page ends after the entry with which it reaches this length in bytes.
const PIECE: usize = 32 * 1024;

/// The style sheet, script or icon that a query names, at the URL of the configured path.
pub(super) fn asset(query: &[u8]) -> Option<&'static Asset> {
    let query = query.strip_prefix(b"?")?;
    if !query.starts_with(b"h2o-listing.") {
        return None;
    }
    page::ASSETS
        .iter()
        .find(|asset| *query == *page::query_of(asset).as_bytes())
}

/// Responds with the names in `directory`, except hidden ones. `rest` is the path of the request after the configured
/// path. The response has neither length nor validators, like all generated pages.
pub(super) fn respond(
    exchange: &mut Exchange,
    directory: OwnedFd,
    hidden: &Hidden,
    rest: &[u8],
) -> Outcome {
    if !is_read(&exchange.request.method) {
        return method_not_allowed(exchange);
    }
    let writer = PageWriter {
        path: exchange.request.path().to_vec(),
        base: page::base(rest),
        names: Names::new(directory, hidden.clone(), NAMES_BUDGET),
        begun: false,
    };
    let mut headers = exchange.headers();
    headers.push(Known::Date, &exchange.worker.clock.date());
    headers.push(Known::ContentType, b"text/html; charset=utf-8");
    let body = Body::Stream(Box::new(Listing {
        state: ListingState::Idle(writer),
        ready: Bytes::new(),
    }));
    Outcome::Done(Response::new(StatusCode::OK, headers, body))
}

/// Generates the page of a listing. Waits for the disk.
struct PageWriter {
    path: Vec<u8>,
    /// The URL of the configured path, relative to the page.
    base: String,
    names: Names,
    begun: bool,
}

impl PageWriter {
    fn write(&mut self) -> io::Result<Piece> {
        let mut out = Vec::with_capacity(PIECE);
        if !self.begun {
            self.begun = true;
            page::head(&self.path, &self.base, &mut out);
        }
        while out.len() < PIECE {
            let Some(name) = self.names.next()? else {
                page::tail(&mut out);
                return Ok(Piece::Last(out));
            };
            page::entry(&name, self.names.facts_of(&name), &mut out);
        }
        Ok(Piece::Next(out))
    }
}

/// A piece of the page.
enum Piece {
    Next(Vec<u8>),
    Last(Vec<u8>),
}

/// The page of a listing as the body of a response.
struct Listing {
    state: ListingState,
    ready: Bytes,
}

enum ListingState {
    /// The thread pool generates no piece at the moment.
    Idle(PageWriter),
    /// The thread pool generates a piece.
    Writing(JoinHandle<io::Result<(PageWriter, Piece)>>),
    /// The last piece of the page was generated.
    Ended,
}

impl Listing {
    /// Generates the next piece. Ready with false if none is left.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, BodyError>> {
        self.state = match std::mem::replace(&mut self.state, ListingState::Ended) {
            ListingState::Ended => return Poll::Ready(Ok(false)),
            ListingState::Writing(task) => ListingState::Writing(task),
            ListingState::Idle(mut writer) => {
                ListingState::Writing(tokio::task::spawn_blocking(move || {
                    let piece = writer.write()?;
                    Ok((writer, piece))
                }))
            }
        };
        let ListingState::Writing(task) = &mut self.state else {
            return Poll::Ready(Ok(false));
        };
        let result = ready!(Pin::new(task).poll(context));
        self.state = ListingState::Ended;
        let (writer, piece) = result
            .map_err(io::Error::other)
            .and_then(|written| written)
            .map_err(BodyError::Local)?;
        self.ready = match piece {
            Piece::Last(bytes) => bytes.into(),
            Piece::Next(bytes) => {
                self.state = ListingState::Idle(writer);
                bytes.into()
            }
        };
        Poll::Ready(Ok(true))
    }
}

impl BodySource for Listing {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.ready.is_empty() && !ready!(self.poll_piece(context))? {
            return Poll::Ready(None);
        }
        let len = max.min(self.ready.len());
        Poll::Ready(Some(Ok(self.ready.split_to(len))))
    }

    fn retained(&self) -> usize {
        self.ready.len()
    }
}
