//! Tests of the file handler's responses: fields, conditions, methods and ranges.

use h2o_exchange::{Counter, MimeHint};
use h2o_http::{Known, Method, Version};
use tempfile::TempDir;

use super::super::testing::{Answer, Kit, cool_the_disk, kit};
use super::{set_modified, tree, write};

/// The modification time of the test's files: 2024-01-02 03:04:05.
const MODIFIED: u64 = 1_704_164_645;
const DATE: &str = "Tue, 02 Jan 2024 03:04:05 GMT";

fn letters() -> TempDir {
    let root = tree(&[("a.txt", "abcdefghijklmnopqrstuvw"), ("empty.txt", "")]);
    set_modified(&root.path().join("a.txt"), MODIFIED);
    set_modified(&root.path().join("empty.txt"), MODIFIED);
    root
}

fn ranged(kit: &Kit, range: &str) -> Answer {
    kit.ask("/a.txt").field(Known::Range, range).send()
}

#[test]
fn fields_of_a_file() {
    let root = letters();
    let answer = kit(root.path(), "file.dir: ROOT").get("/a.txt");
    assert_eq!(
        answer.fields,
        [
            "content-type: text/plain",
            "last-modified: Tue, 02 Jan 2024 03:04:05 GMT",
            "etag: \"65937d25-17\"",
            "accept-ranges: bytes",
        ]
    );
    assert_eq!((answer.reason.as_str(), answer.dates), ("OK", 1));
    assert_eq!(answer.length, Some(23));
    assert_eq!(
        answer.hint,
        Some(MimeHint {
            compressible: true,
            highest_priority: false
        })
    );
}

#[test]
fn etag_can_be_left_out_and_still_be_asked_for() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.etag: OFF");
    assert_eq!(kit.get("/a.txt").field("etag"), None);
    let answer = kit
        .ask("/a.txt")
        .field(Known::IfNoneMatch, "\"65937d25-17\"")
        .send();
    assert_eq!((answer.status, answer.fields.len()), (304, 0));
}

#[test]
fn unchanged_file_is_not_sent_again() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: ON");
    let cases = [
        (Known::IfNoneMatch, "\"65937d25-17\"", 304),
        (Known::IfNoneMatch, "\"x\", W/\"65937d25-17\"", 304),
        (Known::IfNoneMatch, "*", 304),
        (Known::IfNoneMatch, "\"x\"", 200),
        (Known::IfModifiedSince, DATE, 304),
        (Known::IfModifiedSince, "Tue, 02 Jan 2024 03:04:04 GMT", 200),
        (Known::IfMatch, "\"x\"", 200),
        (
            Known::IfUnmodifiedSince,
            "Tue, 02 Jan 2020 03:04:04 GMT",
            200,
        ),
    ];
    for (name, value, want) in cases {
        for method in [Method::Get, Method::Head] {
            let answer = kit.ask("/a.txt").method(method).field(name, value).send();
            assert_eq!(answer.status, want, "{value}");
            if want == 304 {
                let fields = ["etag: \"65937d25-17\"", "vary: accept-encoding"];
                assert_eq!(answer.fields, fields);
                assert_eq!((answer.length, answer.body.len()), (None, 0));
                assert_eq!(answer.dates, 1);
            }
        }
    }
}

#[test]
fn other_methods_than_get_and_head_are_refused_whatever_the_conditions() {
    let root = tree(&[("a.txt", "A")]);
    let kit = kit(root.path(), "file.dir: ROOT");
    let methods = [Method::Post, Method::Options, Method::Other("get".into())];
    for method in methods {
        let ask = kit.ask("/a.txt").method(method.clone());
        let answer = ask.field(Known::IfNoneMatch, "*").send();
        assert_eq!(answer.brief(), "405 method not allowed");
        assert_eq!(answer.reason, "Method Not Allowed");
        assert_eq!(answer.field("allow"), Some("GET, HEAD"));
        assert_eq!(kit.ask("/none").method(method).send().brief(), "0 ");
    }
    assert_eq!(kit.worker.counters.get(Counter::Status405), 3);
}

