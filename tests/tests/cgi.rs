//! CGI scripts, which `fastcgi-cgi` runs for a server with `fastcgi.connect`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use h2o_tests::{Folder, Response, Server, Service, Setup, curl, eventually, install};

/// A server, and the FastCGI gateway `fastcgi-cgi` that runs the CGI scripts of these tests.
struct Scripts {
    server: Server,
    gateway: Option<Service>,
}

fn start(options: &[&str]) -> Scripts {
    let folder = Folder::new();
    let root = install(&folder);
    for (name, text) in [
        ("show.sh", include_str!("cgi/show.sh")),
        ("show.cgi", include_str!("cgi/show.cgi")),
        ("wait.sh", include_str!("cgi/wait.sh")),
        ("count.sh", include_str!("cgi/count.sh")),
        ("missing.sh", "#!/no/such/interpreter\n"),
    ] {
        let path = folder.write(&format!("cgi/{name}"), text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .expect("the test owns the file");
    }
    folder.write("cgi/plain", "text");
    let socket = folder.name_of("cgi.sock");
    // An empty file at the path of the gateway's socket, which the gateway replaces.
    folder.write("cgi.sock", "");
    let program = format!("{root}/share/h2o/fastcgi-cgi");
    let gateway = Service::cgi(&program, &socket, options, &folder.at("gateway.log"));
    let config = format!(
        "
listen: @PORT@
num-threads: 1
hosts:
  default:
    paths:
      /cgi:
        file.dir: @DIR@/cgi
        file.custom-handler:
          extension: default
          fastcgi.connect: {{ port: {socket}, type: unix }}
      /app:
        fastcgi.connect: {{ port: {socket}, type: unix }}
"
    );
    Scripts {
        server: Setup::in_folder(folder, &config).start(),
        gateway: Some(gateway),
    }
}

impl Scripts {
    fn ask(&self, target: &str, args: &[&str]) -> Response {
        curl(&[args, &[&self.server.url(target)]].concat())
    }

    /// Opens a connection on which a script has sent the beginning of a response; the script then runs until it is stopped.
    fn waiting_client(&self) -> h2o_tests::Raw {
        let mut client = self.server.connect();
        client.send("GET /cgi/wait.sh HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.read_head().code(), 200);
        client
    }

    /// Waits until the script has written the file by which it notes that it was stopped.
    fn wait_for_end_of_script(&self) {
        let note = self.server.folder.at("cgi/ended");
        eventually("the script's note", || fs::remove_file(&note).ok());
    }
}

#[test]
fn scripts_answer_by_their_output() {
    let scripts = start(&["--verbose"]);
    let sent = ["-u", "me:secret", "-d", "content\n"];
    let answer = scripts.ask("/cgi/show.sh/more?a=b", &sent);
    answer.must_be(
        "201 Made\ncontent-type: text/plain\n\nPOST /cgi/show.sh /more a=b\nauthorization: \ncgi\ncontent\n",
    );
    scripts.server.wait_for_message("complaint of the script");
    let log = scripts.server.folder.read("gateway.log");
    assert!(log.contains("fastcgi-cgi: running "), "{log}");
    let answer = scripts.ask("/cgi/show.cgi?x", &[]);
    let text = answer.text();
    assert!(text.starts_with("Perl says x\nxxx"), "{text:.100}");
    assert_eq!(answer.body.len(), 12 + 200_000);

    // A script that cannot be run makes the response 503, and the gateway's log says why.
    for (target, message) in [
        ("/cgi/plain", "Permission denied"),
        ("/cgi/missing.sh", "No such file or directory"),
        ("/app", "SCRIPT_FILENAME is missing"),
    ] {
        assert_eq!(scripts.ask(target, &[]).code(), 503, "{target}");
        scripts.server.wait_for_message(message);
    }
    assert_eq!(scripts.ask("/cgi/none", &[]).code(), 404);
}

#[test]
fn scripts_get_credentials_where_that_is_wanted() {
    let scripts = start(&["--pass-authz"]);
    let text = scripts.ask("/cgi/show.sh", &["-u", "me:secret"]).text();
    assert!(
        text.contains("\nauthorization: Basic bWU6c2VjcmV0\n"),
        "{text}"
    );
}

#[test]
fn a_script_ends_with_its_client_and_with_the_gateway() {
    let mut scripts = start(&[]);
    drop(scripts.waiting_client());
    scripts.wait_for_end_of_script();
    let client = scripts.waiting_client();
    let gateway = scripts.gateway.take().expect("the gateway runs");
    gateway.terminate();
    scripts.wait_for_end_of_script();
    drop(client);
}

#[test]
fn no_more_scripts_run_at_a_time_than_are_wanted() {
    let scripts = start(&["--max-workers=2"]);
    let url = scripts.server.url("/cgi/count.sh");
    let ask = || {
        let mut client = Command::new("curl");
        client.args(["-s", &url]).stdout(Stdio::piped());
        client.spawn().expect("curl is installed")
    };
    let clients: Vec<_> = (0..8).map(|_| ask()).collect();
    for client in clients {
        let output = client
            .wait_with_output()
            .expect("the process is a child of the test");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(["1", "2"].contains(&&*text), "{text}");
    }
}

#[test]
fn the_gateway_says_what_it_needs() {
    let folder = Folder::new();
    let gateway = format!("{}/share/h2o/fastcgi-cgi", install(&folder));
    let help = h2o_tests::run(&gateway, &["--help"]).text();
    assert!(help.starts_with("Usage: fastcgi-cgi"), "{help}");
    let output = h2o_tests::run(&gateway, &[]);
    assert_eq!(output.code, 78, "{output}");
    assert!(output.stderr.contains("stdin is no a socket"), "{output}");
}
