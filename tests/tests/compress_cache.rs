//! `compress.cache`: the server keeps well compressed copies of files, made in the background, for later requests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use h2o_tests::{Folder, Random, Response, Server, Setup, eventually, run};

/// A text of `len` bytes that differs for each `seed`. Some of its words are more frequent than others.
fn text(seed: u64, len: usize) -> String {
    let mut random = Random::new(seed);
    let mut word = || -> String {
        let len = 2 + random.below(9);
        let letters = (0..len).map(|_| char::from(random.pick(b"etaoinshrdlucmfwypvbgkjqxz")));
        letters.collect()
    };
    let words: Vec<String> = (0..1000).map(|_| word()).collect();
    let mut text = String::with_capacity(len + 20);
    while text.len() < len {
        let most = 1 + random.below(1000);
        text.push_str(&words[random.below(most)]);
        text.push(' ');
    }
    text.truncate(len);
    text
}

fn config(settings: &str) -> String {
    format!(
        "
listen: @PORT@
{settings}
compress: ON
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www }}
      /plain: {{ file.dir: @DIR@/www, compress: OFF }}
"
    )
}

const CACHE: &str = "compress.cache: { directory: @DIR@/cache }";

/// Requests a file with this `accept-encoding`. Returns the head of the response and its decoded content.
fn get(server: &Server, version: &str, coding: &str, path: &str) -> (Response, Vec<u8>) {
    let packed = server.folder.name_of("packed");
    let head = server.folder.name_of("head");
    let accept = format!("accept-encoding: {coding}");
    let url = server.url(path);
    let args = [
        "-s", version, "-H", &accept, "-D", &head, "-o", &packed, &url,
    ];
    assert_eq!(run("curl", &args).code, 0, "{version} {path}");
    let head = fs::read(head).expect("curl has written the file");
    let response = Response::parse_head(&head);
    let decoder = match response.field("content-encoding") {
        Some("br") => "brotli",
        Some("zstd") => "zstd",
        Some("gzip") => "gzip",
        _ => {
            return (
                response,
                fs::read(packed).expect("curl has written the file"),
            );
        }
    };
    let content = run("sh", &["-c", &format!("{decoder} -dc <{packed}")]).success();
    (response, content)
}

/// Whether a response is a compressed copy from the cache (it has a length), and was not compressed while it was sent.
fn is_kept(response: &Response) -> bool {
    response.field("content-encoding").is_some() && response.field("content-length").is_some()
}

/// Requests the file until the response is a compressed copy from the cache.
fn wait_for_kept(server: &Server, version: &str, coding: &str, path: &str) -> (Response, Vec<u8>) {
    eventually(&format!("{path} kept for {coding}"), || {
        let got = get(server, version, coding, path);
        is_kept(&got.0).then_some(got)
    })
}

/// The compressed copies in the cache directory.
fn forms(folder: &Folder) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.at("cache")).expect("the cache directory exists");
    let paths = entries.map(|entry| entry.expect("an entry of the directory can be read").path());
    paths.collect()
}

#[test]
fn later_clients_get_what_was_compressed_well_meanwhile() {
    let content = text(1, 200_000);
    let server = Setup::new(&config(CACHE))
        .file("www/a.txt", &content)
        .file("www/b.png", &content)
        .file("www/short.txt", "short")
        .start();
    for (coding, version) in [
        ("br", "--http1.1"),
        ("zstd", "--http2-prior-knowledge"),
        ("gzip", "--http1.1"),
    ] {
        let (first, got) = get(&server, version, coding, "/a.txt");
        assert!(got == content.as_bytes(), "{coding}");
        assert!(!is_kept(&first), "{coding}");
        let weak = first
            .field("etag")
            .expect("the response has the field")
            .to_owned();
        let (kept, got) = wait_for_kept(&server, version, coding, "/a.txt");
        assert!(got == content.as_bytes(), "{coding}");
        let etag = kept.field("etag").expect("the response has the field");
        let plain = weak.trim_start_matches("W/\"").trim_end_matches('"');
        assert_eq!(etag, format!("\"{plain}-{coding}\""));
        assert_eq!(kept.field("vary"), Some("accept-encoding"));
        assert_eq!(kept.field("accept-ranges"), Some("bytes"));
        assert_eq!(kept.field("content-type"), Some("text/plain"));
        assert_eq!(kept.field("last-modified"), first.field("last-modified"));
        // Ranges refer to the bytes of the compressed copy, and a client that names its entity-tag gets 304.
        let accept = format!("accept-encoding: {coding}");
        let url = server.url("/a.txt");
        let length: usize = kept
            .field("content-length")
            .expect("the response has the field")
            .parse()
            .expect("content-length is a number");
        let part = h2o_tests::curl(&["-H", &accept, "-r", "10-", &url]);
        assert_eq!(
            (part.code(), part.body.len()),
            (206, length - 10),
            "{coding}"
        );
        let condition = format!("if-none-match: {etag}");
        let same = h2o_tests::curl(&["-H", &accept, "-H", &condition, &url]);
        assert_eq!(same.code(), 304, "{coding}");
        let head = h2o_tests::curl(&["-I", "-H", &accept, &url]);
        assert_eq!(head.field("etag"), Some(etag), "{coding}");
    }
    // Of the codings that the client accepts, the server uses the one that comes first in its own order.
    let (both, _) = get(&server, "--http1.1", "gzip, zstd, br", "/a.txt");
    assert_eq!(both.field("content-encoding"), Some("br"));
    for (coding, path) in [
        ("br", "/plain/a.txt"),
        ("", "/a.txt"),
        ("br", "/b.png"),
        ("br", "/short.txt"),
    ] {
        let (response, _) = get(&server, "--http1.1", coding, path);
        assert_eq!(response.field("content-encoding"), None, "{path}");
    }
    assert_eq!(forms(&server.folder).len(), 3);
}

