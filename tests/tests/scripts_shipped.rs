//! The Ruby scripts that come with the program, with the configurations of the manual.

use std::fs;

use h2o_tests::{Backend, Folder, Server, Setup, binary, manual, run};

/// Starts the configuration with this number below a heading of the manual's page on these scripts.
fn start(
    heading: &str,
    number: usize,
    replaced: &[(&str, &str)],
    files: &[(&str, &str)],
) -> Server {
    let examples = manual::examples("docs/scripts.md").into_iter();
    let mut examples =
        examples.filter(|example| example.section == heading && example.language == "yaml");
    let example = examples
        .nth(number)
        .expect("the page of the manual has the example");
    let folder = Folder::new();
    let mut text = example.moved().replace("listen: 80\n", "listen: @PORT@\n");
    for (written, meant) in replaced {
        assert!(
            text.contains(written),
            "the example `{heading}` has no text `{written}`"
        );
        text = text.replace(written, meant);
    }
    let text = format!(
        "num-threads: 1\nerror-log: @DIR@/error.log\naccess-log: {{path: '@DIR@/access.log', format: '%U %s %{{REMOTE_USER}}e'}}\n{text}"
    );
    let setup = Setup::in_folder(folder, &text);
    files
        .iter()
        .fold(setup, |setup, (name, text)| setup.file(name, text))
        .start()
}

/// The status of curl's request for `path`.
fn status(server: &Server, path: &str, options: &[&str]) -> String {
    let url = server.url(path);
    let print = ["-s", "-o", "/dev/null", "-w", "%{http_code}", &url];
    run("curl", &[&print[..], options].concat()).text()
}

/// A password file with one user for each kind of hash: bcrypt, SHA-1, Apache's MD5, and the old hash of crypt(3).
const PASSWORDS: &str = "\
alice:$2y$04$YOYeoISAVqgPa7yF0Ghn1e1I.HkrmZ2/1HmdRI96HmAhjdOD9HoPK
bob:{SHA}9SMYoF5RilWWASry7TjeaKwmpGg=
carol:$apr1$saltsalt$u/L0eZk4gyN07eMMcrhYD.
dave:rqXexS6ZhobKA
";

#[test]
fn passwords_of_every_kind_of_hash_open_the_door_and_name_the_user() {
    let files = [
        ("etc/h2o/passwords", PASSWORDS),
        ("var/www/members/index.html", "welcome"),
    ];
    let server = start("Passwords", 0, &[], &files);
    for (user, want) in [
        ("alice:wonderland", "200"),
        ("alice:wonder", "401"),
        ("bob:builder", "200"),
        ("bob:", "401"),
        ("carol:rabbit", "200"),
        ("carol:rabbits", "401"),
        ("dave:x", "500"),
        ("eve:x", "401"),
    ] {
        assert_eq!(status(&server, "/members/", &["-u", user]), want, "{user}");
    }
    server
        .ask("GET /members/\nAuthorization: Basic")
        .must_be("401 OK\ncontent-type: text/plain\nwww-authenticate: Basic realm=\"Members only\"\n\nAuthorization Required");
    for hidden in ["/members/.htpasswd", "/members/%2Eht%70asswd"] {
        server
            .ask(&format!("GET {hidden}"))
            .must_be("404 OK\n\nnot found");
    }
    let log = server.folder.read("error.log");
    let want = "/etc/h2o/passwords:crypt-style password hash is not supported";
    assert!(log.contains(want), "{log}");
    let _ = server.read_until("access.log", "/members/ 200 carol");
}

#[test]
fn access_rules_can_ask_for_passwords() {
    let files = [
        ("etc/h2o/passwords", PASSWORDS),
        ("var/www/admin/index.html", "admin"),
    ];
    let server = start("Passwords", 1, &[], &files);
    assert_eq!(status(&server, "/admin/", &[]), "401");
    assert_eq!(
        status(&server, "/admin/", &["-u", "alice:wonderland"]),
        "200"
    );
}

