//! `h2o mruby`, which runs scripts without a server, and the recipes on the manual's page about scripts, which it tests.

use h2o_tests::manual::{self, Example};
use h2o_tests::{Backend, Folder, Output, binary, run};

fn tool(folder: &Folder, args: &[&str]) -> Output {
    let words: Vec<String> = args
        .iter()
        .map(|arg| arg.replace("@DIR@", &folder.path().display().to_string()))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let binary = binary().display().to_string();
    run(&binary, &[&["mruby"], &words[..]].concat())
}

/// The handlers on that page, each with the test that follows it.
fn tested_handlers() -> Vec<(Example, Example)> {
    let blocks = manual::examples("docs/scripts.md");
    let pairs = blocks.windows(2);
    pairs
        .filter(|pair| pair[0].language == "ruby" && pair[1].language == "text")
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

/// A backend that plays the services which the handlers of the manual ask.
fn services() -> Backend {
    Backend::by_request(|request| {
        let token = request.field("authorization");
        let (status, body) = match (request.target(), token) {
            ("/user", _) => ("200 OK", r#"{"name":"alice"}"#.to_owned()),
            ("/basket", _) => ("200 OK", "[1,2]".to_owned()),
            ("/check", Some("Bearer good")) => ("200 OK", "alice".to_owned()),
            ("/check", Some("Bearer slow")) => ("504 Slow", String::new()),
            ("/check", _) => ("403 Forbidden", String::new()),
            (target, _) => ("200 OK", format!("version b of {target}")),
        };
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
    })
}

#[test]
fn the_handlers_of_the_manual_pass_their_tests() {
    let handlers = tested_handlers();
    let sections: Vec<_> = handlers
        .iter()
        .map(|(script, _)| &*script.section)
        .collect();
    assert_eq!(
        sections,
        [
            "Testing scripts",
            "Redirect a host",
            "Refuse old protocols",
            "Icons",
            "Sanitise requests",
            "Black list",
            "Push links",
            "One page of two services",
            "Ask a service whether a token is valid",
            "Two versions of a site (A/B)",
        ]
    );
    let services = services();
    let folder = Folder::new();
    for (script, test) in handlers {
        let mut text = script.text.clone();
        for port in 8081..=8084 {
            text = text.replace(
                &format!("127.0.0.1:{port}"),
                &format!("127.0.0.1:{}", services.port()),
            );
        }
        folder.write("app.rb", text);
        folder.write("test.txt", &test.text);
        let output = tool(&folder, &["--test", "@DIR@/test.txt", "@DIR@/app.rb"]);
        let (code, text) = (output.code, output.text());
        assert_eq!(code, 0, "{}\n{text}{}", test.place, output.stderr);
        assert!(text.ends_with(" requests, 0 failed\n"), "{text}");
    }
}

const APP: &str = r#"
lambda do |env|
  case env["PATH_INFO"]
  when "/raise" then raise "boom"
  when "/wait" then sleep
  when "/each" then [200, {}, Class.new { def each() yield "one"; sleep 0.001; yield "two" end }.new]
  when "/cut" then [200, {}, Class.new { def each() yield "one"; sleep 0.001; raise "cut" end }.new]
  else
    env["rack.early_hints"].call({"x-early" => "1"})
    [200, {"x-prefix" => env["SCRIPT_NAME"]}, [env["rack.input"] ? env["rack.input"].read : "none"]]
  end
end
"#;

#[test]
fn requests_on_the_command_line_are_answered_with_their_times() {
    let folder = Folder::new();
    folder.write("app.rb", APP);
    let output = tool(&folder, &["--path", "/app", "@DIR@/app.rb"]);
    let text = output.text();
    let (first, content) = text.split_once(" ms\n").expect("the first line has a time");
    let time = first.strip_prefix("/app: 200 in ");
    assert!(
        time.is_some_and(|time| time.parse::<f64>().is_ok()),
        "{text}"
    );
    assert_eq!(
        content,
        "    103 x-early: 1\n    x-prefix: /app\n\n    none\n"
    );
    assert_eq!((output.code, &*output.stderr), (0, ""));

    let both = tool(
        &folder,
        &[
            "@DIR@/app.rb",
            "/each",
            "POST /\nbody \"a\\nb\"\nassert body \"a\\nb\"",
        ],
    );
    let text = both.text();
    assert!(text.contains("\n    onetwo\n"), "{text}");
    assert!(text.contains("\n    a\n    b\n"), "{text}");
    assert_eq!(both.code, 0, "{text}");
}

#[test]
fn what_fails_is_shown_with_its_line_and_ends_with_1() {
    let folder = Folder::new();
    folder.write("app.rb", APP);
    let ended = |args: &[&str], part: &str| {
        let output = tool(&folder, &[&["@DIR@/app.rb"], args].concat());
        let text = format!("{}{}", output.text(), output.stderr);
        assert_eq!(output.code, 1, "{text}");
        assert!(text.contains(part), "{text}");
        text
    };
    let text = ended(&["/raise", "/"], "1 of 2 requests failed");
    assert!(text.contains("mruby raised: boom (RuntimeError)"), "{text}");
    assert!(text.contains("* the script raised"), "{text}");
    ended(
        &["/cut"],
        "* the body is not complete: mruby raised: cut (RuntimeError)",
    );
    ended(
        &["--timeout", "1", "/wait"],
        "the script gave no response within 1 seconds",
    );
    // A loop that waits for nothing is ended in the same time.
    folder.write("loop.rb", "lambda { |env| loop {} }");
    let output = tool(&folder, &["@DIR@/loop.rb", "--timeout", "1"]);
    let text = format!("{}{}", output.text(), output.stderr);
    assert!(output.code == 1 && text.contains("1000 ms"), "{text}");
    folder.write(
        "test.txt",
        "/raise\nassert log contains boom\n\n/\nassert status 404\nassert no x-prefix\nassert etag: x",
    );
    let text = ended(&["--test", "@DIR@/test.txt"], "2 requests, 1 failed");
    for part in [
        "ok   ",
        "test.txt:5: assert status 404: the value is `200`",
        "test.txt:6: assert no x-prefix: the value is ``",
        "test.txt:7: assert etag: x: the response has no such field",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_script_that_does_not_load_ends_with_78() {
    let folder = Folder::new();
    folder.write("syntax.rb", "lambda { |env|");
    folder.write("raises.rb", "sleep 0.001\nnil.foo");
    folder.write("app.rb", APP);
    folder.write("test.txt", "/\nnonsense");
    for (args, part) in [
        (&["@DIR@/syntax.rb"][..], "syntax.rb:line 1:syntax error"),
        (&["@DIR@/raises.rb"], "undefined method 'foo'"),
        (&["@DIR@/none.rb"], "none.rb:No such file"),
        (&["@DIR@/app.rb", "nowhere"], "`nowhere` is no target"),
        (
            &["-t", "@DIR@/test.txt", "@DIR@/app.rb"],
            "test.txt:2: `nonsense` is neither",
        ),
        (
            &["-t", "@DIR@/none.txt", "@DIR@/app.rb"],
            "none.txt: No such file",
        ),
        (&["-t"], "requires an argument"),
        (&["--nonsense"], "unrecognized option"),
        (&[], "name a handler file"),
    ] {
        let output = tool(&folder, args);
        let text = format!("{}{}", output.text(), output.stderr);
        assert_eq!(output.code, 78, "{text}");
        assert!(text.contains(part), "{part}: {text}");
    }
}
