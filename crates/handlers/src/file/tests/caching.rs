//! Tests of the content cache: what it keeps, and the changes that it must notice.

use std::fs;
use std::os::unix::fs::symlink;

use h2o_http::Known;

use super::super::testing::{kit, let_files_settle};
use super::{tree, write};

#[test]
fn edited_file_is_seen_by_the_very_next_request() {
    let root = tree(&[("a", "one")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    for content in ["one", "two", "three", "four"] {
        // Writes two versions of the same length within one tick of the clock: the mtime is too recent to tell them
        // apart.
        write(root.path(), "a", content);
        assert_eq!(kit.get("/a").text(), content);
        assert_eq!(kit.get("/a").text(), content);
    }
}

#[test]
fn settled_file_is_remembered_until_it_changes() {
    let_files_settle();
    let root = tree(&[("a", "one")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    assert_eq!(kit.get("/a").text(), "one");
    write(root.path(), "a", "three");
    let same_turn = kit.ask("/a").send_in_this_turn();
    assert_eq!(
        same_turn.text(),
        "one",
        "the file is looked up once per turn of the event loop"
    );
    assert_eq!(kit.get("/a").text(), "three");
    fs::remove_file(root.path().join("a")).unwrap();
    assert_eq!(kit.ask("/a").send_in_this_turn().text(), "three");
    assert_eq!(kit.get("/a").status, 0);
    write(root.path(), "a", "back");
    assert_eq!(kit.get("/a").text(), "back");
}

#[test]
fn replaced_file_and_redirected_link_are_noticed() {
    let_files_settle();
    let root = tree(&[("a", "old"), ("new", "new"), ("v1/x", "v1"), ("v2/x", "v2")]);
    let path = |name: &str| root.path().join(name);
    symlink("v1", path("current")).unwrap();
    let kit = kit(root.path(), "file.dir: ROOT");
    assert_eq!(kit.get("/a").text(), "old");
    assert_eq!(kit.get("/current/x").text(), "v1");
    fs::rename(path("new"), path("a")).unwrap();
    symlink("v2", path("next")).unwrap();
    fs::rename(path("next"), path("current")).unwrap();
    assert_eq!(kit.get("/a").text(), "new");
    assert_eq!(kit.get("/current/x").text(), "v2");
}

#[test]
fn document_root_behind_a_link_can_be_switched() {
    let_files_settle();
    let root = tree(&[("v1/x", "v1"), ("v2/x", "v2")]);
    symlink("v1", root.path().join("current")).unwrap();
    let kit = kit(root.path(), "file.dir: ROOT/current");
    assert_eq!(kit.get("/x").text(), "v1");
    fs::remove_file(root.path().join("current")).unwrap();
    assert_eq!(kit.get("/x").status, 0);
    symlink("v2", root.path().join("current")).unwrap();
    assert_eq!(kit.get("/x").text(), "v2");
}

#[test]
fn earlier_index_file_is_noticed_when_it_appears() {
    let_files_settle();
    let root = tree(&[("index.txt", "third")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    assert_eq!(kit.get("/").text(), "third");
    assert_eq!(kit.get("/").text(), "third");
    write(root.path(), "index.htm", "second");
    assert_eq!(kit.get("/").text(), "second");
    write(root.path(), "index.html", "first");
    assert_eq!(kit.get("/").text(), "first");
    fs::remove_file(root.path().join("index.html")).unwrap();
    assert_eq!(kit.get("/").text(), "second");
}

#[test]
fn prepared_variant_is_noticed_when_it_appears() {
    let_files_settle();
    let root = tree(&[("a.css", "plain")]);
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: ON");
    let get = |codings: &str| {
        let answer = kit
            .ask("/a.css")
            .field(Known::AcceptEncoding, codings)
            .send();
        let coding = answer.field("content-encoding").unwrap_or("-").to_owned();
        format!("{coding} {}", answer.text())
    };
    assert_eq!(get("gzip, br"), "- plain");
    write(root.path(), "a.css.gz", "gzipped");
    assert_eq!(get("gzip, br"), "gzip gzipped");
    write(root.path(), "a.css.br", "brotli");
    assert_eq!(get("gzip, br"), "br brotli");
    assert_eq!(get("gzip"), "gzip gzipped");
    assert_eq!(get("identity"), "- plain");
    fs::remove_file(root.path().join("a.css.br")).unwrap();
    assert_eq!(get("gzip, br"), "gzip gzipped");
}

#[test]
fn large_file_is_remembered_by_its_descriptor_and_noticed_when_replaced() {
    let_files_settle();
    let root = tree(&[]);
    write(root.path(), "big", vec![b'1'; 100_000]);
    write(root.path(), "next", vec![b'2'; 100_000]);
    let kit = kit(root.path(), "file.dir: ROOT");
    assert_eq!(kit.get("/big").body, vec![b'1'; 100_000]);
    fs::rename(root.path().join("next"), root.path().join("big")).unwrap();
    let same_turn = kit.ask("/big").send_in_this_turn();
    assert_eq!(same_turn.body, vec![b'1'; 100_000]);
    assert_eq!(kit.get("/big").body, vec![b'2'; 100_000]);
}

#[test]
fn services_do_not_share_what_depends_on_their_settings() {
    let_files_settle();
    let root = tree(&[("a.txt", "A")]);
    let one = kit(root.path(), "file.dir: ROOT");
    let config = "file.dir: ROOT/none\nfile.dir: ROOT\nfile.etag: OFF";
    let two = kit(root.path(), config);
    for _ in 0..2 {
        assert!(one.get("/a.txt").field("etag").is_some());
        assert!(two.get("/a.txt").field("etag").is_none());
    }
}
