//! Urgent resources come first, even when a slow link is full of less urgent ones.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run, run_with_input};

/// Number of images: as many as a connection may have streams, less one for the style sheet.
const IMAGES: usize = 99;

/// Bytes of an image. Six images take one second on the link.
const IMAGE: usize = 200_000;

fn start(settings: &str) -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let config = format!(
        "
{settings}
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: {{ certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: @DIR@/www }} }} }} }}
"
    );
    let setup = Setup::in_folder(folder, &config).file("www/style.css", css());
    (0..IMAGES)
        .fold(setup, |setup, index| {
            setup.file(&format!("www/image-{index}.png"), image(index))
        })
        .start()
}

fn css() -> String {
    (0..1000)
        .map(|n| format!(".n{n:03} {{ top: {n:03}px }}\n"))
        .collect()
}

fn image(index: usize) -> String {
    format!("{index:>9} ").repeat(IMAGE / 10)
}

fn sha256(content: &str) -> String {
    let sum = run_with_input("sha256sum", &[], content).text();
    sum.split(' ').next().unwrap_or_default().to_owned()
}

/// Bytes of images that came between the request for the style sheet and the end of its response. All responses must be complete.
fn images_before_css(server: &Server, way: &str) -> usize {
    let port = server.port_of(if way == "tls" { "TLS_PORT" } else { "PORT" });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/slow_link.py");
    let args = [script, way, &port.to_string(), &IMAGES.to_string()];
    let output = run("/usr/bin/python3", &args);
    assert_eq!(output.code, 0, "{output}");
    let line = output.text();
    let images: String = (0..IMAGES).map(image).collect();
    for want in [
        format!("\"css\": \"{}\"", sha256(&css())),
        format!("\"images\": \"{}\"", sha256(&images)),
        "\"css_type\": \"text/css".to_owned(),
    ] {
        assert!(line.contains(&want), "{line} does not have {want}");
    }
    let number = |key: &str| -> Option<usize> {
        let (_, rest) = line.split_once(&format!("\"{key}\": "))?;
        rest.split([',', '}']).next()?.parse().ok()
    };
    let begun = number("begun").unwrap_or_else(|| panic!("{line}"));
    assert!(begun > 1, "images come side by side: {line}");
    number("images_before_css").unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn a_style_sheet_overtakes_images() {
    let server = start("");
    for way in ["clear", "tls"] {
        let bytes = images_before_css(&server, way);
        eprintln!("{way}: {bytes} bytes of images before the style sheet");
        // What the kernel had taken before the request comes first: some frames of 16 KB. The link carries 16 KB more in each 13 ms by which
        // a busy machine delays the request.
        assert!(bytes < 200_000, "{way}: {bytes}");
    }
}

#[test]
fn a_style_sheet_takes_its_turn_where_that_is_configured() {
    let server = start("http2-reprioritize-blocking-assets: OFF");
    for way in ["clear", "tls"] {
        let bytes = images_before_css(&server, way);
        eprintln!("{way}: {bytes} bytes of images before the style sheet");
        // Without priorities each image sends up to 16 KB before each of the two frames of the style sheet.
        assert!(bytes > 600_000, "{way}: {bytes}");
    }
}
