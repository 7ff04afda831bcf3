//! Tests of `file.custom-handler`.

use h2o_http::{Known, Method};

use super::super::testing::{config_error, cool_the_disk, kit, kit_at};
use super::tree;

const PHP: &str = "file.dir: ROOT
file.custom-handler:
  extension: [.php, .phtml]
  setenv: {KIND: php}
  test.show-script: OFF";

#[test]
fn files_with_dynamic_types_go_to_their_handler() {
    let root = tree(&[
        ("t.php", "x"),
        ("T.PHP", "x"),
        ("t.txt", "text"),
        ("d/t.php", "x"),
        ("d/i.phtml/index.html", "I"),
        ("e/index.php", "x"),
    ]);
    let kit = kit(
        root.path(),
        &format!("{PHP}\nfile.index: [index.html, index.php]"),
    );
    let dir = root.path().display();
    let script = |name: &str, info: &str| format!("200 GET {name} {dir}{name} {info} php");
    let cases = [
        ("/t.php", script("/t.php", "-")),
        ("/T.PHP?q", script("/T.PHP", "-")),
        ("/t.php/", script("/t.php", "/")),
        ("/t.php/a/b", script("/t.php", "/a/b")),
        ("/t.php/a%20/", script("/t.php", "/a /")),
        ("/d/t.php/x.php", script("/d/t.php", "/x.php")),
        ("/e/", script("/e/index.php", "-")),
        ("/t.txt", "200 text".into()),
        ("/t.txt/a.php", "0 ".into()),
        ("/none.php", "0 ".into()),
        ("/none.php/a", "0 ".into()),
        ("/d/none/t.php", "0 ".into()),
        ("/d/i.phtml/", "200 I".into()),
        ("/d/i.phtml", "301 /d/i.phtml/".into()),
    ];
    for round in 0..2 {
        for (target, want) in &cases {
            let answer = kit.get(target);
            assert_eq!(answer.brief(), *want, "{target}");
            assert!(answer.waited || round == 0, "{target}");
        }
        cool_the_disk();
    }
    let post = kit.ask("/t.php").method(Method::Post).send();
    assert!(post.text().starts_with("POST "));
}

#[test]
fn path_keys_count_to_the_script_name() {
    let root = tree(&[("t.php", "x")]);
    let dir = root.path().display();
    let kit = kit_at(root.path(), "/app", "{}", PHP);
    let want = format!("200 GET /app/t.php {dir}/t.php /i php");
    assert_eq!(kit.get("/app/t.php/i").brief(), want);
    let single = PHP.replace("file.dir: ROOT", "file.file: ROOT/t.php");
    let kit = kit_at(root.path(), "/app", "{}", &single);
    let want = format!("200 GET /app {dir}/t.php - php");
    assert_eq!(kit.get("/app").brief(), want);
    let want = format!("200 GET /app {dir}/t.php /i/j php");
    assert_eq!(kit.get("/app/i/j").brief(), want);
}

#[test]
fn default_catches_files_without_mapped_extension() {
    let root = tree(&[("plain", "x"), ("a.unknown", "x"), ("a.txt", "text")]);
    let config = "file.dir: ROOT\nfile.custom-handler: {extension: default, test.show-script: ON}";
    let kit = kit(root.path(), config);
    assert!(kit.get("/plain").text().starts_with("GET /plain "));
    assert!(kit.get("/a.unknown").text().starts_with("GET /a.unknown "));
    assert_eq!(kit.get("/a.txt").brief(), "200 text");
}

#[test]
fn variants_lead_to_the_plain_name() {
    let root = tree(&[("a.php.br", "x")]);
    let kit = kit(root.path(), &format!("{PHP}\nfile.send-compressed: ON"));
    let answer = kit.ask("/a.php").field(Known::AcceptEncoding, "br").send();
    let dir = root.path().display();
    assert_eq!(answer.text(), format!("GET /a.php {dir}/a.php - php"));
}

#[test]
fn handlers_are_inherited_until_the_types_are_set_anew() {
    let root = tree(&[("t.php", "x")]);
    let global = "file.custom-handler: {extension: .php, test.show-script: OFF}";
    let inherited = kit_at(root.path(), "/", global, "file.dir: ROOT");
    assert!(inherited.get("/t.php").text().starts_with("GET /t.php"));
    let config = "file.dir: ROOT\nfile.mime.settypes: {text/plain: .txt}";
    let anew = kit_at(root.path(), "/", global, config);
    assert_eq!(anew.get("/t.php").brief(), "200 x");
    let config = "file.dir: ROOT\nfile.custom-handler: {extension: .x, setenv: {KIND: y}, test.show-script: OFF}";
    let both = kit_at(root.path(), "/", global, config);
    assert!(both.get("/t.php").text().ends_with(" -"));
}

#[test]
fn what_a_custom_handler_needs() {
    let cases = [
        ("x", "argument must be a MAPPING"),
        (
            "{test.show-script: ON}",
            "mandatory key `extension` is missing",
        ),
        ("{extension: .a}", "no handler declared for given extension"),
        (
            "{extension: .a, test.show-script: ON, test.show-script: ON}",
            "cannot assign more than one handler for given extension",
        ),
        (
            "{extension: a, test.show-script: ON}",
            "given extension \"a\" does not start with a \".\"",
        ),
        (
            "{extension: [.], test.show-script: ON}",
            "given extension \".\" is invalid: at least 2 characters are required",
        ),
        (
            "{extension: {a: b}, test.show-script: ON}",
            "`extensions` must be a scalar or sequence of scalar",
        ),
        (
            "{extension: [[.a]], test.show-script: ON}",
            "`extensions` must be a scalar or sequence of scalar",
        ),
        (
            "{extension: .a, test.show-script: MAYBE}",
            "argument must be one of: OFF,ON",
        ),
        (
            "{extension: .a, file.dir: /tmp, test.show-script: ON}",
            "the command cannot be used at this level",
        ),
        (
            "{extension: .a, fastcgi.connect: 9000}",
            "the directive is not supported yet",
        ),
    ];
    for (value, want) in cases {
        let error = config_error(&format!("file.custom-handler: {value}"));
        assert!(error.contains(want), "{value}: {error}");
    }
}
