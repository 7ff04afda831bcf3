//! Makes one compressed variant of a file, and publishes the variant in one step if it is smaller than the file.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use brotli::enc::BrotliEncoderParams;
use flate2::write::GzEncoder;
use rustix::fs::{Gid, Uid, fchown};
use zstd_safe::{CCtx, CParameter};

/// Largest file, in bytes, that zopfli compresses. Zopfli takes about a hundred times as long as level 9 of zlib, and its result is
/// 3 to 5 % smaller.
const MAX_ZOPFLI_LEN: usize = 512 << 10;
/// The logarithm of brotli's window size. The standard format allows up to 24, but each client would need 16 MiB of
/// memory for a long file then.
const BROTLI_WINDOW_BITS: i32 = 22;
/// The logarithm of zstd's window size: the largest window for which every client must have the memory (RFC 9659 §3).
const ZSTD_WINDOW_BITS: u32 = 23;

/// A content coding of which a variant is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    /// All content codings, the slowest compressor first.
    pub(super) const ALL: [Self; 3] = [Self::Brotli, Self::Gzip, Self::Zstd];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    fn encode(self, content: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Brotli => brotli(content),
            Self::Zstd => zstd(content),
            Self::Gzip if content.len() <= MAX_ZOPFLI_LEN => zopfli(content),
            Self::Gzip => gzip(content),
        }
    }
}

/// What became of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The variant was published; these are the lengths of the original file and of the variant in bytes.
    Published { original: u64, compressed: u64 },
    /// A variant of the present state of the file existed already.
    Current,
    /// The variant would not be smaller than the file, so none is published. If there is a variant of an older state of
    /// the file, it is removed.
    NotSmaller,
}

