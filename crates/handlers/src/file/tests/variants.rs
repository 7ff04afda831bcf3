//! Tests of precompressed files, and of gzip files that are unpacked.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use h2o_http::{Known, Version};
use tempfile::TempDir;

use super::super::testing::{Answer, Kit, kit, kit_at};
use super::{set_modified, tree, write};

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn variants() -> TempDir {
    tree(&[
        ("all.css", "plain"),
        ("all.css.br", "br"),
        ("all.css.zst", "zst"),
        ("all.css.gz", "gz"),
        ("all.css.zstd", "zstd"),
        ("old.css", "plain"),
        ("old.css.zstd", "zstd"),
        ("only.css.gz", "gz"),
        ("dir.css", "plain"),
        ("dir.css.br/", ""),
        ("index.html", "plain"),
        ("index.html.br", "br"),
    ])
}

fn get(kit: &Kit, target: &str, codings: &str) -> Answer {
    kit.ask(target).field(Known::AcceptEncoding, codings).send()
}

#[test]
fn the_first_variant_in_server_order_is_sent() {
    let root = variants();
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: ON");
    let cases = [
        ("/all.css", "gzip, zstd, br", "br br"),
        ("/all.css", "gzip, zstd", "zstd zst"),
        ("/all.css", "gzip", "gzip gz"),
        ("/all.css", "gzip;q=1, br;q=0.5", "- plain"),
        ("/all.css", "", "- plain"),
        ("/old.css", "zstd", "zstd zstd"),
        ("/only.css", "gzip", "gzip gz"),
        ("/dir.css", "br", "- plain"),
        ("/", "br", "br br"),
        ("/", "gzip", "- plain"),
    ];
    for (target, codings, want) in cases {
        let answer = get(&kit, target, codings);
        let coding = answer.field("content-encoding").unwrap_or("-");
        assert_eq!(
            format!("{coding} {}", answer.text()),
            want,
            "{target} {codings}"
        );
        assert_eq!(answer.field("vary"), Some("accept-encoding"));
        let kind = if target == "/" {
            "text/html"
        } else {
            "text/css"
        };
        assert_eq!(answer.field("content-type"), Some(kind));
    }
    assert_eq!(get(&kit, "/only.css", "br").status, 0);
}

#[test]
fn the_variants_size_and_time_go_into_the_fields() {
    let root = variants();
    set_modified(&root.path().join("all.css.gz"), 1_704_164_645);
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: ON");
    let answer = get(&kit, "/all.css", "gzip");
    assert_eq!(
        answer.fields,
        [
            "content-type: text/css",
            "last-modified: Tue, 02 Jan 2024 03:04:05 GMT",
            "etag: \"65937d25-2\"",
            "vary: accept-encoding",
            "content-encoding: gzip",
            "accept-ranges: bytes",
        ]
    );
    let ask = kit.ask("/all.css").field(Known::AcceptEncoding, "gzip");
    let part = ask.field(Known::Range, "bytes=1-").send();
    assert_eq!(part.brief(), "206 z");
    assert_eq!(part.field("content-range"), Some("bytes 1-1/2"));
    assert_eq!(part.field("content-encoding"), Some("gzip"));
}

#[test]
fn variants_are_for_http_1_1_and_only_if_asked_for() {
    let root = variants();
    let on = kit(root.path(), "file.dir: ROOT\nfile.send-gzip: ON");
    let ask = on.ask("/all.css").field(Known::AcceptEncoding, "gzip");
    let old = ask.version(Version::Http10).send();
    assert_eq!(old.text(), "plain");
    assert_eq!(old.field("vary"), Some("accept-encoding"));
    let off = kit(root.path(), "file.dir: ROOT");
    let answer = get(&off, "/all.css", "gzip");
    assert_eq!(
        (answer.text().as_str(), answer.field("vary")),
        ("plain", None)
    );
}

