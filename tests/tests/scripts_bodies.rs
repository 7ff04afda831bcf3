//! Request bodies that scripts read and pass on, and the memory that they take.

use h2o_tests::{Backend, Setup, run};

/// Scripts that read numbered lines of 1000 octets, or pass them on.
const LARGE_INPUT: &str = r#"
listen: @PORT@
num-threads: 1
error-log: @DIR@/error.log
mruby.memory-limit: 33554432
temp-buffer-threshold: THRESHOLD
hosts:
  default:
    paths:
      /lines:
        mruby.handler: |
          lambda do |env|
            count = 0
            env["rack.input"].each do |line|
              raise "line #{count}: #{line.size}" unless line.size == 1000 && line.to_i == count
              count += 1
            end
            rest = env["rack.input"].gets
            [200, {}, [env["CONTENT_LENGTH"], " ", count, " ", rest.inspect]]
          end
      /pieces:
        mruby.handler: |
          lambda do |env|
            input, sizes = env["rack.input"], []
            while piece = input.read(7_000_000)
              raise "piece #{sizes.size}" unless piece[0, 8].to_i == sizes.size * 7000
              sizes << piece.size
            end
            [200, {}, [sizes.inspect, input.rewind.byteindex(10), input.read(3), input.gets.size]]
          end
      /whole:
        mruby.handler: |
          lambda { |env| [200, {}, [env["rack.input"].read]] }
      /fiber:
        mruby.handler: |
          lambda { |env| [200, {}, [Fiber.new { env["rack.input"].read(12) }.resume]] }
      /next:
        - mruby.handler: |
            lambda { |env| env["rack.input"].read(4_000_000) if env["QUERY_STRING"] == "rest"; H2O.next.request(env) }
        - mruby.handler: |
            lambda do |env|
              size = 0
              while piece = env["rack.input"].read(65536)
                size += piece.size
              end
              [200, {}, [size]]
            end
      /sent:
        mruby.handler: |
          lambda { |env| http_request("BACKEND", {:method => "POST", :body => env["rack.input"]}).join }
"#;

#[test]
fn a_request_body_that_is_larger_than_the_memory_of_scripts_can_be_read_in_pieces_and_passed_on() {
    const LINES: usize = 40_000;
    let backend = Backend::by_request(|request| {
        let is_whole = (request.body.chunks(1000).enumerate())
            .all(|(index, line)| line.starts_with(format!("{index:08} ").as_bytes()));
        let text = format!("{} {is_whole}", request.body.len());
        let len = text.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n{text}")
    });
    let lines: String = (0..LINES)
        .map(|index| format!("{index:08} {}\n", "x".repeat(990)))
        .collect();
    // The body is in memory, in a temporary file, and in one in a file system that many kernels cannot read without waiting.
    for threshold in ["OFF", "1048576", "1048576\ntemp-buffer-path: /dev/shm"] {
        let config = LARGE_INPUT.replace("THRESHOLD", threshold);
        let config = config.replace("BACKEND", &backend.url("/"));
        let server = Setup::new(&config).file("body", &lines).start();
        let body = format!("@{}", server.folder.at("body").display());
        let post = |path: &str| {
            let url = server.url(path);
            run("curl", &["-s", "--data-binary", &body, &url]).text()
        };
        assert_eq!(post("/lines"), "40000000 40000 nil");
        let want = "[7000000, 7000000, 7000000, 7000000, 7000000, 5000000]999000997";
        assert_eq!(post("/pieces"), want);
        assert_eq!(post("/whole"), "Internal Server Error");
        assert_eq!(post("/fiber"), "00000000 xxx");
        assert_eq!(post("/next"), "40000000");
        assert_eq!(post("/next?rest"), "36000000");
        assert_eq!(post("/sent"), "40000000 true");
        let log = server.folder.read("error.log");
        assert!(log.contains("Out of memory (NoMemoryError)"), "{log}");
    }
}

#[test]
fn the_memory_of_a_request_body_is_free_when_the_request_has_ended() {
    const LEN: usize = 8 << 20;
    let config = "listen: @PORT@\nnum-threads: 1\nhosts:\n  default:\n    paths:\n      /:\n        mruby.handler: |\n          lambda { |env| env[\"rack.input\"]; [200, {}, [env[\"CONTENT_LENGTH\"]]] }\n";
    let server = Setup::new(config).file("body", "x".repeat(LEN)).start();
    let body = format!("@{}", server.folder.at("body").display());
    let before = server.memory();
    for _ in 0..20 {
        let url = server.url("/");
        let got = run(
            "curl",
            &["-s", "-H", "expect:", "--data-binary", &body, &url],
        );
        assert_eq!(got.text(), LEN.to_string());
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 10 * LEN, "20 bodies of {LEN} octets left {grown}");
}