/// The copies in the cache are shorter than what the server makes with its fast level while it sends.
#[test]
fn kept_forms_are_shorter_than_those_that_are_made_while_they_are_sent() {
    let content = text(2, 400_000);
    let server = Setup::new(&config(CACHE))
        .file("www/a.txt", &content)
        .start();
    for coding in ["br", "zstd", "gzip"] {
        let accept = format!("accept-encoding: {coding}");
        let url = server.url("/a.txt");
        let fast = h2o_tests::curl(&["-H", &accept, &url]).body.len();
        wait_for_kept(&server, "--http1.1", coding, "/a.txt");
        let kept = h2o_tests::curl(&["-H", &accept, &url]).body.len();
        assert!(kept < fast, "{coding}: {kept} of {fast}");
    }
}

#[test]
fn a_file_that_changes_is_never_sent_as_it_was() {
    let server = Setup::new(&config(CACHE))
        .file("www/a.txt", text(3, 50_000))
        .start();
    for seed in 4..7 {
        wait_for_kept(&server, "--http1.1", "br", "/a.txt");
        let content = text(seed, 50_000);
        server.folder.write("www/a.txt", &content);
        let (_, got) = get(&server, "--http1.1", "br", "/a.txt");
        assert!(got == content.as_bytes(), "{seed}");
    }
}

#[test]
fn forms_outlive_the_server_and_reloads() {
    let content = text(8, 50_000);
    let with_size = |size: u32| {
        config(&format!(
            "num-threads: 2\ncompress.cache: {{ directory: @DIR@/cache, size: {size} }}"
        ))
    };
    let server = Setup::new(&with_size(2_000_000))
        .file("www/a.txt", &content)
        .start();
    wait_for_kept(&server, "--http1.1", "br", "/a.txt");
    let folder = server.stop();
    let mut server = Setup::in_folder(folder, &with_size(2_000_000)).start();
    let (first, got) = get(&server, "--http1.1", "br", "/a.txt");
    assert!(is_kept(&first) && got == content.as_bytes());
    // The reload changes `size`, so the server starts a new thread that compresses.
    server.write_config(&with_size(3_000_000));
    server.hup("reloaded the configuration");
    let (again, _) = get(&server, "--http1.1", "br", "/a.txt");
    assert!(is_kept(&again));
    wait_for_kept(&server, "--http1.1", "gzip", "/a.txt");
    server.write_config(&config("num-threads: 2"));
    server.hup("reloaded the configuration");
    let (without, got) = get(&server, "--http1.1", "br", "/a.txt");
    assert!(!is_kept(&without) && got == content.as_bytes());
    server.write_config(&with_size(3_000_000));
    server.hup("reloaded the configuration");
    let (back, _) = get(&server, "--http1.1", "br", "/a.txt");
    assert!(is_kept(&back));
}