/// Publishes a compressed variant of a file, unless a current one exists or the variant would not be smaller than the file.
///
/// # Errors
/// If the file cannot be read, the variant cannot be written, or the file was changed meanwhile.
pub(super) fn publish(original: &Path, coding: Coding) -> io::Result<Outcome> {
    let mut file = File::open(original)?;
    let metadata = file.metadata()?;
    let path = path_of(original, coding);
    let existing = match fs::symlink_metadata(&path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if existing
        .as_ref()
        .is_some_and(|found| mtime(found) == mtime(&metadata))
    {
        return Ok(Outcome::Current);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    let compressed = coding.encode(&content)?;
    let now = fs::metadata(original)?;
    if (mtime(&now), now.ino()) != (mtime(&metadata), metadata.ino())
        || now.len() != content.len() as u64
    {
        return Err(io::Error::other("the file changed while it was compressed"));
    }
    if compressed.len() >= content.len() {
        if existing.is_some() {
            fs::remove_file(&path)?;
        }
        return Ok(Outcome::NotSmaller);
    }
    replace(&path, &compressed, &metadata)?;
    Ok(Outcome::Published {
        original: content.len() as u64,
        compressed: compressed.len() as u64,
    })
}

fn path_of(original: &Path, coding: Coding) -> PathBuf {
    let mut name = OsString::from(original);
    name.push(coding.suffix());
    name.into()
}

fn mtime(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// Writes a variant with the mtime, mode and owner of its original. Clients see either the old variant or the new one,
/// never a part.
fn replace(path: &Path, content: &[u8], original: &Metadata) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".h2o-compress-")
        .tempfile_in(directory)?;
    file.write_all(content)?;
    let inner = file.as_file();
    // Only root may change the owner. If another user runs the command, that user owns the variant, so a failure is ignored.
    let (owner, group) = (Uid::from_raw(original.uid()), Gid::from_raw(original.gid()));
    let _ = fchown(inner, Some(owner), Some(group));
    inner.set_permissions(Permissions::from_mode(original.mode() & 0o777))?;
    inner.set_times(FileTimes::new().set_modified(original.modified()?))?;
    inner.sync_data()?;
    file.persist(path)?;
    Ok(())
}

fn brotli(content: &[u8]) -> io::Result<Vec<u8>> {
    let params = BrotliEncoderParams {
        quality: 11,
        lgwin: BROTLI_WINDOW_BITS,
        size_hint: content.len(),
        ..BrotliEncoderParams::default()
    };
    let mut output = Vec::new();
    brotli::BrotliCompress(&mut &*content, &mut output, &params)?;
    Ok(output)
}

fn zstd(content: &[u8]) -> io::Result<Vec<u8>> {
    let failed = |code| io::Error::other(zstd_safe::get_error_name(code));
    let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    for parameter in [
        CParameter::CompressionLevel(19),
        CParameter::WindowLog(ZSTD_WINDOW_BITS),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    let mut output = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    context.compress2(&mut output, content).map_err(failed)?;
    Ok(output)
}

fn zopfli(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let options = zopfli::Options::default();
    zopfli::compress(options, zopfli::Format::Gzip, content, &mut output)?;
    Ok(output)
}

fn gzip(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(len: usize) -> Vec<u8> {
        let words = ["alpha ", "beta ", "gamma ", "<p>", "</p>\n", "delta "];
        let mut state = 1_u32;
        let mut content = Vec::new();
        while content.len() < len {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            content.extend(words[(state >> 24) as usize % words.len()].bytes());
        }
        content
    }

    fn decode(coding: Coding, content: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        match coding {
            Coding::Brotli => {
                brotli::BrotliDecompress(&mut &*content, &mut output).unwrap();
            }
            Coding::Zstd => {
                output.reserve(2 << 20);
                zstd_safe::decompress(&mut output, content).unwrap();
            }
            Coding::Gzip => {
                let mut decoder = flate2::read::GzDecoder::new(content);
                decoder.read_to_end(&mut output).unwrap();
            }
        }
        output
    }

    #[test]
    fn every_coding_gives_the_content_back() {
        for len in [1, 3000, MAX_ZOPFLI_LEN + 1] {
            let content = page(len);
            for coding in Coding::ALL {
                let compressed = coding.encode(&content).unwrap();
                assert!(decode(coding, &compressed) == content, "{coding:?} {len}");
            }
        }
    }

    #[test]
    fn the_window_of_zstd_fits_every_client() {
        // The content has 16 MiB: without a limit on the window, a zstd frame that states its content size would have a window of
        // this size.
        let compressed = zstd(&vec![b'a'; 16 << 20]).unwrap();
        // The header of the zstd frame has the Single_Segment_flag off, and its Window_Descriptor is at most 2^(10+13) (RFC 8878
        // §3.1.1.1).
        assert_eq!(compressed[4] & 0x20, 0);
        assert!(compressed[5] >> 3 <= 13, "{:x}", compressed[5]);
    }

    #[test]
    fn a_stale_variant_is_replaced_and_one_without_gain_removed() {
        let folder = tempfile::tempdir().unwrap();
        let original = folder.path().join("a.txt");
        let variant = folder.path().join("a.txt.gz");
        fs::write(&original, page(2000)).unwrap();
        fs::set_permissions(&original, Permissions::from_mode(0o640)).unwrap();
        let first = publish(&original, Coding::Gzip).unwrap();
        assert!(matches!(first, Outcome::Published { .. }), "{first:?}");
        let (of_file, of_variant) = (
            fs::metadata(&original).unwrap(),
            fs::metadata(&variant).unwrap(),
        );
        assert_eq!(mtime(&of_variant), mtime(&of_file));
        assert_eq!(of_variant.mode() & 0o777, 0o640);
        assert_eq!(publish(&original, Coding::Gzip).unwrap(), Outcome::Current);

        fs::write(&original, "x").unwrap();
        assert_eq!(
            publish(&original, Coding::Gzip).unwrap(),
            Outcome::NotSmaller
        );
        assert!(!variant.exists());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(
            left, 1,
            "the directory has only the file, and no temporary files"
        );
    }
}
