//! The manual's page on PHP with Debian's php-fpm: a directory of scripts, and an application of many small files with a front controller,
//! opened with Chromium.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use h2o_tests::{RecipePage, Server, Service, Setup, ask_by_name, browse};

const PAGE: RecipePage = RecipePage("docs/php.md");

fn php(server: &Server) -> Service {
    let socket = server.folder.name_of("run/php/php-fpm.sock");
    Service::php_fpm(&server.folder, &socket)
}

/// Writes the files of `tests/tests/php` into the server's folder, below `root`.
fn with_application(mut setup: Setup, root: &str) -> Setup {
    fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(directory)
            .expect("the directory exists")
            .flatten()
        {
            match entry.path() {
                path if path.is_dir() => files(&path, found),
                path => found.push(path),
            }
        }
    }
    let application = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/php");
    let mut found = Vec::new();
    files(&application, &mut found);
    assert!(found.len() >= 20, "{found:?}");
    for path in found {
        let name = path
            .strip_prefix(&application)
            .expect("the path is below the application's directory");
        let content = fs::read(&path).expect("the file can be read");
        setup = setup.file(&format!("{root}/{}", name.display()), content);
    }
    setup
}

#[test]
fn files_of_a_directory_are_run_or_sent() {
    let heading = "A directory with PHP files";
    let server = PAGE
        .cook(heading, &[])
        .file(
            "srv/www/index.php",
            "<?php echo 'begin ', $_GET['x'] ?? '';",
        )
        .file("srv/www/a.php", "<?php echo $_SERVER['PATH_INFO'];")
        .file("srv/www/style.css", "body {}")
        .start();
    let _php = php(&server);
    PAGE.keeps_its_word(&server, heading);
    for (path, want) in [("?x=1", "begin 1"), ("a.php/more/of%20it", "/more/of it")] {
        let url = format!("http://www.example.com/{path}");
        assert_eq!(ask_by_name(&server, &[&url]).text(), want);
    }
    // What a script writes into PHP's error log becomes a message of the server, and does not make the response an error.
    server.folder.write(
        "srv/www/fails.php",
        "<?php ini_set('log_errors', '1'); ini_set('error_log', ''); error_log('went wrong');",
    );
    let url = "http://www.example.com/fails.php";
    assert_eq!(ask_by_name(&server, &[url]).code(), 200);
    server.wait_for_message("went wrong");
}

