//! Tests of cache entries whose files are watched by inotify: the next request sees every change.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use h2o_http::Known;
use h2o_testkit::eventually;
use tempfile::TempDir;

use super::super::cache::ContentCache;
use super::super::identity::{FileStamp, inspect};
use super::super::testing::{Kit, kit, let_files_settle};
use super::super::watch::{WatchState, Watches};
use super::{tree, write};

/// The path of the test's directory without symbolic links.
fn real(root: &TempDir) -> std::path::PathBuf {
    root.path().canonicalize().unwrap()
}

fn serve(root: &Path) -> Kit {
    let_files_settle();
    kit(root, "file.dir: ROOT\nfile.send-compressed: ON")
}

fn get(kit: &Kit, target: &str) -> String {
    let ask = kit.ask(target).field(Known::AcceptEncoding, "gzip");
    ask.send().brief()
}

fn is_watched(kit: &Kit, target: &str) -> bool {
    let cache = kit.worker.local::<ContentCache>();
    cache.is_watched(target.as_bytes())
}

/// Repeats the request until the file is watched.
fn until_watched(kit: &Kit, target: &str) {
    eventually(&format!("a watch of {target}"), || {
        get(kit, target);
        is_watched(kit, target).then_some(())
    });
}

/// Repeats the request for longer than the server needs to watch a file that can be watched. Returns whether the file is still not
/// watched.
fn stays_unwatched(kit: &Kit, target: &str) -> bool {
    !(0..200).any(|_| {
        std::thread::sleep(Duration::from_micros(200));
        get(kit, target);
        is_watched(kit, target)
    })
}

/// Waits until the file of `target` is watched, makes the change, and returns the response of the next request. The
/// request after that, in another turn of the event loop, must get the same response.
fn after(kit: &Kit, target: &str, change: impl FnOnce()) -> String {
    until_watched(kit, target);
    let before = get(kit, target);
    assert_eq!(get(kit, target), before);
    change();
    let next = get(kit, target);
    assert_eq!(get(kit, target), next);
    next
}

#[test]
fn changes_of_a_watched_file_are_seen() {
    let root = tree(&[("d/a", "one"), ("d/b", "b"), ("d/new", "new")]);
    let root = real(&root);
    let path = |name: &str| root.join(name);
    let kit = serve(&root);
    for content in ["two", "three", "four"] {
        assert_eq!(
            after(&kit, "/d/a", || write(&root, "d/a", content)),
            format!("200 {content}")
        );
    }
    let cut = || {
        let file = fs::File::options().write(true).open(path("d/a")).unwrap();
        file.set_len(2).unwrap();
    };
    assert_eq!(after(&kit, "/d/a", cut), "200 fo");
    let replace = || fs::rename(path("d/new"), path("d/a")).unwrap();
    assert_eq!(after(&kit, "/d/a", replace), "200 new");
    let linked = || {
        fs::rename(path("d/a"), path("d/c")).unwrap();
        symlink("b", path("d/a")).unwrap();
    };
    assert_eq!(after(&kit, "/d/a", linked), "200 b");
    let delete = || fs::remove_file(path("d/b")).unwrap();
    assert_eq!(after(&kit, "/d/b", delete), "0 ");
    write(&root, "d/b", "back");
    assert_eq!(get(&kit, "/d/b"), "200 back");
}

#[test]
fn files_that_appear_beside_a_watched_one_are_seen() {
    let root = tree(&[("d/a", "plain"), ("i/index.htm", "second")]);
    let root = real(&root);
    let kit = serve(&root);
    let variant = || write(&root, "d/a.gz", "zipped");
    assert_eq!(after(&kit, "/d/a", variant), "200 zipped");
    let gone = || fs::remove_file(root.join("d/a.gz")).unwrap();
    assert_eq!(after(&kit, "/d/a", gone), "200 plain");
    let earlier = || write(&root, "i/index.html", "first");
    assert_eq!(after(&kit, "/i/", earlier), "200 first");
}

#[test]
fn directories_above_a_watched_file_are_watched_too() {
    let root = tree(&[
        ("x/y/z/a", "old"),
        ("other/y/z/a", "new"),
        ("third/z/a", "3"),
    ]);
    let root = real(&root);
    let path = |name: &str| root.join(name);
    let kit = serve(&root);
    let target = "/x/y/z/a";
    let swap = || {
        fs::rename(path("x"), path("x.old")).unwrap();
        fs::rename(path("other"), path("x")).unwrap();
    };
    assert_eq!(after(&kit, target, swap), "200 new");
    let link = || {
        fs::rename(path("x/y"), path("x/y.old")).unwrap();
        symlink(path("third"), path("x/y")).unwrap();
    };
    assert_eq!(after(&kit, target, link), "200 3");
    assert!(
        stays_unwatched(&kit, target),
        "a path through a symbolic link is not watched"
    );
    fs::remove_file(path("x/y")).unwrap();
    fs::rename(path("x/y.old"), path("x/y")).unwrap();
    assert_eq!(get(&kit, target), "200 new");
    let remove = || fs::remove_dir_all(path("x")).unwrap();
    assert_eq!(after(&kit, target, remove), "0 ");
}

