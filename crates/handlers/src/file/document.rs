//! A file ready to be sent: its content, and the fields derived from it.

use std::sync::Arc;

use bytes::Bytes;
use h2o_exchange::{Body, FileRange, MimeHint, OpenFile};
use h2o_http::mime::MimeType;
use h2o_http::{Headers, Known, date};
use rustix::io::Errno;

use super::conditional::Validators;
use super::gunzip::Gunzip;
use super::identity::{FileIdentity, inspect};
use super::locate::{FoundFile, KeptVariant};
use super::open::Access;
use super::range::ByteRange;
use super::service::Service;
use super::settings::SendCompressed;
use crate::coding::Coding;

/// Size in bytes up to which the content of a file is kept in memory. Of a larger file only the descriptor is kept.
pub(super) const SMALL: u64 = 64 * 1024;

/// Most attempts to read a file into memory if it changes while being read.
const ATTEMPTS: usize = 3;

/// The place of a file's content.
#[derive(Clone)]
pub(super) enum FileContent {
    Memory(Bytes),
    File(Arc<OpenFile>, u64),
}

impl FileContent {
    /// Reads a small file into memory. Also returns the identity that the file had at that time.
    ///
    /// A file that changes while it is read is not held in memory but read again while it is sent. If it then turns out
    /// shorter than announced, the response is visibly cut off.
    pub(super) fn load(
        file: Arc<OpenFile>,
        mut identity: FileIdentity,
        access: Access,
    ) -> Result<(Self, FileIdentity), Errno> {
        for _ in 0..ATTEMPTS {
            if identity.size > SMALL {
                break;
            }
            let Some(bytes) = read_whole(&file, identity.size, access)? else {
                break;
            };
            let before = identity;
            identity = inspect(&*file)?.1;
            if identity == before && bytes.len() as u64 == identity.size {
                return Ok((Self::Memory(bytes.into()), identity));
            }
        }
        Ok((Self::File(file, identity.size), identity))
    }

    /// The whole content as the body of a response.
    pub(super) fn body(&self) -> Body {
        match self {
            Self::Memory(bytes) => Body::Bytes(bytes.clone()),
            Self::File(file, len) => Body::File(FileRange {
                file: Arc::clone(file),
                offset: 0,
                len: *len,
            }),
        }
    }

    /// A range of the content as the body of a response.
    pub(super) fn part(&self, range: ByteRange) -> Body {
        match self {
            Self::Memory(bytes) => {
                let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                Body::Bytes(bytes.slice(index(range.first)..=index(range.last)))
            }
            Self::File(file, _) => Body::File(FileRange {
                file: Arc::clone(file),
                offset: range.first,
                len: range.len(),
            }),
        }
    }

    /// Number of bytes of content that are held in memory.
    pub(super) fn in_memory(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(..) => 0,
        }
    }
}

/// Reads up to `size` bytes from the start of a file; fewer if the file ends earlier. `None` if reading fails; the
/// response then fails while it is sent.
fn read_whole(file: &OpenFile, size: u64, access: Access) -> Result<Option<Vec<u8>>, Errno> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        let read = match access {
            Access::InMemory => file.read_cached(filled as u64, rest),
            Access::Waiting => file.read_blocking(filled as u64, rest),
        };
        match read {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(Errno::AGAIN);
            }
            Err(_) => return Ok(None),
        }
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// Whether the bytes of the file are sent as they are, and with which content coding, or are unpacked while they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentCoding {
    /// The file is sent as it is, without a content coding.
    Plain,
    /// The file has this content coding and is sent as it is; the client decodes it.
    Encoded(Coding),
    /// The file is a gzip file, which is unpacked while it is sent.
    Unpacked,
}

