//! Tests of the way from the path of a request to a file: missing files, symbolic links, and directories without rights.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use h2o_http::{Known, Method};
use rustix::fs::{CWD, FileType, Mode};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::super::testing::{cool_the_disk, kit, kit_at};
use super::{tree, write};

#[test]
fn paths_lead_to_files() {
    let root = tree(&[
        ("a.txt", "A"),
        (".hidden", "H"),
        ("d/index.html", "DI"),
        ("d/b c", "BC"),
        ("e/index.txt", "ET"),
        ("f/index.html/g", "G"),
        ("empty/", ""),
        ("pro:be@/", ""),
    ]);
    let kit = kit(root.path(), "file.dir: ROOT");
    let cases = [
        ("/a.txt", "200 A"),
        ("/a.txt?query", "200 A"),
        ("/%61.txt", "200 A"),
        ("//a.txt", "200 A"),
        ("/d/../a.txt", "200 A"),
        ("/d/%2e%2e/a.txt", "200 A"),
        ("/../../a.txt", "200 A"),
        ("/..%2f..%2fa.txt", "200 A"),
        ("/.hidden", "200 H"),
        ("/A.txt", "0 "),
        ("/a.txt/", "0 "),
        ("/a.txt/x", "0 "),
        ("/a.txt%00", "0 "),
        ("/none", "0 "),
        ("/none/", "0 "),
        ("/", "0 "),
        ("/d/", "200 DI"),
        ("/d//", "200 DI"),
        ("//d/", "200 DI"),
        ("/d/b%20c", "200 BC"),
        ("/e/", "200 ET"),
        ("/d", "301 /d/"),
        ("/d?a=/b?c", "301 /d/?a=/b?c"),
        ("//d", "301 /d/"),
        ("///d//../..//d", "301 /d/"),
        ("/f/", "301 /f/index.html/"),
        ("/f/?q", "301 /f/index.html/?q"),
        ("/pro:be@", "301 /pro%3Abe%40/"),
        ("/empty/", "0 "),
    ];
    for (target, want) in cases {
        let answer = kit.get(target);
        let brief = answer.brief();
        assert_eq!(brief, want, "{target}");
        assert!(answer.status == 0 || answer.dates == 1, "{target}");
    }
}

#[test]
fn the_disk_being_cold_changes_nothing_but_the_time() {
    let root = tree(&[("a.txt", "A"), ("d/index.html", "DI"), ("big", "")]);
    write(root.path(), "big", vec![b'x'; 70_000]);
    cool_the_disk();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    for (target, want) in [
        ("/a.txt", "200 A"),
        ("/d/", "200 DI"),
        ("/d", "301 /d/"),
        ("/none", "0 "),
    ] {
        let answer = kit.get(target);
        assert_eq!((answer.brief().as_str(), answer.waited), (want, true));
    }
    assert_eq!(kit.get("/big").body.len(), 70_000);
    assert!(kit.get("/").text().contains("<A HREF=\"a.txt\">a.txt</A>"));
}

#[test]
fn the_key_of_the_path_is_taken_off() {
    let root = tree(&[("a", "A"), ("pub/a", "PA"), ("index.html", "I")]);
    let cases = [
        ("/pub", "/pub/a", "200 A"),
        ("/pub", "/pub/", "200 I"),
        ("/pub", "/pub", "301 /pub/"),
        ("/pub", "/pub?q", "301 /pub/?q"),
        ("/pub/", "/pub/a", "200 A"),
        ("/pub/", "/pub/pub/a", "200 PA"),
        ("/pub/", "/pub/", "200 I"),
        ("/pub/", "/pub", "0 "),
    ];
    for (key, target, want) in cases {
        let kit = kit_at(root.path(), key, "{}", "file.dir: ROOT/");
        assert_eq!(kit.get(target).brief(), want, "{target} at {key}");
    }
}

