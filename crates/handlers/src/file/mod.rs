//! Static files: `file.dir`, `file.file` and everything that can be set for them.
//!
//! A request takes one of two ways. What the [`cache`] holds and still holds true is answered at once. Anything
//! else is looked up by [`locate`], first with what is in memory, then, if the disk would have to be waited for,
//! once more on the thread pool; [`respond`] makes the answer.

mod cache;
mod conditional;
mod custom;
mod document;
mod encoding;
pub(crate) mod fuzzing;
mod gunzip;
mod handler;
mod hide;
mod identity;
mod listing;
mod locate;
mod mime;
mod multipart;
mod open;
mod range;
mod respond;
mod service;
mod settings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod watch;

use h2o_config::Directive;
use h2o_exchange::Scope;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[
    handler::DIR,
    handler::FILE,
    settings::INDEX,
    settings::DIRLISTING,
    hide::HIDE,
    settings::ETAG,
    settings::SEND_COMPRESSED,
    settings::SEND_GZIP,
    settings::IO_URING,
    mime::SETTYPES,
    mime::ADDTYPES,
    mime::REMOVETYPES,
    mime::SETDEFAULTTYPE,
    custom::CUSTOM_HANDLER,
];
