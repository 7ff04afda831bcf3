//! The server under test as a child process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Deadline, Folder, Raw, Response, eventually, free_port, tool};

/// The end of the message by which the server says that it accepts connections.
const READY: &str = "is ready to serve requests";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

/// How many times a server is started with newly picked ports if another process has taken one of them meanwhile.
const TRIES: usize = 5;

/// The binary under test: `$H2O_BIN`, or else the one beside the tests, which is built if it does not exist.
///
/// # Panics
/// If the binary cannot be found or built.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("H2O_BIN") {
        Some(path) => path.into(),
        None => find_or_build(),
    })
}

fn find_or_build() -> PathBuf {
    // The path of a test program is TARGET/PROFILE/deps/TEST.
    let test = std::env::current_exe().expect("the path of the test program is known");
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

/// The settings of a server before it is started.
///
/// In the configuration, `@DIR@` stands for the server's directory, and `@PORT@`, as every other word in capitals that ends in `PORT`, for
/// a free TCP port.
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

/// How a server ended that exited before it accepted connections.
#[derive(Debug)]
pub struct Refused {
    /// Exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What the server has written to standard output and standard error.
    pub stderr: String,
}

impl Setup {
    /// A server with the configuration `config`, in a new directory.
    #[must_use]
    pub fn new(config: &str) -> Self {
        Self::in_folder(Folder::new(), config)
    }

    /// A server with the configuration `config`, in an existing directory.
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

    /// A server with one port for TLS over TCP and for QUIC. It serves the files in `www`. `settings` are directives of the global level,
    /// `attributes` those of the QUIC listener, and `rest` the lines after the path `/`: further paths, then further global directives.
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

    /// A server without a configuration, whose working directory is `directory` in the folder.
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

    /// Writes a file into the server's directory before it starts.
    #[must_use]
    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.folder.write(name, content);
        self
    }

    /// Sets an environment variable of the server.
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

    /// Makes the server resolve the names in `table`; [`Server::set_names`] describes its lines.
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
    /// If the server ends before it accepts connections.
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
    /// The exit status and output of a server that ended.
    ///
    /// # Panics
    /// If the server does neither in time.
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

    /// Has `command` start the server: the binary and its arguments are appended to it. It may contain the placeholders of the
    /// configuration.
    #[must_use]
    pub fn launched_by(mut self, command: &[&str]) -> Self {
        self.launcher = command.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Adds command-line arguments of the server.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The file in the folder that `error-log` names, where the server writes its startup line if not to standard error.
    fn error_log(&self) -> &str {
        let config = self.config.as_deref().unwrap_or_default();
        let named = config
            .lines()
            .find_map(|line| line.strip_prefix("error-log: @DIR@/"));
        named.unwrap_or("error-log")
    }

    /// Writes the configuration file. Returns the ports picked for its placeholders, and the launching command with its placeholders
    /// replaced.
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

/// Name of the file with the table of host names.
const NAMES: &str = "names";

fn write_names(folder: &Folder, table: &str) {
    // The table of host names is replaced atomically, because the server may read it at any time.
    let written = folder.write("names.new", table);
    std::fs::rename(written, folder.at(NAMES)).expect("the folder is writable");
}

/// Replaces the placeholders in a configuration. For each port placeholder that is not in `ports`, picks a free port and adds it.
fn fill_in(config: &str, directory: &Path, ports: &mut BTreeMap<String, u16>) -> String {
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
            let port = ports.entry(part.to_owned()).or_insert_with(free_port);
            text.push_str(&port.to_string());
        }
    }
    text
}

/// The output of a process, read line by line by threads.
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
            .expect("no thread panics while it holds the lock")
    }
}

/// A running server. The process is stopped when this value is dropped.
#[derive(Debug)]
pub struct Server {
    // The field precedes `folder`, so that it is dropped first: the process must end before its directory is removed.
    process: Process,
    /// The server's directory.
    pub folder: Folder,
    ports: BTreeMap<String, u16>,
}

impl Server {
    /// The port that was picked for the placeholder `@NAME@`.
    ///
    /// # Panics
    /// If the configuration does not have this placeholder.
    #[must_use]
    pub fn port_of(&self, name: &str) -> u16 {
        self.find_port(name)
            .unwrap_or_else(|| panic!("the configuration has no @{name}@"))
    }

    /// Replaces the table of host names that [`Setup::names`] has set. Its lines are `NAME ADDRESS`, `NAME ADDRESS PORT`, `NAME again` for
    /// a temporary failure, `NAME none` if the name does not exist, or `NAME wait` for no answer while this table is in place.
    pub fn set_names(&self, table: &str) {
        write_names(&self.folder, table);
    }

    /// The look-ups that the server's resolver has made, as lines `NAME:PORT`.
    #[must_use]
    pub fn asked_names(&self) -> String {
        self.folder.read("names.asked")
    }

    /// Like [`Server::port_of`]; `None` if the configuration does not have this placeholder.
    #[must_use]
    pub fn find_port(&self, name: &str) -> Option<u16> {
        self.ports.get(name).copied()
    }

