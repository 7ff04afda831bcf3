//! The HTML pages that browsers get instead of the short texts of errors.

use h2o_tests::{ClosedPort, Server, Setup, curl};

const BROWSER: &str = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

fn start() -> (Server, ClosedPort) {
    let closed = ClosedPort::new();
    let config = format!(
        "
listen: @PORT@
hosts:
  default:
    paths:
      /: {{ file.dir: @DIR@/www, header.set: 'x-level: path' }}
      /policy: {{ file.dir: @DIR@/www, header.set: \"content-security-policy: default-src 'self'\" }}
      /documents:
        file.dir: @DIR@/www
        error-doc: [ {{ status: 404, url: /missing.txt }}, {{ status: 405, url: /nowhere.html }} ]
      /unreachable:
        file.dir: @DIR@/www
        error-doc: {{ status: 404, url: 'http://[:/none' }}
      /circles:
        file.dir: @DIR@/www
        error-doc: {{ status: 404, url: /round }}
      /round: {{ redirect: {{ status: 302, url: /round, internal: YES }} }}
      /backend: {{ proxy.reverse.url: '{}' }}
",
        closed.url()
    );
    let server = Setup::new(&config)
        .file("www/index.html", "index")
        .file("www/missing.txt", "the site's own text")
        .start();
    (server, closed)
}

const NOT_FOUND: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>404 Not Found</title>
";

#[test]
fn a_browser_is_not_shown_two_small_words() {
    let (server, _closed) = start();
    let page = server.ask(&format!("GET /none\n{BROWSER}"));
    let text = page.text();
    page.must_be(&format!(
        "404 File Not Found\ncontent-type: text/html; charset=utf-8\ncontent-length: {}\nvary: accept\nx-level: path",
        text.len()
    ));
    let rest = text
        .strip_prefix(NOT_FOUND)
        .unwrap_or_else(|| panic!("{text}"));
    assert!(rest.starts_with("<style>body{"), "{text}");
    assert!(
        rest.ends_with("<h1>404 Not Found</h1>\n</body>\n</html>\n"),
        "{text}"
    );
    assert!(text.lines().count() <= 15, "{text}");
    server.ask(&format!("HEAD /none\n{BROWSER}")).must_be(&format!(
        "404 File Not Found\ncontent-type: text/html; charset=utf-8\ncontent-length: {}\nvary: accept\n\n",
        text.len()
    ));
    let http2 = h2o_tests::run(
        "curl",
        &[
            "-s",
            "--http2-prior-knowledge",
            "-H",
            BROWSER,
            &server.url("/none"),
        ],
    );
    assert_eq!(http2.text(), text);
    // The reason for the error, which the title does not have, is in a paragraph below it.
    let page = server.ask(&format!("GET /backend\n{BROWSER}"));
    page.must_be("502 Gateway Error\ncontent-type: text/html; charset=utf-8");
    let text = page.text();
    assert!(
        text.contains("<h1>502 Bad Gateway</h1>\n<p>connection refused</p>\n"),
        "{text}"
    );
}

#[test]
fn programs_do_not_get_html() {
    let (server, _closed) = start();
    let plain = "404 File Not Found\ncontent-type: text/plain; charset=utf-8\n!vary\n\nnot found";
    for accept in [
        "",
        "\nAccept: */*",
        "\nAccept: application/json",
        "\nAccept: text/plain, text/html",
    ] {
        server.ask(&format!("GET /none{accept}")).must_be(plain);
    }
    curl(&[&server.url("/none")]).must_be(plain);
}

#[test]
fn pages_of_the_site_and_its_policy_are_not_passed_by() {
    let (server, _closed) = start();
    server
        .ask(&format!("GET /documents/none\n{BROWSER}"))
        .must_be("404 File Not Found\ncontent-type: text/plain\n!vary\n\nthe site's own text");
    // An error document that does not exist is not used: the server's own page is sent.
    let page = server.ask(&format!("POST /documents/\n{BROWSER}\nContent-Length: 0"));
    assert!(
        page.text().contains("<h1>405 Method Not Allowed</h1>"),
        "{page}"
    );
    let page = server.ask(&format!("GET /policy/none\n{BROWSER}"));
    page.must_be("404 File Not Found\ncontent-security-policy: default-src 'self'");
    let text = page.text();
    assert!(
        text.contains("<h1>404 Not Found</h1>") && !text.contains("<style"),
        "{text}"
    );
}

#[test]
fn an_error_keeps_its_status_if_its_document_cannot_be_fetched() {
    let (server, _closed) = start();
    let answer = server.ask("GET /unreachable/none");
    answer.must_be("404 File Not Found");
    let answer = server.ask("GET /circles/none");
    answer.must_be("404 File Not Found\n\ntoo many internal delegations");
}
