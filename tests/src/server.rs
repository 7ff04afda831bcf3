//! The server under test as a child process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Deadline, Folder, Raw, Response, eventually, tool};

/// The line that a server writes once it accepts connections.
const READY: &str = "is ready to serve requests";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

/// How many sets of ports are tried if another process has taken one in the meantime.
const TRIES: usize = 5;

/// The binary under test: `$H2O_BIN`, else the one beside the tests, which is built if there is none.
///
/// # Panics
/// If it cannot be found or built.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("H2O_BIN") {
        Some(path) => path.into(),
        None => find_or_build(),
    })
}

fn find_or_build() -> PathBuf {
    // TARGET/PROFILE/deps/TEST
    let test = std::env::current_exe().expect("the system tells where we are");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("cargo puts tests two levels below its target directory");
    let found = profile.join("h2o");
    if found.exists() {
        return found;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--package", "h2o", "--target-dir"]);
    build.arg(profile.parent().unwrap_or(profile));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("cargo is installed");
    assert!(status.success(), "h2o cannot be built");
    found
}

/// A server to start.
///
/// In the configuration, `@DIR@` stands for its directory, and `@PORT@`, like every other word in capitals that ends in
/// `PORT`, for a free TCP port.
#[derive(Debug)]
pub struct Setup {
    folder: Folder,
    config: Option<String>,
    directory: Option<PathBuf>,
    variables: Vec<(String, String)>,
    descriptors: Option<u32>,
    launcher: Vec<String>,
    arguments: Vec<String>,
}

/// A server that ended before it accepted connections.
#[derive(Debug)]
pub struct Refused {
    /// Exit status.
    pub code: Option<i32>,
    /// Its messages.
    pub stderr: String,
}

impl Setup {
    /// A server with this configuration.
    #[must_use]
    pub fn new(config: &str) -> Self {
        Self::in_folder(Folder::new(), config)
    }

    /// A server with this configuration and an existing directory.
    #[must_use]
    pub fn in_folder(folder: Folder, config: &str) -> Self {
        Self {
            folder,
            config: Some(config.to_owned()),
            directory: None,
            variables: Vec::new(),
            descriptors: None,
            launcher: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// A server of one port over TLS and over QUIC, whose files are in `www`: `settings` are lines of the global level, `attributes`
    /// those of the QUIC listener, and `rest` the paths besides `/`, then what else is global.
    #[must_use]
    pub fn http3(settings: &str, attributes: &str, rest: &str) -> Self {
        let folder = Folder::new();
        crate::certs::self_signed(&folder, "site", crate::certs::Key::EcPkcs8, "localhost");
        let config = format!(
            "
{settings}
listen: &tls
  host: 127.0.0.1
  port: @PORT@
  ssl: {{ certificate-file: @DIR@/site.crt, key-file: @DIR@/site.key }}
listen:
  <<: *tls
  type: quic
  {attributes}
hosts:
  default:
    paths:
      /: {{ proxy.connect: [ '+127.0.0.1' ], file.dir: @DIR@/www }}
{rest}
"
        );
        Self::in_folder(folder, &config)
    }

    /// A server without a configuration, run in a subdirectory of its folder.
    #[must_use]
    pub fn bare(folder: Folder, directory: &str) -> Self {
        let directory = folder.at(directory);
        Self {
            folder,
            config: None,
            directory: Some(directory),
            variables: Vec::new(),
            descriptors: None,
            launcher: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Writes a file into the server's directory.
    #[must_use]
    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.folder.write(name, content);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Limits the number of file descriptors of the server.
    #[must_use]
    pub const fn descriptors(mut self, limit: u32) -> Self {
        self.descriptors = Some(limit);
        self
    }

    /// Adds names for the server's resolver; see [`Server::set_names`].
    #[must_use]
    pub fn names(self, table: &str) -> Self {
        write_names(&self.folder, table);
        let table = self.folder.name_of(NAMES);
        let library = tool("names.so");
        self.variable("LD_PRELOAD", &library)
            .variable("NAMES_TABLE", &table)
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(refused) => panic!(
                "the server ended with {:?}:\n{}",
                refused.code, refused.stderr
            ),
        }
    }

    /// Starts the server, and waits until it accepts connections or has ended.
    ///
    /// # Errors
    /// How it ended.
    ///
    /// # Panics
    /// If it does neither.
    pub fn try_start(self) -> Result<Server, Refused> {
        let mut tries = TRIES;
        loop {
            let (ports, launcher) = self.write_config();
            let mut process = self.spawn(&launcher);
            let Some(status) = process.wait_until_ready(&self.folder, self.error_log()) else {
                return Ok(Server {
                    process,
                    folder: self.folder,
                    ports,
                });
            };
            tries -= 1;
            let messages = process.log.text();
            let ports_are_taken = messages.contains("Address already in use");
            if !ports_are_taken || tries == 0 {
                return Err(Refused {
                    code: status.code(),
                    stderr: messages,
                });
            }
        }
    }

    /// Started by this command, whose last arguments are the server and its own. It has the place-holders of the configuration.
    #[must_use]
    pub fn launched_by(mut self, command: &[&str]) -> Self {
        self.launcher = command.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// With further arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The file in the folder to which the server writes its startup line, if not to standard error.
    fn error_log(&self) -> &str {
        let config = self.config.as_deref().unwrap_or_default();
        let named = config
            .lines()
            .find_map(|line| line.strip_prefix("error-log: @DIR@/"));
        named.unwrap_or("error-log")
    }

    /// Writes the configuration. Returns its ports, and the launcher with these filled in.
    fn write_config(&self) -> (BTreeMap<String, u16>, Vec<String>) {
        let Some(config) = &self.config else {
            return (BTreeMap::new(), self.launcher.clone());
        };
        let words = std::iter::once(config).chain(&self.launcher);
        let words: Vec<&str> = words.map(String::as_str).collect();
        let mut ports = BTreeMap::new();
        let text = fill_in(&words.join("\0"), self.folder.path(), &mut ports);
        let mut words = text.split('\0').map(str::to_owned);
        self.folder
            .write("h2o.conf", words.next().unwrap_or_default());
        (ports, words.collect())
    }

    fn spawn(&self, launcher: &[String]) -> Process {
        let mut command = match self.descriptors {
            None => match launcher.split_first() {
                None => Command::new(binary()),
                Some((program, arguments)) => {
                    let mut command = Command::new(program);
                    command.args(arguments).arg(binary());
                    command
                }
            },
            Some(limit) => {
                let mut shell = Command::new("sh");
                let line = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
                shell.arg("-c").arg(line).arg(binary());
                shell
            }
        };
        if self.config.is_some() {
            command.arg("-c").arg(self.folder.at("h2o.conf"));
        }
        command.args(&self.arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let mut child = command
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", binary().display()));
        let log = Log::default();
        if let Some(stdout) = child.stdout.take() {
            log.follow(stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            log.follow(stderr);
        }
        Process { child, log }
    }
}

/// The table of names.
const NAMES: &str = "names";

fn write_names(folder: &Folder, table: &str) {
    // Replaced atomically: the server may read it at any time.
    let written = folder.write("names.new", table);
    std::fs::rename(written, folder.at(NAMES)).expect("the folder is writable");
}

/// Replaces the placeholders of a configuration, and picks the ports that are not known yet.
fn fill_in(config: &str, directory: &Path, ports: &mut BTreeMap<String, u16>) -> String {
    // Bound until all are picked, so that they differ.
    let mut held = Vec::new();
    let mut text = String::new();
    for (index, part) in config.split('@').enumerate() {
        let is_name = index % 2 == 1;
        if !is_name {
            text.push_str(part);
        } else if part == "DIR" {
            text.push_str(&directory.display().to_string());
        } else {
            assert!(
                part.ends_with("PORT"),
                "@{part}@ is no place-holder; a configuration has no other @"
            );
            let port = ports.entry(part.to_owned()).or_insert_with(|| {
                let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
                let address = listener.local_addr().expect("the socket is bound");
                held.push(listener);
                address.port()
            });
            text.push_str(&port.to_string());
        }
    }
    text
}

/// Output of a process, line by line.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn follow(&self, stream: impl std::io::Read + Send + 'static) {
        let log = self.clone();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                log.lock().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
    }

    fn text(&self) -> String {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.0
            .lock()
            .expect("nothing panics while it holds the lock")
    }
}

/// A running server. Stops when dropped.
#[derive(Debug)]
pub struct Server {
    // Declared before the folder: the process must end before its directory is removed.
    process: Process,
    /// Its directory.
    pub folder: Folder,
    ports: BTreeMap<String, u16>,
}

impl Server {
    /// The port of the placeholder `@NAME@`.
    ///
    /// # Panics
    /// If the configuration does not have it.
    #[must_use]
    pub fn port_of(&self, name: &str) -> u16 {
        self.find_port(name)
            .unwrap_or_else(|| panic!("the configuration has no @{name}@"))
    }

    /// Changes the names of [`Setup::names`]. Lines are `NAME ADDRESS`, `NAME ADDRESS PORT`, `NAME again` for a
    /// temporary failure, `NAME none`, or `NAME wait` for no answer while this table is in place.
    pub fn set_names(&self, table: &str) {
        write_names(&self.folder, table);
    }

    /// The look-ups that its resolver made: one line `NAME:PORT` each.
    #[must_use]
    pub fn asked_names(&self) -> String {
        self.folder.read("names.asked")
    }

    /// Like [`Server::port_of`]; `None` if the configuration does not have it.
    #[must_use]
    pub fn find_port(&self, name: &str) -> Option<u16> {
        self.ports.get(name).copied()
    }

    /// The port `@PORT@`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_of("PORT")
    }

    /// A URL at `@PORT@`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Its memory in bytes, without pages of files, whose number depends on other processes of the same binary.
    ///
    /// # Panics
    /// If the kernel does not tell.
    #[must_use]
    pub fn memory(&self) -> usize {
        let text = self.process_file("smaps_rollup");
        let kilobytes = text.lines().find_map(|line| {
            let rest = line.strip_prefix("Anonymous:")?;
            rest.trim().strip_suffix(" kB")?.parse::<usize>().ok()
        });
        kilobytes.expect("the kernel accounts memory") * 1024
    }

    /// Its memory once it is idle, that is, uses no processor time for a while.
    #[must_use]
    pub fn memory_at_rest(&self) -> usize {
        let deadline = Deadline::after(START);
        let mut before = self.processor_time();
        let mut quiet = 0;
        while quiet < 4 && !deadline.has_passed() {
            std::thread::sleep(Duration::from_millis(25));
            let now = self.processor_time();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
        self.memory()
    }

    /// User and system time, in ticks.
    fn processor_time(&self) -> u64 {
        let text = self.process_file("stat");
        // The second column is a name in parentheses; the times are columns 14 and 15.
        let (_, rest) = text.rsplit_once(')').unwrap_or_default();
        let columns = rest.split_whitespace().skip(11).take(2);
        columns.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }

    fn process_file(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.pid());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Its standard output and standard error so far.
    #[must_use]
    pub fn messages(&self) -> String {
        self.process.log.text()
    }

    /// Waits until its output contains `text`. Threads read the output.
    pub fn wait_for_message(&self, text: &str) {
        eventually(&format!("the message `{text}`"), || {
            self.messages().contains(text).then_some(())
        });
    }

    /// Connects to `@PORT@`.
    #[must_use]
    pub fn connect(&self) -> Raw {
        Raw::connect(self.port())
    }

    /// Sends a request to `@PORT@`: a line `METHOD TARGET`, a line for each field, and after an empty line the body.
    /// Adds `Host` and `Connection: close` if they are missing.
    #[must_use]
    pub fn ask(&self, request: &str) -> Response {
        let mut connection = self.connect();
        connection.send(request_message(request));
        connection.read_response(request.split(' ').next().unwrap_or_default())
    }

    /// Waits until a file in its directory contains `text`, and returns the contents.
    #[must_use]
    pub fn read_until(&self, name: &str, text: &str) -> String {
        eventually(&format!("`{text}` in {name}"), || {
            Some(self.folder.read(name)).filter(|content| content.contains(text))
        })
    }

    /// Writes another configuration, in which the placeholders of the first have the same values. It may have further ports.
    pub fn write_config(&mut self, config: &str) {
        let text = fill_in(config, self.folder.path(), &mut self.ports);
        self.write_text(text);
    }

    /// As [`Server::write_config`], without further ports.
    ///
    /// # Panics
    /// If there are some.
    pub fn replace_config(&self, config: &str) {
        let mut ports = self.ports.clone();
        let text = fill_in(config, self.folder.path(), &mut ports);
        assert_eq!(ports, self.ports, "the configuration has further ports");
        self.write_text(text);
    }

    fn write_text(&self, text: String) {
        // Replaced atomically: the server may read it at any time.
        let written = self.folder.write("h2o.conf.new", text);
        std::fs::rename(written, self.folder.at("h2o.conf")).expect("the folder is writable");
    }

    /// Has the server reload its configuration, and waits until it serves by that. Its messages must go to standard error.
    pub fn reload(&self) {
        self.hup("reloaded the configuration: ");
    }

    /// Sends HUP, and waits until the server has written another message with this text.
    pub fn hup(&self, answer: &str) {
        let count = || self.messages().matches(answer).count();
        let before = count();
        self.signal(Signal::HUP);
        eventually(&format!("another message `{answer}`"), || {
            (count() > before).then_some(())
        });
    }

    /// Sends TERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has already been waited for.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process.child);
        kill_process(pid, signal).expect("the process is ours");
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    /// If it does not within `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        self.process.wait_within(limit).unwrap_or_else(|| {
            panic!(
                "the server still runs after {limit:?}:\n{}",
                self.messages()
            )
        })
    }

    /// Sends TERM, waits for a successful end, and returns the folder.
    ///
    /// # Panics
    /// If it does not end successfully.
    #[must_use]
    pub fn stop(mut self) -> Folder {
        self.terminate();
        let status = self.wait(Duration::from_secs(15));
        assert!(status.success(), "{status}:\n{}", self.messages());
        self.folder
    }
}

fn request_message(request: &str) -> String {
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
    let has = |name: &str| {
        fields.lines().any(|field| {
            let start = field.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        })
    };
    let mut message = format!("{line} HTTP/1.1\r\n");
    if !has("host:") {
        message.push_str("Host: www.example.com\r\n");
    }
    if !has("connection:") {
        message.push_str("Connection: close\r\n");
    }
    for field in fields.lines() {
        message.push_str(field);
        message.push_str("\r\n");
    }
    message.push_str("\r\n");
    message.push_str(body);
    message
}

#[derive(Debug)]
struct Process {
    child: Child,
    log: Log,
}

impl Process {
    /// `None` once it accepts connections, else how it ended.
    fn wait_until_ready(&mut self, folder: &Folder, error_log: &str) -> Option<ExitStatus> {
        let deadline = Deadline::after(START);
        loop {
            if self.log.lock().contains(READY) || folder.read(error_log).contains(READY) {
                return None;
            }
            if let Some(status) = self.wait_within(Duration::ZERO) {
                // The threads that read its output may lag behind.
                std::thread::sleep(Duration::from_millis(50));
                return Some(status);
            }
            let messages = self.log.text();
            assert!(
                !deadline.has_passed(),
                "the server does not serve:\n{messages}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Deadline::after(limit);
        loop {
            let status = self.child.try_wait().expect("nobody else waits for it");
            if status.is_some() || deadline.has_passed() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = kill_process(pid, Signal::TERM);
            if self.wait_within(Duration::from_millis(500)).is_none() {
                let _ = kill_process(pid, Signal::KILL);
                let _ = self.child.wait();
            }
        }
        // The process group includes the programs that it has started.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}