#[test]
fn an_application_answers_all_that_is_no_file() {
    let heading = "An application with a front controller";
    let server = with_application(PAGE.cook(heading, &[]), "srv/app").start();
    let _php = php(&server);
    PAGE.keeps_its_word(&server, heading);
    let get = |path: &str| ask_by_name(&server, &[&format!("http://www.example.com{path}")]);
    let home = get("/?name=%3Cb%3E").text();
    assert!(home.contains("Hello &lt;b&gt;."), "{home}");
    let missing = get("/not/there%20at%20all");
    assert_eq!(missing.code(), 404);
    assert!(missing.text().contains("There is no /not/there at all."));
    // Files beside the directory `public` are not served.
    for path in ["/../src/App.php", "/%2e%2e/src/App.php", "/src/App.php"] {
        assert_eq!(get(path).code(), 404, "{path}");
    }

    // An upload large enough that PHP receives it in many pieces.
    let content: Vec<u8> = (0..1_500_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let file = server.folder.write("upload", &content);
    let digest = h2o_tests::run("sha256sum", &[&file.display().to_string()]).text();
    let digest = digest.split(' ').next().unwrap_or_default();
    let form = format!("file=@{}", file.display());
    let url = "http://www.example.com/form";
    let answer = ask_by_name(&server, &["-F", "who=me", "-F", &form, url]);
    assert_eq!(answer.code(), 201);
    assert!(
        answer.text().contains(&format!("From me: {digest}")),
        "{}",
        answer.text()
    );

    // The browser loads the page with its style sheet and its script.
    let url = format!("http://127.0.0.1:{}/?name=browser", server.port());
    let page = browse(&server.folder, &url).text();
    assert!(page.contains("Hello browser."), "{page}");
    assert!(page.contains("data-script=\"ran\""), "{page}");
}

#[test]
fn an_application_that_is_gone_or_too_slow_is_503_and_the_log_says_which() {
    let heading = "An application with a front controller";
    let setup = PAGE.cook(heading, &[("timeout.io: 60000", "timeout.io: 300")]);
    let server = with_application(setup, "srv/app").start();
    let get = |path: &str| ask_by_name(&server, &[&format!("http://www.example.com{path}")]);
    assert_eq!(get("/slow").code(), 503);
    server.wait_for_message("connection failed");
    let _php = php(&server);
    assert_eq!(get("/slow").code(), 503);
    server.wait_for_message("I/O timeout");
    // Files that PHP does not serve are still served.
    assert_eq!(get("/app.js").code(), 200);
}

#[test]
fn a_php_fpm_that_is_gone_gets_no_requests_until_it_is_back() {
    let heading = "Several servers with php-fpm";
    // The address of the second php-fpm in the recipe, which the test replaces by a Unix socket.
    let second = "{ port: 9000, host: 127.0.0.1 }";
    let setup = PAGE.cook(
        heading,
        &[
            (second, "{ port: @DIR@/second.sock, type: unix }"),
            ("path: /ping", "path: /ping, interval: 50"),
        ],
    );
    let server = setup.file("srv/www/a.php", "<?php echo 'fine';").start();
    let first = php(&server);
    let socket = server.folder.name_of("second.sock");
    let down = format!("backend [unix:{socket}] is down: ");
    server.wait_for_message(&down);
    // The health checks appear in the access log of php-fpm.
    let _ = server.read_until("php-fpm.access", "GET /ping 200");
    let get = || ask_by_name(&server, &["http://www.example.com/a.php"]).text();
    for _ in 0..8 {
        assert_eq!(get(), "fine");
    }
    let other = h2o_tests::Folder::new();
    let second = Service::php_fpm(&other, &socket);
    server.wait_for_message(&format!("backend [unix:{socket}] is up again"));
    first.kill();
    // The processes that php-fpm had started have ended, too: a process that a test leaves behind keeps the output of the tests open.
    let gone = server.folder.at("run/php/php-fpm.sock");
    h2o_tests::eventually("the end of all processes of php-fpm", || {
        UnixStream::connect(&gone).is_err().then_some(())
    });
    for _ in 0..8 {
        assert_eq!(get(), "fine");
    }
    second.terminate();
}

#[test]
fn uploads_of_wordpress_are_never_run() {
    let server = PAGE
        .cook("WordPress", &[])
        .file(
            "srv/wordpress/index.php",
            "<?php echo 'page of ', $_SERVER['REQUEST_URI'];",
        )
        .file("srv/wordpress/wp-login.php", "<?php echo 'login';")
        .file("srv/wordpress/xmlrpc.php", "<?php echo 'remote';")
        .file(
            "srv/wordpress/wp-content/uploads/a.php",
            "<?php echo 'run';",
        )
        .start();
    let _php = php(&server);
    let get = |path: &str| ask_by_name(&server, &[&format!("http://www.example.com{path}")]);
    assert_eq!(
        get("/2026/11/title/?x=1").text(),
        "page of /2026/11/title/?x=1"
    );
    assert_eq!(get("/wp-login.php").text(), "login");
    assert_eq!(get("/xmlrpc.php").code(), 403);
    assert_eq!(get("/wp-content/uploads/a.php").text(), "<?php echo 'run';");
    for detour in [
        "/wp-content//uploads/a.php",
        "//wp-content/uploads/a.php",
        "/wp-content/%2Fuploads/a.php",
    ] {
        assert_eq!(get(detour).code(), 404, "{detour}");
    }
    assert_eq!(get("//wp-login.php").text(), "login");
}

#[test]
fn data_of_nextcloud_stays_where_it_is() {
    let heading = "Nextcloud";
    let server = PAGE
        .cook(heading, &[])
        .file(
            "srv/nextcloud/index.php",
            "<?php echo $_SERVER['PATH_INFO'] ?? 'begin';",
        )
        .file(
            "srv/nextcloud/remote.php",
            "<?php echo 'dav ', $_SERVER['PATH_INFO'] ?? '';",
        )
        .file("srv/nextcloud/config/config.php", "<?php $secret = 1;")
        .file("srv/nextcloud/data/a", "secret")
        .start();
    let _php = php(&server);
    PAGE.keeps_its_word(&server, heading);
    let get = |path: &str| ask_by_name(&server, &[&format!("http://www.example.com{path}")]);
    assert_eq!(get("/remote.php/dav/files").text(), "dav /dav/files");
    assert_eq!(get("/index.php/apps/files").text(), "/apps/files");
    assert_eq!(get("/data/a").code(), 403);
}
