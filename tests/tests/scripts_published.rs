//! Handlers in the forms in which people have published them for H2O run unchanged.

use h2o_tests::certs::{Key, self_signed};
use h2o_tests::{Folder, Server, Setup, run};

/// Handlers with `return` in a lambda and in a method, semicolons after expressions, `"Location"` in capitals, `\A..\z` and `$` in literals
/// with `\/`, nested literals, Symbol keys, a Proc as callback, and one `mruby.handler` after the other.
const CONFIG: &str = r##"
num-threads: 1
error-log: @DIR@/error.log
http2-push-preload: ON
listen: @PORT@
listen:
  port: @TLS_PORT@
  ssl: {certificate-file: @DIR@/server.crt, key-file: @DIR@/server.key}
hosts:
  "default":
    paths:
      "/":
        mruby.handler: |
          require "dos_detector.rb"
          DoSDetector.new({
            :strategy => DoSDetector::CountingStrategy.new({
              :period     => 300,
              :threshold  => 20,
              :ban_period => 300,
            }),
            :callback => proc {|env, detected, ip|
              if detected && ! ip.start_with?("192.168.")
                [429, {"Content-Type" => "text/plain"}, ["slow down\n"]];
              else
                [399, {}, []];
              end
            }
          });
        mruby.handler: |
          lambda do |env|
            unless /\A(HTTP\/3|HTTP\/2|HTTP\/1\.1)\z/.match?(env["SERVER_PROTOCOL"])
              return [505, {"content-type" => "text/plain"}, ["no such version\n"]]
            end
            return [399, {}, []]
          end
        mruby.handler: |
          Proc.new do |env|
            host = env["HTTP_HOST"];
            if /www\.example\.org\.?$/.match?(host)
              [301, {"Location" => env["rack.url_scheme"] + "://" + "example.org" + env["PATH_INFO"]}, []];
            else
              [399, {}, []];
            end
          end
        mruby.handler: |
          lambda { |env|
            if /\/(favicon\.ico|apple-touch-icon[\w\-]*\.png|browserconfig\.xml)\z/.match?(env["PATH_INFO"])
              return [301, {"location" => "/icons/none.png", "cache-control" => "max-age=86400"}, []]
            end
            return [410, {}, ["gone\n"]] if env["PATH_INFO"].match?(/\.(php|asp|cgi)\z/i)
            [399, {}, []]
          }
        mruby.handler: |
          class Sane
            def call(env)
              path, query = env["PATH_INFO"], env["QUERY_STRING"]
              if !/\A[\w\/.\-]*\z/.match?(path) || query =~ /(<|%3c).*script/i
                return [404, {"Content-Type" => "text/plain"}, ["not here\n"]]
              end
              [399, {}, []]
            end
          end
          Sane.new
        mruby.handler: |
          acl {
            deny { user_agent.match?(/(masscan|sqlmap|nikto)/i) }
            respond(404, {}, ["hidden\n"]) { path[-4..-1] == ".bak" || path.match(/\A\/\./) }
          }
        mruby.handler: |
          Proc.new do |env|
            push_paths = []
            if env["PATH_INFO"] == "/index.html"
              push_paths << "/style.css"
              push_paths << "/app.js"
            end
            [399, push_paths.empty? ? {} : {"link" => push_paths.map{|p| "<#{p}>; rel=preload"}.join("\n")}, []]
          end
        file.dir: @DIR@/www
"##;

fn start() -> Server {
    let folder = Folder::new();
    self_signed(&folder, "server", Key::EcPkcs8, "localhost");
    Setup::in_folder(folder, CONFIG)
        .file(
            "www/index.html",
            "<!DOCTYPE html><link rel=stylesheet href=style.css>",
        )
        .file("www/style.css", "a { color: red }")
        .file("www/app.js", "alert(1)")
        .start()
}

#[test]
fn published_handlers_run_unchanged() {
    let server = start();
    let cases: &[(&str, &str)] = &[
        ("GET /style.css", "200 OK\n\na { color: red }"),
        (
            "GET /x/y?z\nhost: www.example.org",
            "301 OK\nlocation: http://example.org/x/y\n\n",
        ),
        (
            "GET /style.css\nhost: www.example.organic",
            "200 OK\n\na { color: red }",
        ),
        (
            "GET /favicon.ico",
            "301 OK\nlocation: /icons/none.png\ncache-control: max-age=86400\n\n",
        ),
        (
            "GET /a/apple-touch-icon-120x120.png",
            "301 OK\nlocation: /icons/none.png\n\n",
        ),
        ("GET /wp-login.PHP", "410 OK\n\ngone\n"),
        (
            "GET /a%20b",
            "404 OK\ncontent-type: text/plain\n\nnot here\n",
        ),
        ("GET /?q=%3Cscript%3E", "404 OK\n\nnot here\n"),
        (
            "GET /style.css\nuser-agent: Nikto/2.1",
            "403 OK\n\nForbidden",
        ),
        ("GET /site.bak", "404 OK\n\nhidden\n"),
        ("GET /.git", "404 OK\n\nhidden\n"),
    ];
    for (request, want) in cases {
        // The DoS detector in the configuration lets requests from 192.168.7.7 through.
        let request = format!("{request}\nx-forwarded-for: 192.168.7.7");
        server.ask(&request).must_be(want);
    }
    let mut old = server.connect();
    old.send("GET /style.css HTTP/1.0\r\nhost: a\r\n\r\n");
    (old.read_response("GET")).must_be("505 OK\n\nno such version\n");
    let log = server.folder.read("error.log");
    assert!(!log.contains("mruby raised"), "{log}");
}

#[test]
fn the_detector_of_a_published_handler_bans_one_client() {
    let server = start();
    let codes = |address: &str| {
        let field = format!("x-forwarded-for: {address}");
        let request = format!("GET /app.js\n{field}");
        let codes = (0..25).map(|_| server.ask(&request).code());
        codes.collect::<Vec<_>>()
    };
    let banned = codes("203.0.113.5");
    assert_eq!(banned[..15], [200; 15]);
    assert_eq!(banned[22..], [429; 3]);
    assert_eq!(codes("192.168.1.1"), [200; 25]);
    assert_eq!(codes("203.0.113.6")[0], 200);
}

#[test]
fn a_published_push_handler_announces_and_pushes() {
    let server = start();
    let got = server.ask("GET /index.html\nx-forwarded-for: 192.168.1.1");
    let links: Vec<_> = got.all("link").collect();
    assert_eq!(
        links,
        ["</style.css>; rel=preload", "</app.js>; rel=preload"]
    );
    let url = format!(
        "https://127.0.0.1:{}/index.html",
        server.port_of("TLS_PORT")
    );
    let got = run("nghttp", &["-ans", "--no-verify-peer", &url]).text();
    for pushed in ["* ", "/style.css", "/app.js"] {
        assert!(got.contains(pushed), "{pushed}: {got}");
    }
}