/// A file ready to be sent.
pub(super) struct Document {
    pub(super) content: FileContent,
    /// Length of the file on disk.
    pub(super) size: u64,
    pub(super) shape: ContentCoding,
    /// The fields that the responses 200 and 206 have in common: `content-type`, `last-modified`, `etag`, `vary`,
    /// `content-encoding`.
    pub(super) fields: Headers,
    /// All fields of a response 200: space for the date, then `fields`, then `accept-ranges`.
    whole: Headers,
    pub(super) kind: Arc<MimeType>,
    /// Whether `etag` is sent, also in a response 304.
    pub(super) sends_etag: bool,
    /// Whether `vary` is sent, also in a response 304.
    pub(super) varies: bool,
    etag: Box<[u8]>,
    modified: i64,
}

impl Document {
    pub(super) fn new(service: &Service, found: &FoundFile) -> Self {
        // A compressed form that `compress.cache` keeps is sent with the modification time and size of the original file in its
        // validators.
        let (identity, coding, is_kept) = match (&found.variant, found.shape) {
            (KeptVariant::Sent { original, .. }, ContentCoding::Encoded(coding)) => {
                (original, coding.token(), true)
            }
            _ => (&found.identity, "", false),
        };
        let modified = identity.modified();
        let hyphen = if is_kept { "-" } else { "" };
        let etag = format!(
            "\"{:08x}-{:x}{hyphen}{coding}\"",
            modified & 0xffff_ffff,
            identity.size
        );
        let sends_etag = service.settings.etag;
        let varies = service.settings.compressed != SendCompressed::Off || is_kept;
        let mut fields = Headers::new();
        fields.push(Known::ContentType, found.kind.content_type.as_bytes());
        fields.push(Known::LastModified, &date::format(modified));
        if sends_etag {
            fields.push(Known::Etag, etag.as_bytes());
        }
        if varies {
            fields.push(Known::Vary, b"accept-encoding");
        }
        if let ContentCoding::Encoded(coding) = found.shape {
            fields.push(Known::ContentEncoding, coding.token().as_bytes());
        }
        let mut whole = Headers::new();
        whole.push(Known::Date, &[b' '; date::LEN]);
        whole.extend_from(&fields);
        if found.shape != ContentCoding::Unpacked {
            whole.push(Known::AcceptRanges, b"bytes");
        }
        Self {
            content: found.content.clone(),
            size: found.identity.size,
            shape: found.shape,
            fields,
            whole,
            kind: Arc::clone(&found.kind),
            sends_etag,
            varies,
            etag: etag.into_bytes().into(),
            modified: modified.max(0),
        }
    }

    /// Appends the fields of a response 200 with the date `date` to `headers`, in one copy.
    pub(super) fn whole_fields(&self, date: &[u8; date::LEN], headers: &mut Headers) {
        headers.extend_from(&self.whole);
        headers.overwrite(0, date);
    }

    /// The validators of the file for conditional requests.
    pub(super) fn validators(&self) -> Validators<'_> {
        Validators {
            etag: &self.etag,
            modified: self.modified,
        }
    }

    /// The MIME attributes of the file, which filters use.
    pub(super) fn hint(&self) -> MimeHint {
        MimeHint {
            compressible: self.kind.attributes.compressible,
            highest_priority: self.kind.attributes.highest_priority,
        }
    }

    /// Whether ranges of the file can be requested.
    pub(super) fn has_ranges(&self) -> bool {
        self.shape != ContentCoding::Unpacked
    }

    /// The whole content as the body of a response, with its length if that is known.
    #[inline]
    pub(super) fn body(&self) -> Body {
        let body = self.content.body();
        match self.shape {
            ContentCoding::Plain | ContentCoding::Encoded(_) => body,
            ContentCoding::Unpacked => Body::Stream(Box::new(Gunzip::new(body))),
        }
    }

    /// Number of bytes of memory that the document holds, for the limit of the content cache.
    pub(super) fn retained(&self) -> usize {
        size_of::<Self>()
            + self.content.in_memory()
            + self.fields.retained()
            + self.whole.retained()
            + self.etag.len()
    }

    /// Whether the document holds a file descriptor.
    pub(super) fn holds_file(&self) -> bool {
        matches!(self.content, FileContent::File(..))
    }
}
