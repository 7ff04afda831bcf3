//! `h2o compress`, and `file.send-compressed`, which serves the files that it makes.

use std::fs;
use std::os::unix::fs::MetadataExt;

use h2o_tests::{Folder, Output, Setup, binary, curl, run};

fn compress(arguments: &[&str]) -> Output {
    let arguments: Vec<_> = ["compress"].iter().chain(arguments).copied().collect();
    run(&binary().display().to_string(), &arguments)
}

/// A text that compresses well.
fn lines(count: usize) -> String {
    (0..count)
        .map(|number| format!("<li>item {number} of the list</li>\n"))
        .collect()
}

#[test]
fn clients_get_the_published_variants() {
    let setup = Setup::new(
        "listen: @PORT@\nfile.send-compressed: ON\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: @DIR@/www\n",
    )
    .file("www/list.html", lines(2000))
    .file("www/sub/list.txt", lines(10))
    .file("www/photo.png", lines(10))
    .file("www/tiny.txt", "x")
    .file("www/.git/config.txt", lines(10));
    let server = setup.start();
    let www = server.folder.name_of("www");
    let output = compress(&[&www]);
    assert_eq!(output.code, 0, "{output}");
    assert!(
        output
            .text()
            .starts_with("6 variants published, 0 up to date, 3 not smaller than the file; saved "),
        "{}",
        output.text()
    );
    assert_eq!(
        output.stderr, "",
        "without a terminal no progress bar is shown"
    );
    for name in ["photo.png", "tiny.txt", ".git/config.txt"] {
        for suffix in ["br", "zst", "gz"] {
            let variant = server.folder.path().join(format!("www/{name}.{suffix}"));
            assert!(!variant.exists(), "{}", variant.display());
        }
    }
    let url = server.url("/list.html");
    for (coding, decoder) in [("br", "brotli"), ("zstd", "zstd"), ("gzip", "gzip")] {
        let accept = format!("accept-encoding: {coding}");
        let response = curl(&["-H", &accept, &url]);
        assert_eq!(response.field("content-encoding"), Some(coding));
        let packed = server.folder.write("packed", &response.body);
        let input = format!("{decoder} -dc <{}", packed.display());
        let decoded = run("sh", &["-c", &input]);
        assert!(decoded.text() == lines(2000), "{coding}: {decoded}");
    }

    let again = compress(&[&www]);
    assert_eq!(
        again.text(),
        "0 variants published, 6 up to date, 3 not smaller than the file; saved 0 of 0 bytes (0 %)\n"
    );
}

#[test]
fn a_changed_file_gets_new_variants_and_each_has_its_mtime() {
    let folder = Folder::new();
    let page = folder.write("www/a.html", lines(100));
    let www = folder.name_of("www");
    assert_eq!(compress(&["--jobs=3", &www]).code, 0);
    let variant = folder.path().join("www/a.html.gz");
    let mtime = |path: &std::path::Path| {
        let found = fs::metadata(path).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    let first = fs::read(&variant).unwrap();
    assert_eq!(mtime(&variant), mtime(&page));

    folder.write("www/a.html", lines(50));
    let touched = run(
        "touch",
        &["-d", "2020-01-02 03:04:05.678", &page.display().to_string()],
    );
    assert_eq!(touched.code, 0);
    let output = compress(&["-q", &www]);
    assert_eq!((output.code, output.text()), (0, String::new()));
    assert_ne!(fs::read(&variant).unwrap(), first);
    assert_eq!(mtime(&variant), (1_577_934_245, 678_000_000));
}

#[test]
fn what_cannot_be_compressed_is_named() {
    let folder = Folder::new();
    folder.write("www/a.html", lines(100));
    let www = folder.name_of("www");
    let none = folder.name_of("none");
    let output = compress(&[&none, &www]);
    assert_eq!(output.code, 1);
    assert_eq!(
        output.stderr,
        format!("{none}: No such file or directory\n")
    );
    assert!(output.text().starts_with("3 variants published"));

    let cases = [
        (&[][..], "name a directory"),
        (&["-j", "0", "."], "`0` is not a number from 1 to 256"),
        (&["--level=3", "."], "unrecognized option '--level'"),
    ];
    for (arguments, want) in cases {
        let output = compress(arguments);
        assert_eq!(output.code, 78, "{arguments:?}");
        assert!(output.stderr.contains(want), "{}", output.stderr);
    }
}
