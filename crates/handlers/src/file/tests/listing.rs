//! Tests of directory listings.

use std::os::unix::fs::symlink;

use h2o_http::Method;

use super::super::testing::{kit, kit_at};
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
    assert_eq!(
        answer.hint, None,
        "content-type alone tells whether a listing is compressed"
    );
    let text = answer.text();
    assert!(text.starts_with("<!DOCTYPE html>\n"));
    let links: Vec<_> = text.match_indices("<A HREF=").collect();
    assert_eq!(links.len(), 6);
    let mut rest = text.as_str();
    for part in [
        "<TITLE>Index of /d&lt;1&gt;/</TITLE>",
        "<A HREF=\"..\">Parent Directory</A>",
        "<tr class=\"dir\"><td><A HREF=\"sub/\">sub</A>",
        "<A HREF=\".hidden\">.hidden</A>",
        "<A HREF=\"a%20b&amp;&#39;%22%3A%40.txt\">a b&amp;&#39;&quot;:@.txt</A>",
        "<A HREF=\"B\">B</A>",
        "<A HREF=\"b.txt\">b.txt</A>",
        "data-v=\"5\">5 B<",
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
        assert!(text.contains("<td>dangling</td>"));
    }
}

/// The links and the rows without a link of a listing, in order.
fn names(text: &str) -> Vec<String> {
    let cells = text.match_indices("<td>").filter_map(|(at, mark)| {
        let cell = text[at + mark.len()..].split("</td>").next()?;
        match cell.strip_prefix("<A HREF=\"") {
            Some(link) => link.split('"').next().map(str::to_owned),
            None => (!cell.is_empty() && cell != "broken link").then(|| format!("({cell})")),
        }
    });
    cells.collect()
}

#[test]
fn folders_are_not_among_files_nor_10_before_2() {
    let root = tree(&[
        ("file10", ""),
        ("file2", ""),
        ("Zebra", ""),
        ("apple", ""),
        ("sub10/", ""),
        ("sub9/x", ""),
        ("b/", ""),
    ]);
    symlink("sub9", root.path().join("link")).unwrap();
    symlink("nowhere", root.path().join("broken")).unwrap();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    let text = kit.get("/").text();
    let want = [
        "b/", "link/", "sub9/", "sub10/", "apple", "(broken)", "file2", "file10", "Zebra",
    ];
    assert_eq!(
        names(&text),
        want,
        "the name of a broken symbolic link is not a link of the page: {text}"
    );
    assert!(text.contains("<th aria-sort=\"ascending\">Name</th>"));
    // Unlike the page of the configured path, the page of a directory below has a link to the parent directory.
    assert_eq!(names(&kit.get("/sub9/").text()), ["..", "x"]);
}

#[test]
fn nothing_of_a_listing_is_written_into_the_page_that_a_policy_forbids() {
    let root = tree(&[("a/b/x", ""), ("index.html", "I")]);
    for (key, page, at) in [
        ("/", "/a/b/", "/"),
        ("/files", "/files/a/b/", "/files/"),
        ("/files/", "/files/a/b/", "/files/"),
    ] {
        let kit = kit_at(
            root.path(),
            key,
            "file.etag: ON",
            "file.dir: ROOT\nfile.dirlisting: ON",
        );
        let text = kit.get(page).text();
        for forbidden in ["<style", "style=", "data:", "</script>\n</body>", "onclick"] {
            assert!(!text.contains(forbidden), "{forbidden}: {text}");
        }
        for (mark, content_type) in [
            ("<link rel=\"stylesheet\" href=\"../../?", "text/css"),
            ("<link rel=\"icon\" href=\"../../?", "image/svg+xml"),
            ("<script src=\"../../?", "text/javascript"),
        ] {
            let rest = text
                .split(mark)
                .nth(1)
                .unwrap_or_else(|| panic!("{mark}: {text}"));
            let query = rest.split('"').next().unwrap();
            let answer = kit.get(&format!("{at}?{query}"));
            assert_eq!(answer.status, 200);
            assert_eq!(
                answer.fields,
                [
                    format!("content-type: {content_type}"),
                    "cache-control: max-age=31536000, immutable".to_owned(),
                ]
            );
        }
    }
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    assert_eq!(kit.get("/?h2o-listing.css-0").brief(), "200 I");
}

#[test]
fn what_is_hidden_is_not_listed_and_not_served() {
    let root = tree(&[
        (".env", "secret"),
        (".git/config", "secret"),
        (".well-known/acme", "A"),
        ("a/.env", "secret"),
        ("a/x.bak", "secret"),
        ("a/x", "X"),
        ("a/index.html.gz", ""),
    ]);
    let config =
        "file.dir: ROOT\nfile.dirlisting: ON\nfile.hide: [\".*\", \"*.bak\", \"!.well-known\"]";
    let kit = kit(root.path(), config);
    for path in [
        "/.env",
        "/.git",
        "/.git/",
        "/.git/config",
        "/a/.env",
        "/a//.env",
        "/a/x.bak",
        "/a/x.bak/",
    ] {
        assert_eq!(
            kit.get(path).brief(),
            "0 ",
            "{path} is left to the next handler"
        );
    }
    assert_eq!(kit.get("/.well-known/acme").brief(), "200 A");
    assert_eq!(kit.get("/a/x").brief(), "200 X");
    assert_eq!(names(&kit.get("/").text()), [".well-known/", "a/"]);
    assert_eq!(names(&kit.get("/a/").text()), ["..", "index.html.gz", "x"]);
}

#[test]
fn an_index_file_that_is_hidden_is_not_served() {
    let root = tree(&[
        ("a/index.html", "I"),
        ("a/index.txt", "T"),
        ("b/index.html", "I"),
    ]);
    let config = "file.dir: ROOT\nfile.dirlisting: ON\nfile.hide: index.html";
    let kit = kit(root.path(), config);
    assert_eq!(kit.get("/a/").brief(), "200 T");
    assert_eq!(names(&kit.get("/b/").text()), [".."]);
}