#[test]
fn two_servers_can_share_the_directory() {
    let content = text(9, 300_000);
    let first = Setup::new(&config(CACHE))
        .file("www/a.txt", &content)
        .start();
    let shared = format!(
        "compress.cache: {{ directory: {} }}",
        first.folder.name_of("cache")
    );
    let text = config(&shared).replace("@DIR@/www", &first.folder.name_of("www"));
    let second = Setup::new(&text).start();
    for _ in 0..3 {
        for server in [&first, &second] {
            let (_, got) = get(server, "--http1.1", "br", "/a.txt");
            assert!(got == content.as_bytes());
        }
    }
    for server in [&first, &second] {
        let (_, got) = wait_for_kept(server, "--http1.1", "br", "/a.txt");
        assert!(got == content.as_bytes());
    }
    assert_eq!(forms(&first.folder).len(), 1);
}

#[test]
fn forms_that_were_not_used_make_room_for_others() {
    let mut setup = Setup::new(&config(
        "compress.cache: { directory: @DIR@/cache, size: 1048576 }",
    ));
    for number in 0..12 {
        setup = setup.file(&format!("www/{number}.txt"), text(20 + number, 400_000));
    }
    let server = setup.start();
    for number in 0..12 {
        wait_for_kept(&server, "--http1.1", "gzip", &format!("/{number}.txt"));
    }
    let total = |folder: &Folder| -> u64 {
        let sizes = forms(folder)
            .into_iter()
            .filter_map(|path| fs::metadata(path).ok());
        sizes.map(|found| found.len()).sum()
    };
    // The server removes old copies only after it has written a new one, so the test waits.
    eventually("the copies to take no more than `size`", || {
        (total(&server.folder) <= 1_048_576).then_some(())
    });
    let (_, got) = get(&server, "--http1.1", "gzip", "/0.txt");
    assert!(got == text(20, 400_000).as_bytes());
}

#[test]
fn what_cannot_be_kept_is_compressed_while_it_is_sent() {
    let content = text(40, 5_000);
    let server = Setup::new(&config(CACHE))
        .file("www/a.txt", &content)
        .start();
    fs::remove_dir_all(server.folder.at("cache")).expect("the test owns the directory");
    let message = "compress.cache: compressed forms cannot be written to ";
    eventually(message, || {
        let (response, got) = get(&server, "--http1.1", "br", "/a.txt");
        assert!(!is_kept(&response) && got == content.as_bytes());
        server.messages().contains(message).then_some(())
    });
}

#[test]
fn a_full_disk_keeps_nothing_and_breaks_no_response() {
    let content = text(41, 900_000);
    // A limit on the size of files stands for a full disk: writing beyond it fails in the middle of a compressed copy, which takes more.
    let server = Setup::new(&config(CACHE))
        .file("www/a.txt", &content)
        .file("www/b.txt", text(42, 40_000))
        .launched_by(&["sh", "-c", "trap '' XFSZ; ulimit -f 100; exec $0 $*"])
        .start();
    let message = "compress.cache: compressed forms cannot be written to ";
    eventually(message, || {
        let (response, got) = get(&server, "--http1.1", "br", "/a.txt");
        assert!(!is_kept(&response) && got == content.as_bytes());
        server.messages().contains(message).then_some(())
    });
    assert_eq!(forms(&server.folder), Vec::<PathBuf>::new());
    // After the failure the server makes no copies for a minute, not even of files for which there is space, but it sends the files.
    for coding in ["br", "zstd", "gzip"] {
        for (path, content) in [("/a.txt", &content), ("/b.txt", &text(42, 40_000))] {
            let (response, got) = get(&server, "--http2-prior-knowledge", coding, path);
            assert!(!is_kept(&response) && got == content.as_bytes());
        }
    }
    assert_eq!(forms(&server.folder), Vec::<PathBuf>::new());
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let folder = Folder::new();
    let path = folder.make_dir("cache");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))
        .expect("the test owns the directory");
    let refused = Setup::in_folder(folder, &config(CACHE)).try_start();
    let refused = refused.expect_err("the server must refuse a directory that others can write to");
    assert!(
        refused
            .stderr
            .contains("use a directory of its own with mode 0700"),
        "{}",
        refused.stderr
    );
    for (value, want) in [
        ("ON", "value must be a mapping or `OFF`"),
        (
            "{ size: 10000000 }",
            "cannot find mandatory attribute: directory",
        ),
        (
            "{ directory: '' }",
            "the path of the directory cannot be empty",
        ),
        (
            "{ directory: /d, size: 1000 }",
            "argument must be >= 1048576",
        ),
    ] {
        let refused = Setup::new(&config(&format!("compress.cache: {value}"))).try_start();
        let refused = refused.expect_err(value);
        assert!(refused.stderr.contains(want), "{value}: {}", refused.stderr);
    }
}