#[test]
fn head_has_the_fields_of_get() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    for range in ["", "bytes=1-2", "bytes=1-2,4-5"] {
        let get = kit.ask("/a.txt").field(Known::Range, range);
        let head = kit.ask("/a.txt").field(Known::Range, range);
        let (get, head) = (get.send(), head.method(Method::Head).send());
        assert_eq!((head.status, head.length), (get.status, get.length));
        assert_eq!(head.fields.len(), get.fields.len());
    }
}

#[test]
fn one_range() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    let answer = ranged(&kit, "bytes=2-4");
    assert_eq!(answer.brief(), "206 cde");
    assert_eq!(answer.reason, "Partial Content");
    assert_eq!(
        answer.fields,
        [
            "content-type: text/plain",
            "last-modified: Tue, 02 Jan 2024 03:04:05 GMT",
            "etag: \"65937d25-17\"",
            "content-range: bytes 2-4/23",
        ]
    );
    assert_eq!(answer.length, Some(3));
    assert_eq!(ranged(&kit, "bytes=-1").brief(), "206 w");
    assert_eq!(ranged(&kit, "bytes=1-2,3-4").brief(), "206 bcde");
}

#[test]
fn ranges_that_lead_nowhere_or_make_no_sense_get_416() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    for range in ["bytes=23-", "bytes=", "lines=1-2", "bytes=2-1"] {
        let answer = ranged(&kit, range);
        assert_eq!(answer.brief(), "416 requested range not satisfiable");
        assert_eq!(answer.reason, "Request Range Not Satisfiable");
        assert_eq!(
            answer.fields,
            [
                "content-type: text/plain; charset=utf-8",
                "content-range: bytes */23"
            ]
        );
        assert_eq!(answer.dates, 1);
    }
    let empty = kit.ask("/empty.txt").field(Known::Range, "bytes=0-").send();
    assert_eq!(empty.field("content-range"), Some("bytes */0"));
    assert_eq!(kit.get("/empty.txt").length, Some(0));
}

#[test]
fn several_ranges_come_in_parts_of_exact_length() {
    let root = letters();
    write(root.path(), "big.txt", vec![b'x'; 100_000]);
    let kit = kit(root.path(), "file.dir: ROOT");
    for pull in [1, 7, 10_000] {
        let ask = kit.ask("/a.txt").field(Known::Range, "bytes=20-,0-1,5-6");
        let answer = ask.pull(pull).send();
        let content_type = answer.field("content-type").unwrap();
        let boundary = content_type
            .strip_prefix("multipart/byteranges; boundary=")
            .unwrap();
        assert_eq!(boundary.len(), 20);
        assert!(boundary.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let part = |range: &str, data: &str| {
            format!(
                "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes {range}/23\r\n\r\n{data}\r\n"
            )
        };
        let want = part("20-22", "uvw") + &part("0-1", "ab") + &part("5-6", "fg");
        assert_eq!(answer.text(), want + &format!("--{boundary}--\r\n"));
        assert_eq!(answer.length, Some(answer.body.len() as u64));
        assert_eq!(answer.field("content-range"), None);
    }
    let ask = kit.ask("/big.txt").field(Known::Range, "bytes=0-70000,-5");
    let answer = ask.send();
    assert_eq!(answer.length, Some(answer.body.len() as u64));
    // The random boundary may contain the letter that is counted.
    let boundary = answer
        .field("content-type")
        .unwrap()
        .split('=')
        .next_back()
        .unwrap();
    let boundary_crosses = boundary.bytes().filter(|&byte| byte == b'x').count();
    let crosses = answer.body.iter().filter(|&&byte| byte == b'x').count();
    assert_eq!(crosses, 70_006 + 2 + 3 * boundary_crosses);
}

#[test]
fn too_many_ranges_get_the_whole_file() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    let range = |count| format!("bytes={}", vec!["0-0"; count].join(","));
    assert_eq!(ranged(&kit, &range(64)).brief(), "206 a");
    assert_eq!(ranged(&kit, &range(65)).status, 200);
}

