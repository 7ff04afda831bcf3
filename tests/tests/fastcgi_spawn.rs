//! `fastcgi.spawn`: applications that the server starts, restarts and stops; the CGI gateway is one of them.

use std::path::PathBuf;
use std::time::Duration;

use h2o_tests::{Folder, Response, Server, Setup, curl, eventually, install};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const LIMIT: Duration = Duration::from_secs(15);

/// Command that starts the small application of these tests. The script is copied into the server's folder, because the user that runs it
/// may not be able to read the source tree.
const APPLICATION: &str = "exec python3 @DIR@/application.py";

fn with_application(config: &str) -> Setup {
    Setup::new(config).file("application.py", include_str!("../clients/fastcgi_app.py"))
}

fn site(paths: &str) -> String {
    format!(
        "listen: {{ host: 127.0.0.1, port: @PORT@ }}\nnum-threads: 1\npid-file: @DIR@/pid\nhosts:\n  default:\n    paths:\n{paths}\n"
    )
}

fn ask(server: &Server, target: &str) -> Response {
    curl(&[&*server.url(target)])
}

/// What the small application answers: its process id, its user id and the value of `H2O_ROOT`.
fn identity(server: &Server, target: &str) -> (i32, u32, String) {
    let response = ask(server, target);
    assert_eq!(response.code(), 200, "{}", server.messages());
    let text = String::from_utf8_lossy(&response.body).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u32>().expect("the text is a number");
    (
        i32::try_from(number(0)).expect("a process id fits into 31 bits"),
        number(1),
        words[2].to_owned(),
    )
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The directory of the Unix socket that a process has as descriptor 0.
fn directory(pid: i32) -> PathBuf {
    let link = fs::read_link(format!("/proc/{pid}/fd/0")).expect("the process runs");
    let link = link.to_string_lossy().into_owned();
    let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
    let sockets = fs::read_to_string("/proc/net/unix").expect("the file can be read");
    let line = sockets.lines().find(|line| {
        let mut words = line.split_whitespace().skip(6);
        words.next() == Some(inode)
    });
    let path = line.and_then(|line| line.split_whitespace().nth(7));
    let path = PathBuf::from(path.expect("the socket has a name"));
    path.parent()
        .expect("the socket is in a directory")
        .to_owned()
}

fn wait_until_ended(pid: i32, directory: &std::path::Path) {
    eventually("the end of the application", || {
        (!is_alive(pid) && !directory.exists()).then_some(())
    });
}

#[test]
fn an_application_runs_as_long_as_the_server_and_is_started_again() {
    let config = site(&format!("      /: {{ fastcgi.spawn: '{APPLICATION}' }}"));
    for arguments in [&["-m", "worker"], &["-m", "master"]] {
        let mut server = with_application(&config).arguments(arguments).start();
        let (first, _, root) = identity(&server, "/");
        assert!(root.starts_with('/'), "{root}");
        let directory = directory(first);
        let name = directory.to_string_lossy().into_owned();
        assert!(name.starts_with("/tmp/h2o.fcgisock."), "{name}");
        assert_eq!(ask(&server, "/?die").code(), 503);
        // This request waits in the socket's queue until the application has been started again.
        let (second, ..) = identity(&server, "/");
        assert_ne!(first, second);
        server.wait_for_message("the application ended (exit status: 3), starting it again in 0.1");
        server.terminate();
        assert_eq!(server.wait(LIMIT).code(), Some(0));
        wait_until_ended(second, &directory);
    }
}

#[test]
fn an_application_ends_with_a_server_that_is_killed() {
    let command = format!("exec 3<&0; {} <&3 & wait", &APPLICATION["exec ".len()..]);
    let config = site(&format!("      /: {{ fastcgi.spawn: '{command}' }}"));
    let mut server = with_application(&config).start();
    let (pid, ..) = identity(&server, "/");
    let directory = directory(pid);
    server.signal(rustix::process::Signal::KILL);
    server.wait(LIMIT);
    // The application that the shell has started ends too, not only the shell.
    wait_until_ended(pid, &directory);
}

#[test]
fn a_reload_keeps_the_applications_that_have_not_changed() {
    let command = APPLICATION;
    let kept = format!("      /kept: {{ fastcgi.spawn: '{command}' }}");
    let twice = format!("      /twice: {{ fastcgi.spawn: '{command}' }}");
    let other = format!("      /other: {{ fastcgi.spawn: 'A=1; {command}' }}");
    let server = with_application(&site(&format!("{kept}\n{other}"))).start();
    let (before, ..) = identity(&server, "/kept");
    let (gone, ..) = identity(&server, "/other");
    let directory = directory(gone);
    server.replace_config(&site(&format!("{kept}\n{twice}")));
    server.hup("reloaded the configuration");
    assert_eq!(identity(&server, "/kept").0, before);
    assert_ne!(identity(&server, "/twice").0, before);
    wait_until_ended(gone, &directory);
}

#[test]
fn applications_of_root_run_as_other_users_also_after_a_reload() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let daemon = nix_user("daemon");
    let (command, nobody) = (APPLICATION, nix_user("nobody"));
    let nobodys = format!("      /nobody: {{ fastcgi.spawn: '{command}' }}");
    let daemons = |path: &str| {
        format!("      /{path}: {{ fastcgi.spawn: {{ command: '{command}', user: daemon }} }}")
    };
    let config = |paths: &str| format!("user: nobody\n{}", site(paths));
    let mut server = with_application(&config(&format!("{nobodys}\n{}", daemons("a")))).start();
    assert_eq!(identity(&server, "/nobody").1, nobody);
    assert_eq!(identity(&server, "/a").1, daemon);
    server.replace_config(&config(&format!(
        "{nobodys}\n{}\n{}",
        daemons("a"),
        daemons("b")
    )));
    server.hup("reloaded the configuration");
    let (pid, user, _) = identity(&server, "/b");
    assert_eq!(user, daemon);
    let directory = directory(pid);
    server.terminate();
    assert_eq!(server.wait(LIMIT).code(), Some(0));
    wait_until_ended(pid, &directory);
}