#[test]
fn a_client_with_too_many_requests_is_refused_and_others_are_not() {
    let server = start(
        "Too many requests",
        0,
        &[],
        &[("var/www/html/index.html", "home")],
    );
    let got: Vec<_> = (0..10).map(|_| status(&server, "/", &[])).collect();
    // The fourth request of a period of ten seconds is refused. If another period begins in between, three more are answered.
    let answered = got.iter().take_while(|status| *status == "200").count();
    assert!((3..=6).contains(&answered), "{got:?}");
    assert!(
        got[answered..].iter().all(|status| status == "429"),
        "{got:?}"
    );
    let other = ["-H", "x-forwarded-for: 192.168.0.1"];
    let got: Vec<_> = (0..5).map(|_| status(&server, "/", &other)).collect();
    assert_eq!(got, ["200"; 5]);
}

#[test]
fn addresses_in_a_list_are_allowed() {
    let files = [("var/www/html/index.html", "home")];
    let server = start("Lists of addresses", 0, &[], &files);
    assert_eq!(status(&server, "/", &[]), "200");
    let server = start(
        "Lists of addresses",
        0,
        &[("\"127.0.0.0/8\", ", "")],
        &files,
    );
    assert_eq!(status(&server, "/", &[]), "403");
}

#[test]
fn a_token_is_checked_once() {
    let backend = Backend::by_request(|request| {
        let is_good = request.field("authorization") == Some("good");
        let status = if is_good { "200 OK" } else { "403 Forbidden" };
        format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
    });
    let address = format!("127.0.0.1:{}", backend.port());
    let files = [("var/www/html/index.html", "home")];
    let server = start("A cache", 0, &[("127.0.0.1:8081", &address)], &files);
    for _ in 0..3 {
        assert_eq!(status(&server, "/", &["-H", "authorization: good"]), "200");
        assert_eq!(status(&server, "/", &["-H", "authorization: bad"]), "403");
    }
    let received = backend.received_by_all();
    let received = String::from_utf8_lossy(&received);
    assert_eq!(received.matches("GET /check ").count(), 2, "{received}");
}

#[test]
fn a_file_in_the_folder_of_scripts_replaces_the_one_in_the_program() {
    let config = "\
listen: @PORT@
hosts:
  default:
    paths:
      /:
        mruby.handler: |
          require \"#{$H2O_ROOT}/share/h2o/mruby/lru_cache.rb\"
          lambda { |env| [200, {}, [OWN]] }
";
    let folder = Folder::new();
    let root = folder.name_of("");
    let server = Setup::in_folder(folder, config)
        .file("share/h2o/mruby/lru_cache.rb", "OWN = 'own file'")
        .variable("H2O_ROOT", root.trim_end_matches('/'))
        .start();
    server.ask("GET /").must_be("200 OK\n\nown file");
}

#[test]
fn scripts_are_found_beside_the_program_that_runs() {
    let folder = Folder::new();
    folder.make_dir("bin");
    let program = folder.at("bin/h2o");
    fs::copy(binary(), &program).expect("the disk has room");
    // The shell runs a copy of the binary instead of the binary in its arguments.
    let line = format!("shift; exec {} $*", program.display());
    let config = "listen: { host: 127.0.0.1, port: @PORT@ }
hosts: { default: { paths: { /: { mruby.handler: 'require \"own.rb\"; lambda { |env| [200, {}, [OWN + $H2O_ROOT]] }' } } } }";
    let root = folder.name_of("");
    let server = Setup::in_folder(folder, config)
        .file("share/h2o/mruby/own.rb", "OWN = 'own file of '")
        .launched_by(&["env", "-u", "H2O_ROOT", "sh", "-c", &line, "sh"])
        .start();
    let want = format!("200 OK\n\nown file of {}", root.trim_end_matches('/'));
    server.ask("GET /").must_be(&want);
}

#[test]
fn the_numbers_of_the_server_are_read_by_prometheus() {
    let server = start("Numbers for Prometheus", 0, &[], &[]);
    let text = run("curl", &["-s", &server.url("/metrics/any")]).text();
    for line in [
        "# HELP h2o_connections connections",
        "# TYPE h2o_connections gauge",
        "h2o_connections{version=\"0.1.0\"} 1",
        "# TYPE h2o_status_errors_404 counter",
        "# TYPE h2o_uptime gauge",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    for name in ["server_version", "requests", "current_time"] {
        let metric = format!("h2o_{name}{{");
        assert!(!text.contains(&metric), "{text}");
    }
    let head = run(
        "curl",
        &["-s", "-D", "-", "-o", "/dev/null", &server.url("/metrics")],
    )
    .text();
    assert!(
        head.contains("content-type: text/plain; charset=utf-8\r"),
        "{head}"
    );
}