    /// The port that was picked for `@PORT@`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port_of("PORT")
    }

    /// The URL `http://127.0.0.1:PORT` followed by `path`, where PORT is the one picked for `@PORT@`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// The process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// The server's anonymous memory in bytes. Pages of files are not counted, since they may be shared with other processes of the same
    /// binary.
    ///
    /// # Panics
    /// If the kernel does not report it.
    #[must_use]
    pub fn memory(&self) -> usize {
        let text = self.process_file("smaps_rollup");
        let kilobytes = text.lines().find_map(|line| {
            let rest = line.strip_prefix("Anonymous:")?;
            rest.trim().strip_suffix(" kB")?.parse::<usize>().ok()
        });
        kilobytes.expect("the kernel accounts memory") * 1024
    }

    /// The server's anonymous memory once it is idle, that is, has used no processor time for 100 ms.
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

    /// User and system time that the process has used, in ticks of the kernel.
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

    /// What the server has written to standard output and standard error so far.
    #[must_use]
    pub fn messages(&self) -> String {
        self.process.log.text()
    }

    /// Waits until the server's output contains `text`. Other threads read the output, so it may come late.
    ///
    /// # Panics
    /// If that does not happen within 20 seconds; the output is printed then.
    pub fn wait_for_message(&self, text: &str) {
        /// Prints the output of a server when the wait has failed.
        struct Waiting<'a>(&'a Server);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("{}", self.0.messages());
                }
            }
        }
        let _waiting = Waiting(self);
        eventually(&format!("the message `{text}`"), || {
            self.messages().contains(text).then_some(())
        });
    }

    /// Opens a connection to `@PORT@`.
    #[must_use]
    pub fn connect(&self) -> Raw {
        Raw::connect(self.port())
    }

    /// Sends a request to `@PORT@` and returns the response. `request` has a line `METHOD TARGET`, a line for each field, and after an
    /// empty line the body; `Host` and `Connection: close` are added if they are missing.
    #[must_use]
    pub fn ask(&self, request: &str) -> Response {
        let mut connection = self.connect();
        connection.send(request_message(request));
        connection.read_response(request.split(' ').next().unwrap_or_default())
    }

    /// Waits until the file `name` in the server's directory contains `text`, and returns its contents.
    #[must_use]
    pub fn read_until(&self, name: &str, text: &str) -> String {
        eventually(&format!("`{text}` in {name}"), || {
            Some(self.folder.read(name)).filter(|content| content.contains(text))
        })
    }

    /// Overwrites the configuration file. Placeholders that the previous configuration has keep their ports; new ones get free ports.
    pub fn write_config(&mut self, config: &str) {
        let text = fill_in(config, self.folder.path(), &mut self.ports);
        self.write_text(text);
    }

    /// As [`Server::write_config`], for a configuration without new port placeholders.
    ///
    /// # Panics
    /// If the configuration has new port placeholders.
    pub fn replace_config(&self, config: &str) {
        let mut ports = self.ports.clone();
        let text = fill_in(config, self.folder.path(), &mut ports);
        assert_eq!(ports, self.ports, "the configuration has further ports");
        self.write_text(text);
    }

    fn write_text(&self, text: String) {
        // The configuration file is replaced atomically, because the server may read it at any time.
        let written = self.folder.write("h2o.conf.new", text);
        std::fs::rename(written, self.folder.at("h2o.conf")).expect("the folder is writable");
    }

    /// Has the server reload its configuration, and waits until it says that it serves by the new one. Its messages must go to standard
    /// error.
    pub fn reload(&self) {
        self.hup("reloaded the configuration: ");
    }

    /// Sends SIGHUP, and waits until the server has written another message that contains `answer`.
    pub fn hup(&self, answer: &str) {
        let count = || self.messages().matches(answer).count();
        let before = count();
        self.signal(Signal::HUP);
        eventually(&format!("another message `{answer}`"), || {
            (count() > before).then_some(())
        });
    }

    /// Sends SIGTERM to the server.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends a signal to the server.
    ///
    /// # Panics
    /// If the process has already been waited for.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process.child);
        kill_process(pid, signal).expect("the process is a child of the test");
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    /// If the process does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        self.process.wait_within(limit).unwrap_or_else(|| {
            panic!(
                "the server still runs after {limit:?}:\n{}",
                self.messages()
            )
        })
    }

    /// Sends SIGTERM, waits until the server ends, and returns the folder.
    ///
    /// # Panics
    /// If the exit status is not 0.
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
    /// Waits until the server accepts connections (`None`), or ends (its exit status).
    fn wait_until_ready(&mut self, folder: &Folder, error_log: &str) -> Option<ExitStatus> {
        let deadline = Deadline::after(START);
        loop {
            if self.log.lock().contains(READY) || folder.read(error_log).contains(READY) {
                return None;
            }
            if let Some(status) = self.wait_within(Duration::ZERO) {
                // The threads that read the server's output may not have read the last lines yet.
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
            let status = self
                .child
                .try_wait()
                .expect("no other code waits for the process");
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
        // The process group includes the programs that the server has started.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}