fn nix_user(name: &str) -> u32 {
    let id = h2o_tests::run("id", &["-u", name]).text();
    id.trim().parse().expect("the text is a number")
}

#[test]
fn php_cgi_runs_scripts() {
    let config = site(
        "      /:
        file.dir: @DIR@/www
        file.custom-handler:
          extension: .php
          setenv: { REDIRECT_STATUS: '200' }
          fastcgi.timeout.keepalive: 10000
          fastcgi.spawn: 'PHP_FCGI_CHILDREN=2 exec php-cgi'",
    );
    let setup = Setup::new(&config).file("www/a.php", "<?= 6 * 7, $_GET['b'];");
    let server = setup.start();
    assert_eq!(ask(&server, "/a.php?b=c").body, b"42c");
}

#[test]
fn the_cgi_gateway_runs_scripts() {
    let folder = Folder::new();
    let root = install(&folder);
    for (name, text) in [
        ("show.sh", include_str!("cgi/show.sh")),
        ("show.cgi", include_str!("cgi/show.cgi")),
    ] {
        let path = folder.write(&format!("cgi/{name}"), text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .expect("the test owns the file");
    }
    let config = site(
        "      /cgi:
        file.dir: @DIR@/cgi
        file.custom-handler:
          extension: default
          fastcgi.spawn: exec $H2O_ROOT/share/h2o/fastcgi-cgi --max-workers=20",
    );
    let setup = Setup::in_folder(folder, &config).variable("H2O_ROOT", &root);
    let server = setup.start();
    let answer = curl(&["-d", "content\n", &server.url("/cgi/show.sh/more?a=b")]);
    answer.must_be(
        "201 Made\ncontent-type: text/plain\n\nPOST /cgi/show.sh /more a=b\nauthorization: \ncgi\ncontent\n",
    );
    // The gateway passes on what a script writes to its standard error, and it becomes a message of the server.
    server.wait_for_message("complaint of the script");
    let text = ask(&server, "/cgi/show.cgi?x").text();
    assert!(text.starts_with("Perl says x\nxxx"), "{text:.100}");
}

#[test]
fn what_programs_say_at_the_start_is_in_the_error_log() {
    let paths = "      /: { fastcgi.spawn: \"echo application >&2; exec sleep 60\" }";
    let config = format!(
        "error-log: @DIR@/errors\naccess-log: \"|echo logger; echo logger-error >&2; exec cat >/dev/null\"\n{}",
        site(paths)
    );
    let folder = Folder::new();
    let server = Setup::in_folder(folder, &config).start();
    for line in ["application\n", "logger\n", "logger-error\n"] {
        eventually(&format!("{line:?} in the error log"), || {
            server.folder.read("errors").contains(line).then_some(())
        });
    }
}
