//! Directory listings.

use std::os::unix::fs::symlink;

use h2o_http::Method;

use super::super::testing::kit;
use super::tree;

#[test]
fn listing_has_the_parts_that_programs_read() {
    let root = tree(&[
        ("d<1>/b.txt", "12345"),
        ("d<1>/.hidden", ""),
        ("d<1>/sub/", ""),
        ("d<1>/a b&'\":@.txt", ""),
        ("d<1>/B", ""),
    ]);
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    let answer = kit.get("/d%3c1%3e/");
    assert_eq!(answer.fields, ["content-type: text/html; charset=utf-8"]);
    assert_eq!((answer.status, answer.length, answer.dates), (200, None, 1));
    assert_eq!(answer.hint, None, "found by content-type");
    let text = answer.text();
    assert!(text.starts_with("<!DOCTYPE html>\n"));
    let links: Vec<_> = text.match_indices("<A HREF=").collect();
    assert_eq!(links.len(), 6);
    let mut rest = text.as_str();
    for part in [
        "<TITLE>Index of /d&lt;1&gt;/</TITLE>",
        "<A HREF=\"..\">Parent Directory</A>",
        "<A HREF=\".hidden\">.hidden</A>",
        "<A HREF=\"B\">B</A>",
        "<A HREF=\"a%20b&amp;&#39;%22%3A%40.txt\">a b&amp;&#39;&quot;:@.txt</A>",
        "<A HREF=\"b.txt\">b.txt</A>",
        "data-v=\"5\">5 B<",
        "<tr class=\"dir\"><td><A HREF=\"sub\">sub</A>",
        "</html>\n",
    ] {
        let at = rest.find(part);
        assert!(at.is_some(), "{part} is missing, or comes too early");
        rest = &rest[at.unwrap() + part.len()..];
    }
    assert_eq!(rest, "");
}

#[test]
fn listing_needs_a_directory_without_index_file_and_a_reading_method() {
    let root = tree(&[("a/x", ""), ("b/index.html", "I"), ("c/", "")]);
    let on = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    assert_eq!(on.get("/a").brief(), "301 /a/");
    assert_eq!(on.get("/b/").brief(), "200 I");
    assert_eq!(on.get("/none/").brief(), "0 ");
    assert_eq!(on.ask("/c/").method(Method::Head).send().length, None);
    let post = on.ask("/c/").method(Method::Post).send();
    assert_eq!(post.field("allow"), Some("GET, HEAD"));
    let off = kit(root.path(), "file.dir: ROOT");
    assert_eq!(off.get("/a/").brief(), "0 ");
    let no_index = kit(
        root.path(),
        "file.dir: ROOT\nfile.dirlisting: ON\nfile.index: []",
    );
    assert!(no_index.get("/b/").text().contains(">index.html</A>"));
}

#[test]
fn huge_directory_is_listed_in_pieces() {
    const FILES: usize = 3000;
    let root = tree(&[]);
    for n in 0..FILES {
        std::fs::File::create(root.path().join(format!("file {n:05}"))).unwrap();
    }
    symlink("nowhere", root.path().join("dangling")).unwrap();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    for pull in [100, 1 << 20] {
        let text = kit.ask("/").pull(pull).send().text();
        let names: Vec<_> = text
            .match_indices("<A HREF=\"file%20")
            .map(|(at, mark)| &text[at + mark.len()..][..5])
            .collect();
        assert_eq!(names.len(), FILES);
        assert!(names.is_sorted());
        assert!(text.contains(">dangling</A>"));
    }
}
