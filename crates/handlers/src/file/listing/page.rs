//! The HTML page of a directory listing.
//!
//! Programs parse such pages. H2O compatibility: the title, one link per name with only the name in it, and the link to
//! the parent as the first one are the same as H2O's.

use std::ffi::CStr;
use std::io::Write as _;

use h2o_http::escape;

use super::directory::{FileFacts, FileKind};
use crate::asset::Asset;

/// The style sheet, the script and the icon of the page.
pub(super) static ASSETS: [Asset; 3] = [
    Asset::new("css", "text/css", include_bytes!("page.css")),
    Asset::new("js", "text/javascript", include_bytes!("page.js")),
    Asset::new("svg", "image/svg+xml", include_bytes!("icon.svg")),
];

/// The query in the URL of an asset.
pub(super) fn query_of(asset: &Asset) -> String {
    format!("h2o-listing.{}-{:016x}", asset.name, asset.hash)
}

/// The URL of the configured path, relative to a page at `rest` below it. It is relative, because a proxy in front of
/// this server may serve the site under another path.
pub(super) fn base(rest: &[u8]) -> String {
    let rest = rest.strip_prefix(b"/").unwrap_or(rest);
    "../".repeat(rest.iter().filter(|&&byte| byte == b'/').count())
}

/// Writes the part of the page before the entries.
pub(super) fn head(path: &[u8], base: &str, out: &mut Vec<u8>) {
    let [style, script, icon] = ASSETS
        .each_ref()
        .map(|asset| format!("{base}?{}", query_of(asset)));
    let mut title = b"Index of ".to_vec();
    escape::html(path, &mut title);
    for part in [
        b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n".as_slice(),
        b"<meta name=\"viewport\" content=\"width=device-width\">\n<TITLE>",
        &title,
        b"</TITLE>\n<link rel=\"stylesheet\" href=\"",
        style.as_bytes(),
        b"\">\n<link rel=\"icon\" href=\"",
        icon.as_bytes(),
        b"\">\n<script src=\"",
        script.as_bytes(),
        b"\" defer></script>\n</head>\n<body>\n<h1>",
        &title,
        b"</h1>\n<table>\n<thead><tr><th aria-sort=\"ascending\">Name</th><th>Size</th><th>Modified<i> (UTC)</i></th></tr></thead>\n<tbody>\n",
    ] {
        out.extend_from_slice(part);
    }
    if path != b"/" {
        out.extend_from_slice(
            b"<tr class=\"up\"><td><A HREF=\"..\">Parent Directory</A></td><td></td><td></td></tr>\n",
        );
    }
}

/// Writes the row of one name.
pub(super) fn entry(name: &CStr, facts: Option<FileFacts>, out: &mut Vec<u8>) {
    let name = name.to_bytes();
    let mut link = Vec::with_capacity(name.len() + 1);
    escape::uri(name, b"", &mut link);
    let kind = facts.map_or(FileKind::File, |facts| facts.kind);
    let row: &[u8] = match kind {
        FileKind::BrokenLink => {
            out.extend_from_slice(b"<tr class=\"broken\"><td>");
            escape::html(name, out);
            out.extend_from_slice(b"</td><td></td><td>broken link</td></tr>\n");
            return;
        }
        FileKind::Directory => {
            link.push(b'/');
            b"<tr class=\"dir\"><td><A HREF=\""
        }
        FileKind::File => b"<tr><td><A HREF=\"",
    };
    out.extend_from_slice(row);
    escape::html(&link, out);
    out.extend_from_slice(b"\">");
    escape::html(name, out);
    out.extend_from_slice(b"</A></td>");
    match facts.filter(|_| kind == FileKind::File) {
        Some(facts) => {
            let text = size_text(facts.size);
            // Writing to a vector cannot fail.
            let _ = write!(out, "<td data-v=\"{}\">{text}</td>", facts.size);
        }
        None => out.extend_from_slice(b"<td></td>"),
    }
    match facts.and_then(|facts| Some((facts.modified, time_text(facts.modified)?))) {
        Some((modified, [date, time])) => {
            // The style sheet hides the time of day on narrow screens.
            let _ = write!(out, "<td data-v=\"{modified}\">{date}<i> {time}</i></td>");
        }
        None => out.extend_from_slice(b"<td></td>"),
    }
    out.extend_from_slice(b"</tr>\n");
}

/// Writes the part of the page after the entries.
pub(super) fn tail(out: &mut Vec<u8>) {
    out.extend_from_slice(b"</tbody>\n</table>\n</body>\n</html>\n");
}

/// The text of a size, with two or three significant digits, such as `1.5 KiB`.
fn size_text(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    // The size is counted in tenths of the unit, rounded down.
    let mut tenths = u128::from(size) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10 * 1024 {
        tenths /= 1024;
        unit += 1;
    }
    let unit = UNITS[unit];
    if tenths < 100 {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    } else {
        format!("{} {unit}", tenths / 10)
    }
}

/// The date and the time of day, as two texts.
fn time_text(seconds: i64) -> Option<[String; 2]> {
    let time = jiff::Timestamp::from_second(seconds).ok()?;
    Some(["%Y-%m-%d", "%H:%M"].map(|format| time.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asset::{colours, contrast};

    #[test]
    fn sizes_are_short() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 * 1024 - 1, "9.9 KiB"),
            (10 * 1024, "10 KiB"),
            (1024 * 1024 - 1, "1023 KiB"),
            (1024 * 1024, "1.0 MiB"),
            (u64::MAX, "15 EiB"),
        ];
        for (size, want) in cases {
            assert_eq!(size_text(size), want, "{size}");
        }
    }

    #[test]
    fn times_that_cannot_be_shown_are_left_out() {
        assert_eq!(time_text(784_111_777).unwrap(), ["1994-11-06", "08:49"]);
        assert_eq!(time_text(i64::MAX), None);
    }

    #[test]
    fn no_text_is_too_pale() {
        let style = include_str!("page.css");
        for ground in ["page", "hover"] {
            for ink in ["dim", "link"] {
                for (ground, ink) in colours(style, ground).iter().zip(colours(style, ink)) {
                    let contrast = contrast(ground, ink);
                    assert!(contrast >= 4.5, "{ink} on {ground}: {contrast}");
                }
            }
        }
    }

    #[test]
    fn the_assets_are_not_looked_for_anywhere_but_at_the_key() {
        // The rest of the path has a slash at its beginning, unless the configured path ends with one.
        let cases = [
            ("", ""),
            ("/", ""),
            ("a/", "../"),
            ("/a/", "../"),
            ("/a/b/", "../../"),
            ("//a/", "../../"),
        ];
        for (rest, want) in cases {
            assert_eq!(base(rest.as_bytes()), want, "{rest}");
        }
    }

    #[test]
    fn links_are_encoded_twice_over_and_names_escaped() {
        let mut out = Vec::new();
        entry(c"a b&<'\"/:@\xff.txt", None, &mut out);
        let text = String::from_utf8_lossy(&out);
        assert!(
            text.contains(
                "<A HREF=\"a%20b&amp;%3C&#39;%22%2F%3A%40%FF.txt\">a b&amp;&lt;&#39;&quot;/:@\u{fffd}.txt</A>"
            ),
            "{text}"
        );
    }
}
