//! The page of a listing.
//!
//! Programs read such pages, so some of it is as H2O has it: the title, one link per name with nothing but the
//! name in it, no slash behind directories, the parent as first link, and the order.

use std::ffi::CStr;
use std::io::Write as _;

use h2o_http::escape;

use super::directory::Facts;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Everything before the entries.
pub(super) fn head(path: &[u8], out: &mut Vec<u8>) {
    let mut title = b"Index of ".to_vec();
    escape::html(path, &mut title);
    for part in [
        b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n".as_slice(),
        b"<meta name=\"viewport\" content=\"width=device-width\">\n<TITLE>",
        &title,
        b"</TITLE>\n<style>\n",
        STYLE.as_bytes(),
        b"</style>\n</head>\n<body>\n<h1>",
        &title,
        b"</h1>\n<table>\n<thead><tr><th>Name</th><th>Size</th><th>Modified (UTC)</th></tr></thead>\n<tbody>\n",
        b"<tr class=\"up\"><td><A HREF=\"..\">Parent Directory</A></td><td></td><td></td></tr>\n",
    ] {
        out.extend_from_slice(part);
    }
}

/// The row of one name.
pub(super) fn entry(name: &CStr, facts: Option<Facts>, out: &mut Vec<u8>) {
    let name = name.to_bytes();
    let is_directory = facts.is_some_and(|facts| facts.is_directory);
    let class: &[u8] = if is_directory { b" class=\"dir\"" } else { b"" };
    let mut link = Vec::with_capacity(name.len());
    escape::uri(name, b"", &mut link);
    for part in [b"<tr".as_slice(), class, b"><td><A HREF=\""] {
        out.extend_from_slice(part);
    }
    escape::html(&link, out);
    out.extend_from_slice(b"\">");
    escape::html(name, out);
    out.extend_from_slice(b"</A></td>");
    match facts.filter(|_| !is_directory) {
        Some(facts) => {
            let text = size_text(facts.size);
            // Writing to a vector cannot fail.
            let _ = write!(out, "<td data-v=\"{}\">{text}</td>", facts.size);
        }
        None => out.extend_from_slice(b"<td></td>"),
    }
    match facts.and_then(|facts| Some((facts.modified, time_text(facts.modified)?))) {
        Some((modified, text)) => {
            let _ = write!(out, "<td data-v=\"{modified}\">{text}</td>");
        }
        None => out.extend_from_slice(b"<td></td>"),
    }
    out.extend_from_slice(b"</tr>\n");
}

/// Everything behind the entries.
pub(super) fn tail(out: &mut Vec<u8>) {
    for part in [
        "</tbody>\n</table>\n<script>\n",
        SCRIPT,
        "</script>\n</body>\n</html>\n",
    ] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// A size with two or three digits that count, such as `1.5 KiB`.
fn size_text(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    // In tenths of the unit, rounded down.
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

fn time_text(seconds: i64) -> Option<String> {
    let time = jiff::Timestamp::from_second(seconds).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(time_text(784_111_777).unwrap(), "1994-11-06 08:49");
        assert_eq!(time_text(i64::MAX), None);
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
