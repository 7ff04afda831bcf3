//! Static files: `file.dir`, `file.file` and their settings.
//!
//! A file with a valid entry in the [`cache`] is answered at once. Other requests are looked up by [`locate`]: first
//! without waiting for the disk, then, if that does not suffice, once more on the thread pool. [`respond`] makes the
//! response.

mod cache;
mod conditional;
mod custom;
mod document;
mod encoding;
#[cfg(feature = "fuzzing")]
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
mod try_files;
mod variants;
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
    try_files::TRY_FILES,
    mime::SETTYPES,
    mime::ADDTYPES,
    mime::REMOVETYPES,
    mime::SETDEFAULTTYPE,
    custom::CUSTOM_HANDLER,
    variants::CACHE,
];