#[test]
fn absolute_looking_paths_stay_in_the_directory() {
    let root = tree(&[("etc/passwd", "ours")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    for target in ["//etc/passwd", "///etc/passwd", "/%2fetc/passwd"] {
        assert_eq!(kit.get(target).brief(), "200 ours", "{target}");
    }
    assert_eq!(kit.get("//etc/hostname").brief(), "0 ");
}

#[test]
fn symbolic_links_are_followed_wherever_they_lead() {
    let outside = tree(&[("secret", "S"), ("d/index.html", "DI")]);
    let root = tree(&[("real", "R"), ("sub/", "")]);
    let link = |to: &std::path::Path, name: &str| symlink(to, root.path().join(name)).unwrap();
    link("real".as_ref(), "inside");
    link(&root.path().join("real"), "absolute");
    link("../real".as_ref(), "sub/up");
    link(&outside.path().join("secret"), "out");
    link(&outside.path().join("d"), "outdir");
    link("loop".as_ref(), "loop");
    link("nowhere".as_ref(), "dangling");
    let kit = kit(root.path(), "file.dir: ROOT");
    for (target, want) in [
        ("/inside", "200 R"),
        ("/absolute", "200 R"),
        ("/sub/up", "200 R"),
        ("/out", "200 S"),
        ("/outdir/", "200 DI"),
        ("/outdir", "301 /outdir/"),
        ("/outdir/../out", "200 S"),
        ("/loop", "403 access forbidden"),
        ("/dangling", "0 "),
    ] {
        assert_eq!(kit.get(target).brief(), want, "{target}");
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting() {
    let root = tree(&[]);
    let fifo = root.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    symlink("/dev/null", root.path().join("null")).unwrap();
    let kit = kit(root.path(), "file.dir: ROOT");
    for target in ["/fifo", "/socket", "/null"] {
        let answer = kit.get(target);
        assert_eq!(answer.brief(), "403 access forbidden", "{target}");
        assert_eq!(answer.reason, "Access Forbidden");
        assert_eq!(answer.fields, ["content-type: text/plain; charset=utf-8"]);
        assert_eq!(answer.length, Some(16));
    }
    let long = format!("/{}", "x".repeat(300));
    assert_eq!(kit.get(&long).brief(), "403 access forbidden");
    assert_eq!(kit.worker.counters.get(h2o_exchange::Counter::Status403), 4);
}

#[test]
fn files_without_permission_are_refused() {
    // The superuser may read any file; this thread gives that right up.
    if let Ok(mut sets) = capabilities(None) {
        sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).unwrap();
    }
    let root = tree(&[
        ("closed.txt", "C"),
        ("sealed/a", "A"),
        ("sealed/index.html", "I"),
        ("halfway/index.html", "I"),
        ("halfway/index.htm", "second"),
        ("unlistable/", ""),
    ]);
    let chmod = |name: &str, mode| {
        fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod("closed.txt", 0);
    chmod("sealed", 0);
    chmod("halfway/index.html", 0);
    chmod("unlistable", 0o300);
    let kit = kit(root.path(), "file.dir: ROOT\nfile.dirlisting: ON");
    let targets = [
        "/closed.txt",
        "/sealed/a",
        "/sealed/",
        "/halfway/",
        "/unlistable/",
    ];
    for target in targets {
        assert_eq!(kit.get(target).brief(), "403 access forbidden", "{target}");
    }
    chmod("sealed", 0o700);
    chmod("unlistable", 0o700);
}

#[test]
fn redirects_are_followed_inside_delegated_requests() {
    let root = tree(&[("d/index.html", "DI")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    let follow = |method| kit.ask("/d?q").method(method).delegated().send().reroute;
    assert_eq!(follow(Method::Get), Some((Method::Get, "/d/?q".into())));
    assert_eq!(follow(Method::Post), Some((Method::Get, "/d/?q".into())));
    assert_eq!(follow(Method::Put), Some((Method::Put, "/d/?q".into())));
    assert_eq!(kit.ask("/d/").delegated().send().brief(), "200 DI");
}

#[test]
fn redirects_are_sent_for_every_method() {
    let root = tree(&[("d/", "")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    let answer = kit.ask("/d").method(Method::Delete).send();
    assert_eq!(
        answer.fields,
        ["location: /d/", "content-type: text/html; charset=utf-8"]
    );
    assert_eq!(
        (answer.status, answer.reason.as_str()),
        (301, "Moved Permanently")
    );
    assert!(answer.text().contains("<A HREF=\"/d/\">here</A>"));
}

#[test]
fn directories_overlay_each_other_and_say_the_date_once() {
    let one = tree(&[("a", "A1"), ("d/x", "X1")]);
    let two = tree(&[("a", "A2"), ("b", "B2"), ("d/y", "Y2")]);
    let config = format!("file.dir: ROOT\nfile.dir: {}", two.path().display());
    let kit = kit(one.path(), &config);
    for (target, want) in [
        ("/a", "200 A1"),
        ("/b", "200 B2"),
        ("/d/x", "200 X1"),
        ("/d/y", "200 Y2"),
        ("/c", "0 "),
    ] {
        let answer = kit.get(target);
        assert_eq!(answer.brief(), want, "{target}");
        assert!(answer.dates <= 1, "{target}");
    }
}

#[test]
fn single_file_answers_for_everything_below_its_path() {
    let root = tree(&[("site.ico", "ICO"), ("d/", "")]);
    let serve = |name: &str| kit_at(root.path(), "/f", "{}", &format!("file.file: ROOT/{name}"));
    let one = serve("site.ico");
    for target in ["/f", "/f/", "/f/x/y", "/f/a%00b"] {
        let answer = one.get(target);
        assert_eq!(answer.brief(), "200 ICO", "{target}");
        assert_eq!(answer.field("content-type"), Some("image/x-icon"));
        assert_eq!(answer.dates, 1);
    }
    assert_eq!(serve("none").get("/f").brief(), "0 ");
    assert_eq!(serve("d").get("/f").brief(), "403 access forbidden");
    assert_eq!(
        serve("site.ico/x").get("/f").brief(),
        "403 access forbidden"
    );
    let tag = one.get("/f").field("etag").unwrap().to_owned();
    let again = one.ask("/f").field(Known::IfNoneMatch, &tag).send();
    assert_eq!(again.status, 304);
}

#[test]
fn a_missing_directory_is_no_error() {
    let root = tree(&[("file", "F")]);
    for name in ["none", "file"] {
        let kit = kit(root.path(), &format!("file.dir: ROOT/{name}"));
        assert_eq!(kit.get("/a").brief(), "0 ", "{name}");
        assert_eq!(kit.get("/").brief(), "0 ", "{name}");
    }
}
