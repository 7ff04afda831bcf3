//! `health` and `shutdown-delay`: what health probes get before, during and after a shutdown.

use h2o_tests::{Setup, eventually};
use rustix::process::{Pid, Signal};

fn terminate(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.expect("the process id is not 0");
    rustix::process::kill_process(pid, Signal::TERM).expect("the process is a child of the test");
}

const SITE: &str = "
listen: @PORT@
hosts:
  default:
    paths:
      /live: { health: LIVE }
      /ready: { health: READY }
      /: { file.dir: @DIR@/www }
";

#[test]
fn a_server_that_will_end_is_alive_and_serves_but_is_not_ready() {
    let config = format!("shutdown-delay: 3600\n{SITE}");
    let mut server = Setup::new(&config).file("www/a", "a").start();
    for path in ["/live", "/ready"] {
        let answer = server.ask(&format!("GET {path}"));
        assert_eq!((answer.code(), answer.text()), (200, "ok\n".to_owned()));
        assert_eq!(answer.field("cache-control"), Some("no-store"));
    }
    terminate(server.pid());
    eventually("the readiness probe to answer 503", || {
        (server.ask("GET /ready").code() == 503).then_some(())
    });
    // During the delay the server still accepts new connections and answers requests.
    assert_eq!(server.ask("GET /ready").text(), "shutting down\n");
    assert_eq!(server.ask("GET /live").code(), 200);
    assert_eq!(server.ask("GET /a").code(), 200);
    server.wait_for_message("received SIGTERM, gracefully shutting down in 3600 seconds");
    // A second SIGTERM ends the server without waiting for the rest of `shutdown-delay`.
    terminate(server.pid());
    let ended = server.wait(std::time::Duration::from_secs(20));
    assert!(ended.success(), "{ended}");
}

#[test]
fn the_shutdown_follows_the_delay_and_a_connection_of_before_learns_of_it() {
    let config = format!("shutdown-delay: 1\n{SITE}");
    let mut server = Setup::new(&config).file("www/a", "a").start();
    let mut client = server.connect();
    let mut ask = || {
        client.send("GET /ready HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_response("GET")
    };
    assert_eq!(ask().code(), 200);
    terminate(server.pid());
    // The server keeps the connection open until `shutdown-delay` has passed.
    eventually("a response that closes the connection", || {
        let answer = ask();
        (answer.field("connection") == Some("close")).then_some(())
    });
    let ended = server.wait(std::time::Duration::from_secs(20));
    assert!(ended.success(), "{ended}");
}

#[test]
fn only_known_probes_are_accepted() {
    let refused = Setup::new(&SITE.replace("LIVE", "ALIVE"))
        .try_start()
        .expect_err("a probe with an unknown name must be refused");
    let text = "argument must be one of: LIVE,READY";
    assert!(
        refused.code == Some(78) && refused.stderr.contains(text),
        "{}",
        refused.stderr
    );
}