#[test]
fn single_files_have_variants_too() {
    let root = variants();
    let config = "file.file: ROOT/all.css\nfile.send-compressed: ON";
    let kit = kit(root.path(), config);
    assert_eq!(get(&kit, "/x", "br").text(), "br");
    assert_eq!(get(&kit, "/y", "gzip").text(), "gz");
    assert_eq!(get(&kit, "/y", "").text(), "plain");
}

#[test]
fn gzip_file_is_unpacked_when_there_is_nothing_else() {
    let root = variants();
    let content: Vec<u8> = (0..300_000u32)
        .flat_map(|n| (n / 7).to_le_bytes())
        .collect();
    write(root.path(), "packed.txt.gz", gzip(&content));
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: gunzip");
    for pull in [1000, 1_000_000] {
        let answer = kit.ask("/packed.txt").pull(pull).send();
        assert_eq!(answer.body, content);
        assert_eq!((answer.length, answer.cut), (None, false));
        assert_eq!(answer.field("content-encoding"), None);
        assert_eq!(answer.field("accept-ranges"), None);
        assert_eq!(answer.field("content-type"), Some("text/plain"));
        assert_eq!(answer.field("vary"), Some("accept-encoding"));
        assert!(answer.hint.unwrap().compressible);
    }
    let accepted = get(&kit, "/packed.txt", "gzip");
    assert_eq!(accepted.field("content-encoding"), Some("gzip"));
    assert_eq!(accepted.body, gzip(&content));
    let ask = kit.ask("/packed.txt").field(Known::Range, "bytes=0-5");
    assert_eq!(
        ask.send().status,
        200,
        "a range of an unpacked file is ignored, as it would be one of the packed file"
    );
    let old = kit.ask("/packed.txt").version(Version::Http10).send();
    assert_eq!(old.status, 0);
    assert_eq!(get(&kit, "/all.css", "").text(), "plain");
}

#[test]
fn gzip_members_are_joined_and_damage_is_noticed() {
    let mut two = gzip(b"first ");
    two.extend(gzip(b"second"));
    let mut padded = gzip(b"content");
    padded.extend([0; 100]);
    let whole = gzip(&[b'x'; 1000]);
    let mut wrong_sum = whole.clone();
    wrong_sum[whole.len() - 8] ^= 1;
    let root = tree(&[]);
    let files: [(&str, &[u8], &str, bool); 8] = [
        ("two", &two, "first second", false),
        ("padded", &padded, "content", false),
        ("one", &whole, &"x".repeat(1000), false),
        ("short", &whole[..whole.len() - 1], &"x".repeat(1000), true),
        ("stub", &whole[..12], "", true),
        ("sum", &wrong_sum, "", true),
        ("text", b"no gzip file at all", "", true),
        ("nothing", b"", "", true),
    ];
    for (name, packed, ..) in files {
        write(root.path(), &format!("{name}.gz"), packed);
    }
    let kit = kit(root.path(), "file.dir: ROOT\nfile.send-compressed: gunzip");
    for (name, _, want, cut) in files {
        let answer = kit.get(&format!("/{name}"));
        assert_eq!(answer.cut, cut, "{name}");
        if !want.is_empty() {
            assert_eq!(answer.text(), want, "{name}");
        }
    }
}

#[test]
fn inner_level_can_switch_unpacking_off() {
    let root = tree(&[]);
    write(root.path(), "a.gz", gzip(b"A"));
    let global = "file.send-compressed: gunzip";
    for (inner, status) in [("OFF", 0), ("ON", 0), ("gunzip", 200)] {
        let config = format!("file.dir: ROOT\nfile.send-compressed: {inner}");
        let kit = kit_at(root.path(), "/", global, &config);
        assert_eq!(kit.get("/a").status, status, "{inner}");
    }
    assert_eq!(
        kit_at(root.path(), "/", global, "file.dir: ROOT")
            .get("/a")
            .status,
        200
    );
}