#[test]
fn if_range_decides_whether_the_range_holds() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    for (value, want) in [
        ("\"65937d25-17\"", 206),
        ("W/\"65937d25-17\"", 200),
        ("\"x\"", 200),
        (DATE, 206),
        ("Tue, 02 Jan 2024 03:04:04 GMT", 200),
    ] {
        let ask = kit.ask("/a.txt").field(Known::Range, "bytes=0-0");
        let answer = ask.field(Known::IfRange, value).send();
        assert_eq!(answer.status, want, "{value}");
    }
    let other = kit.ask("/a.txt").field(Known::IfRange, "\"x\"").send();
    assert_eq!(
        other.status, 200,
        "a response to If-Range with another etag is the whole file"
    );
}

#[test]
fn large_files_are_read_as_they_are_sent() {
    let root = tree(&[]);
    let content: Vec<u8> = (0..200_000u32).map(|n| n.to_le_bytes()[0]).collect();
    write(root.path(), "big.bin", &content);
    write(root.path(), "limit", &content[..64 * 1024]);
    write(root.path(), "beyond", &content[..64 * 1024 + 1]);
    let kit = kit(root.path(), "file.dir: ROOT");
    for _ in 0..2 {
        assert_eq!(kit.get("/big.bin").body, content);
        assert_eq!(kit.get("/limit").body, content[..65536]);
        assert_eq!(kit.get("/beyond").body, content[..65537]);
        let part = kit.ask("/big.bin").field(Known::Range, "bytes=65000-70000");
        assert_eq!(part.send().body, content[65_000..=70_000]);
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_cuts_the_response() {
    let root = tree(&[]);
    write(root.path(), "big", vec![b'x'; 100_000]);
    let kit = kit(root.path(), "file.dir: ROOT");
    let exchange = kit.exchange("/big");
    let outcome = kit.handler().on_request(&mut exchange.borrow_mut());
    let h2o_exchange::Outcome::Done(response) = outcome else {
        panic!("the handler answers at once for a file in memory")
    };
    write(root.path(), "big", vec![b'x'; 50_000]);
    assert_eq!(response.length, Some(100_000));
    let mut source = response.body.into_source();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut sent = 0;
    let error = loop {
        match source.poll_next(&mut context, 30_000) {
            std::task::Poll::Ready(Some(Ok(piece))) => sent += piece.len(),
            std::task::Poll::Ready(Some(Err(error))) => break error,
            _ => panic!("reading a file that became shorter must fail"),
        }
    };
    assert_eq!(sent, 50_000);
    assert!(error.to_string().contains("shorter"));
}

#[test]
fn types_follow_the_map_of_the_path() {
    let root = tree(&[("a.x", ""), ("b.CSS", ""), ("c", ""), ("d.html", "")]);
    let config = "file.dir: ROOT\nfile.mime.addtypes: {a/x; v=1: .x}\nfile.mime.setdefaulttype: Text/Y\n\
                  file.mime.removetypes: [.html]";
    let kit = kit(root.path(), config);
    for (target, want) in [
        ("/a.x", "a/x; v=1"),
        ("/b.CSS", "text/css"),
        ("/c", "text/y"),
        ("/d.html", "text/y"),
    ] {
        assert_eq!(
            kit.get(target).field("content-type"),
            Some(want),
            "{target}"
        );
    }
    assert!(kit.get("/b.CSS").hint.unwrap().highest_priority);
    assert!(!kit.get("/a.x").hint.unwrap().compressible);
    cool_the_disk();
    write(root.path(), "e.css", "");
    let late = kit.get("/e.css");
    assert!(late.waited && late.hint.unwrap().highest_priority);
}

#[test]
fn old_clients_get_the_same_files() {
    let root = letters();
    let kit = kit(root.path(), "file.dir: ROOT");
    let answer = kit.ask("/a.txt").version(Version::Http10).send();
    assert_eq!((answer.status, answer.length), (200, Some(23)));
}

#[test]
fn files_older_than_the_epoch_are_served() {
    let root = tree(&[("old", "O")]);
    let time = std::time::UNIX_EPOCH - std::time::Duration::from_secs(1);
    let file = std::fs::File::options()
        .write(true)
        .open(root.path().join("old"));
    file.unwrap().set_modified(time).unwrap();
    let answer = kit(root.path(), "file.dir: ROOT").get("/old");
    assert_eq!(answer.field("etag"), Some("\"ffffffff-1\""));
    assert_eq!(
        answer.field("last-modified"),
        Some("Thu, 01 Jan 1970 00:00:00 GMT")
    );
}