#[test]
fn same_file_in_a_replaced_directory_is_watched_anew() {
    let root = tree(&[("x/a", "one"), ("y/", "")]);
    let root = real(&root);
    let path = |name: &str| root.join(name);
    fs::hard_link(path("x/a"), path("y/a")).unwrap();
    let kit = serve(&root);
    let swap = || {
        fs::rename(path("x"), path("z")).unwrap();
        fs::rename(path("y"), path("x")).unwrap();
    };
    assert_eq!(after(&kit, "/x/a", swap), "200 one");
    assert!(
        !is_watched(&kit, "/x/a"),
        "the file in the replaced directory is not watched yet"
    );
    let variant = || write(&root, "x/a.gz", "zipped");
    assert_eq!(after(&kit, "/x/a", variant), "200 zipped");
}

#[test]
fn what_a_link_leads_to_is_not_watched() {
    let root = tree(&[("d/a", "one"), ("d/b", "b")]);
    let root = real(&root);
    symlink("d", root.join("l")).unwrap();
    symlink("a", root.join("d/l")).unwrap();
    symlink("nowhere", root.join("d/b.gz")).unwrap();
    let kit = serve(&root);
    for target in ["/l/a", "/d/l", "/d/b"] {
        assert!(stays_unwatched(&kit, target), "{target}");
    }
    write(&root, "d/a", "two");
    assert_eq!(get(&kit, "/l/a"), "200 two");
    assert_eq!(get(&kit, "/d/l"), "200 two");
    write(&root, "d/nowhere", "zipped");
    assert_eq!(get(&kit, "/d/b"), "200 zipped");
}

#[test]
fn more_events_than_are_kept_are_seen() {
    let root = tree(&[("d/a", "one"), ("d/b", "b"), ("d/t1", ""), ("d/t2", "")]);
    let root = real(&root);
    let mode = fs::metadata(root.join("d/t1")).unwrap().permissions();
    let kit = serve(&root);
    until_watched(&kit, "/d/b");
    let flood = || {
        for n in 0..20_000 {
            let name = if n % 2 == 0 { "d/t1" } else { "d/t2" };
            fs::set_permissions(root.join(name), mode.clone()).unwrap();
        }
        write(&root, "d/a", "two");
    };
    assert_eq!(after(&kit, "/d/a", flood), "200 two");
    for _ in 0..2000 {
        get(&kit, "/d/b");
    }
    until_watched(&kit, "/d/b");
    assert_eq!(
        after(&kit, "/d/b", || write(&root, "d/b", "new")),
        "200 new"
    );
}

#[test]
fn files_of_a_watched_directory_need_no_watches_of_their_own() {
    let names: Vec<_> = (0..2000).map(|n| format!("d/{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), "old")).collect();
    let root = tree(&files);
    let root = real(&root);
    let kit = serve(&root);
    until_watched(&kit, "/d/0");
    let targets: Vec<_> = names.iter().map(|name| format!("/{name}")).collect();
    for _ in 0..2 {
        for target in &targets {
            get(&kit, target);
        }
    }
    assert!(targets.iter().all(|target| is_watched(&kit, target)));
    write(&root, "d/1000", "new");
    assert_eq!(get(&kit, "/d/1000"), "200 new");
    assert_eq!(get(&kit, "/d/1001"), "200 old");
}

#[test]
fn changes_through_another_name_of_a_watched_file_are_seen() {
    let root = tree(&[("d/a", "one"), ("e/", "")]);
    let root = real(&root);
    fs::hard_link(root.join("d/a"), root.join("e/a")).unwrap();
    let kit = serve(&root);
    let there = || fs::write(root.join("e/a"), "two").unwrap();
    assert_eq!(after(&kit, "/d/a", there), "200 two");
}

#[test]
fn watches_are_limited_and_given_up_for_others() {
    let root = tree(&[]);
    let root = real(&root);
    let (mut watches, clock) = (Watches::default(), h2o_exchange::Clock::default());
    let mut now = clock.now();
    let mut first = None;
    let mut watch = |n: usize, now| {
        write(&root, &n.to_string(), "");
        let path = root.join(n.to_string());
        // A file with a second hard link needs a watch of its own.
        fs::hard_link(&path, root.join(format!("{n}.too"))).unwrap();
        let (_, identity) = inspect(fs::File::open(&path).unwrap()).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let stamps = [FileStamp::present(path, identity)];
        let watch = watches.after_check(WatchState::Earning(u8::MAX), &stamps, now);
        let first = *first.get_or_insert(watch);
        let is_kept = |watch| matches!(watch, WatchState::Kept { .. });
        // In the next turn of the event loop, the entry of the first file is checked for events.
        clock.begin_turn();
        let had_no_event = watches.has_no_event_since(first, now, &clock);
        (is_kept(watch), had_no_event)
    };
    assert_eq!(watch(0, now), (true, true));
    let mut kept = 1;
    // A second file is not watched at once: new watches are added one at a time, with a pause between them.
    assert!(!watch(1, now).0);
    for n in 2..1200 {
        now += Duration::from_millis(1);
        kept += usize::from(watch(n, now).0);
    }
    assert!((900..1025).contains(&kept), "{kept}");
    now += Duration::from_secs(61);
    assert_eq!(watch(1200, now), (true, false));
}
