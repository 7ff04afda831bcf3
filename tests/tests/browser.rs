//! A real browser opens the example site, a directory listing and a page of thousands of images.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, browse, browse_patiently, eventually, run};

/// Starts a server with a configuration like that of the example site, on ports and paths of the test.
fn start() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let site = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/site");
    // The user that the server changes to may not be allowed to read the source tree, so the site is copied.
    let _ = run("cp", &["-r", site, &folder.name_of("site")]);
    Setup::in_folder(
        folder,
        "
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }
hosts:
  default:
    paths:
      /: { file.dir: @DIR@/site, file.dirlisting: ON, file.send-compressed: ON }
access-log: @DIR@/access-log
",
    )
    .start()
}

#[test]
fn a_browser_shows_the_example_site_and_a_listing() {
    let server = start();
    let page = browse(&server.folder, &server.url("/")).text();
    assert!(page.contains("<h1"), "{page}");
    let tls = format!("https://localhost:{}/docs/", server.port_of("TLS_PORT"));
    let page = browse(&server.folder, &tls).text();
    assert!(page.contains("<h1"), "{page}");
    let listing = browse(&server.folder, &server.url("/downloads/")).text();
    for entry in ["README.txt", "numbers.csv", "a &amp; b &lt;c&gt;.txt"] {
        assert!(listing.contains(entry), "{entry} is not in {listing}");
    }
    // The browser has also fetched the styles, scripts and pictures of the pages.
    let log = server.read_until("access-log", "/downloads/");
    for kind in [".css", ".js", ".svg"] {
        let mut lines = log.lines().filter(|line| line.contains(kind));
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("no request for {kind} in the log {log}"));
        assert!(line.contains("\" 200 "), "{line}");
    }
}

/// A page that opens the example site in a frame of a phone's size. Its title lists what does not fit.
const PHONE: &str = "<!DOCTYPE html><title>wait</title><body><script>
const frame = document.createElement('iframe');
Object.assign(frame, { width: 390, height: 844, src: '/' });
frame.onload = () => {
  const page = frame.contentDocument, missing = [];
  const width = frame.contentWindow.innerWidth, height = frame.contentWindow.innerHeight;
  for (const item of page.querySelectorAll('nav a')) {
    const place = item.getBoundingClientRect();
    if (place.left < 0 || place.right > width) missing.push(item.textContent);
  }
  if (page.querySelector('[data-panel]').getBoundingClientRect().bottom > height) missing.push('table');
  if (page.documentElement.scrollWidth > width) missing.push('width');
  document.title = `missing: ${missing.join(' ') || 'nothing'}`;
};
document.body.append(frame);
</script>";

#[test]
fn the_menu_and_the_table_of_the_example_are_not_cut_on_a_phone() {
    let server = start();
    server.folder.write("site/phone.html", PHONE);
    let page = browse_patiently(&server.folder, &server.url("/phone.html")).text();
    assert!(page.contains("<title>missing: nothing</title>"), "{page}");
}

#[test]
fn a_strict_policy_does_not_leave_the_pages_of_the_server_bare() {
    for verb in ["set", "add"] {
        let server = Setup::new(&format!(
            "
listen: @PORT@
header.{verb}: \"content-security-policy: default-src 'self'\"
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www, file.dirlisting: ON, file.index: [] }}
      /status: {{ status: ON }}
access-log: @DIR@/access-log
metrics: ON
"
        ))
        .file("www/a/b/file", "")
        .start();
        // Elements that scripts of the pages add: buttons in the head of the listing; bars, charts and tables of the status page.
        let status = [
            "class=\"c2\"",
            "class=\"chart\"",
            ">default/</td>",
            ">HTTP/1</td>",
        ];
        for (path, marks) in [("/a/b/", &["<button>Name"][..]), ("/status", &status)] {
            let output = browse_patiently(&server.folder, &server.url(path));
            let page = output.text();
            for mark in marks {
                assert!(page.contains(mark), "{mark}: {page}");
            }
            let complaint = "Content Security Policy";
            assert!(!output.stderr.contains(complaint), "{}", output.stderr);
        }
        let log = server.folder.read("access-log");
        for line in log.lines() {
            assert!(line.contains("\" 200 "), "{line}");
        }
        let styles = log.lines().filter(|line| line.contains("css"));
        assert_eq!(styles.count(), 2, "{log}");
    }
}

/// Number of images on the large page.
const IMAGES: usize = 9000;

/// A GIF of one pixel that differs for each index: the number is in a comment, and its last 16 bits are the colour.
fn gif(index: usize) -> Vec<u8> {
    let number = u16::try_from(index)
        .expect("there are fewer than 65,536 images")
        .to_be_bytes();
    let comment = format!("{index:06}");
    [
        b"GIF89a\x01\0\x01\0\x80\0\0",
        &[number[0], number[1], 0x7f, 0, 0, 0][..],
        b"\x21\xfe\x06",
        comment.as_bytes(),
        b"\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
    ]
    .concat()
}

/// A script that counts the images that loaded and those that failed, and writes the counts into the title when the page is complete.
const COUNT: &str = "
let complete = 0, failed = 0;
document.addEventListener('load', event => {
  const is_image = event.target instanceof HTMLImageElement;
  if (is_image && event.target.naturalWidth === 1) complete += 1;
}, true);
document.addEventListener('error', () => failed += 1, true);
addEventListener('load', () => document.title = `${complete} complete, ${failed} failed`);
";

#[test]
fn thousands_of_images_come_over_one_connection() {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    let mut page = format!("<!DOCTYPE html><title>wait</title><script>{COUNT}</script><body>");
    for index in 0..IMAGES {
        folder.write(&format!("www/i/{index}.gif"), gif(index));
        page += &format!("<img src=/i/{index}.gif>");
    }
    let server = Setup::in_folder(
        folder,
        "
listen:
  port: @PORT@
  ssl: { certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key }
hosts: { default: { paths: { /: { file.dir: @DIR@/www } } } }
access-log: { path: @DIR@/access-log, format: '%{connection-id}x %H %s %b %U' }
",
    )
    .file("www/index.html", page)
    .start();
    let url = format!("https://localhost:{}/", server.port());
    let shown = browse(&server.folder, &url).text();
    let want = format!("<title>{IMAGES} complete, 0 failed</title>");
    let start = shown.get(..200).unwrap_or(&shown);
    assert!(shown.contains(&want), "{start}");

    let length = gif(0).len();
    let images = eventually("all images in the access log", || {
        let log = server.folder.read("access-log");
        let images = log.lines().filter(|line| line.contains(" /i/"));
        let images: Vec<String> = images.map(str::to_owned).collect();
        (images.len() >= IMAGES).then_some(images)
    });
    let connection = images[0].split(' ').next().unwrap_or_default();
    let start = format!("{connection} HTTP/2 200 {length} /i/");
    for line in &images {
        assert!(line.starts_with(&start), "{line} is not {start}");
    }
}
