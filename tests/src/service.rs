//! Starts servers of other projects, which serve as backends.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Deadline, Folder, eventually, tool};

/// The process of a server. It is stopped when dropped, with the processes that it has started: those of php-fpm, for example, would outlive
/// a main process that is killed.
#[derive(Debug)]
pub struct Service {
    child: Child,
}

impl Service {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child }
    }

    /// Starts nginx with these `server` blocks, in which `@PORT@` stands for a free port and `@DIR@` for the folder. Returns the process
    /// and the port.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    #[must_use]
    pub fn nginx(folder: &Folder, servers: &str) -> (Self, u16) {
        let port = free_port();
        let workers = "worker_processes 1;";
        (Self::nginx_at(folder, servers, port, workers), port)
    }

    /// Like [`Service::nginx`], on the port given, and as a single process, so that [`kill`](Service::kill) ends all of nginx.
    ///
    /// # Panics
    /// If nginx is not installed or does not start.
    #[must_use]
    pub fn lone_nginx(folder: &Folder, servers: &str, port: u16) -> Self {
        Self::nginx_at(folder, servers, port, "master_process off;")
    }

    fn nginx_at(folder: &Folder, servers: &str, port: u16, processes: &str) -> Self {
        let dir = folder.make_dir("nginx").display().to_string();
        // The files in the folder belong to root if the test runs as root; nginx's workers must be able to read them.
        let user = if rustix::process::getuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
            .concat();
        let config = format!(
            "daemon off;\n{user}\n{processes}\npid {dir}/pid;\nerror_log {dir}/error.log;\nevents {{ worker_connections 4096; }}\n\
             http {{\naccess_log {dir}/access.log;\n{temp}default_type text/plain;\n{}\n}}\n",
            servers
                .replace("@PORT@", &port.to_string())
                .replace("@DIR@", &folder.path().display().to_string())
        );
        let config = folder.write("nginx/nginx.conf", config);
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-p").arg(&dir).arg("-c").arg(&config);
        command.arg("-e").arg(format!("{dir}/error.log"));
        let service = Self::start(&mut command);
        eventually("nginx", || TcpStream::connect(("127.0.0.1", port)).ok());
        service
    }

    /// Starts Redis on this port, with further arguments. It stores nothing on disk.
    ///
    /// # Panics
    /// If Redis is not installed or does not start.
    #[must_use]
    pub fn redis(folder: &Folder, port: u16, arguments: &[&str]) -> Self {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
        command.arg("--port").arg(port.to_string());
        command.arg("--dir").arg(folder.path());
        command.arg("--logfile").arg(folder.at("redis.log"));
        let service = Self::start(command.args(arguments));
        eventually("redis", || TcpStream::connect(("127.0.0.1", port)).ok());
        service
    }

    /// Starts memcached on this port.
    ///
    /// # Panics
    /// If memcached is not installed or does not start.
    #[must_use]
    pub fn memcached(port: u16) -> Self {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
        if rustix::process::getuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        let service = Self::start(&mut command);
        eventually("memcached", || TcpStream::connect(("127.0.0.1", port)).ok());
        service
    }

    /// Starts PHP as one FastCGI process that listens on this Unix socket.
    ///
    /// # Panics
    /// If PHP is not installed or does not start.
    #[must_use]
    pub fn php(socket: &str) -> Self {
        let mut command = Command::new("/usr/bin/php-cgi");
        let service = Self::start(command.args(["-b", socket]));
        eventually("PHP", || UnixStream::connect(socket).ok());
        service
    }

    /// Starts php-fpm on this Unix socket, which any user may connect to. Its configuration and logs are in `folder`.
    ///
    /// # Panics
    /// If php-fpm is not installed or does not start.
    #[must_use]
    pub fn php_fpm(folder: &Folder, socket: &str) -> Self {
        let programs = fs::read_dir("/usr/sbin")
            .expect("the directory exists")
            .flatten();
        let mut programs = programs.map(|entry| entry.path());
        let program = programs
            .find(|path| path.display().to_string().contains("/php-fpm"))
            .expect("php-fpm is installed");
        let user = match rustix::process::geteuid().is_root() {
            true => "user = nobody\ngroup = nogroup\n",
            false => "",
        };
        let config = folder.write(
            "php-fpm.conf",
            format!(
                "[global]\nerror_log = {}\ndaemonize = no\n[www]\n{user}listen = {socket}\nlisten.mode = 0666\npm = static\npm.max_children = 3\nping.path = /ping\naccess.log = {}\naccess.format = \"%m %r %s\"\n",
                folder.name_of("php-fpm.log"),
                folder.name_of("php-fpm.access")
            ),
        );
        let service = Self::start(Command::new(program).arg("-y").arg(config));
        eventually("php-fpm", || UnixStream::connect(socket).ok());
        service
    }

    /// Starts the program `fastcgi-cgi`, which runs CGI scripts, on this Unix socket, which any user may connect to. `log` gets its
    /// standard error.
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn cgi(program: &str, socket: &str, options: &[&str], log: &Path) -> Self {
        let log = File::create(log).expect("the folder is writable");
        let mut command = Command::new(program);
        command.arg(format!("--listen={socket}")).args(options);
        let service = Self::start(command.stderr(log));
        eventually("the gateway to accept connections", || {
            UnixStream::connect(socket).ok()
        });
        let all = Permissions::from_mode(0o777);
        fs::set_permissions(socket, all).expect("the test owns the file");
        service
    }

    /// Sends SIGTERM to the process, and waits until it ends.
    ///
    /// # Panics
    /// If its exit status is not 0.
    pub fn terminate(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .expect("the process is a child of the test");
        let status = self
            .child
            .wait()
            .expect("no other code waits for the process");
        assert!(status.success(), "{status}");
    }

    /// Stops the process by SIGSTOP: the kernel still accepts connections for it, but the process answers none.
    ///
    /// # Panics
    /// If the process has ended before.
    pub fn freeze(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("the process is a child of the test");
    }

    /// Kills the process (SIGKILL), and those that it has started.
    ///
    /// # Panics
    /// If the process has ended before.
    pub fn kill(mut self) {
        self.child
            .kill()
            .expect("no code has waited for the process before");
        self.child
            .wait()
            .expect("no other code waits for the process");
    }

    /// Starts the backend `tests/clients/go-backend` with the certificate of this name in the folder. Returns the process, its port in
    /// cleartext and its port with TLS.
    ///
    /// # Panics
    /// If the backend cannot be built or does not start.
    #[must_use]
    pub fn go(folder: &Folder, certificate: &str) -> (Self, u16, u16) {
        let mut command = Command::new(tool("go-backend"));
        command.arg(folder.at(&format!("{certificate}.crt")));
        command.arg(folder.at(&format!("{certificate}.key")));
        command.stdout(Stdio::piped());
        let (service, numbers) = Self::start_and_read_ports(&mut command);
        let [http, https] = numbers[..] else {
            panic!("the program printed other numbers than two ports: {numbers:?}");
        };
        (service, http, https)
    }

    /// Starts the backend `tests/clients/http3_backend.py` with the certificate of this name in the folder. Returns the process and its UDP
    /// port.
    ///
    /// # Panics
    /// If the backend does not start.
    #[must_use]
    pub fn aioquic(folder: &Folder, certificate: &str) -> (Self, u16) {
        Self::aioquic_with(folder, certificate, &[])
    }

    /// As [`Service::aioquic`], with further arguments.
    ///
    /// # Panics
    /// If the backend does not start.
    #[must_use]
    pub fn aioquic_with(folder: &Folder, certificate: &str, options: &[&str]) -> (Self, u16) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/http3_backend.py");
        let mut command = Command::new(tool("aioquic/bin/python3"));
        command.arg(script);
        command.arg(folder.at(&format!("{certificate}.crt")));
        command.arg(folder.at(&format!("{certificate}.key")));
        command.args(options);
        command.stdout(Stdio::piped());
        let (service, numbers) = Self::start_and_read_ports(&mut command);
        let [port] = numbers[..] else {
            panic!("the program printed other numbers than one port: {numbers:?}");
        };
        (service, port)
    }

    /// Starts Caddy with TLS over TCP and QUIC on this port, with the certificate of this name in the folder. `site` has the directives of
    /// its only site; `@DIR@` in it stands for the folder.
    ///
    /// # Panics
    /// If Caddy is not installed or does not start.
    #[must_use]
    pub fn caddy(folder: &Folder, certificate: &str, site: &str, port: u16) -> Self {
        let dir = folder.path().display().to_string();
        let site = site.replace("@DIR@", &dir);
        let config = format!(
            "{{
    admin off
    auto_https off
    servers {{
        protocols h1 h2 h3
    }}
}}
https://127.0.0.1:{port} {{
    bind 127.0.0.1
    tls {dir}/{certificate}.crt {dir}/{certificate}.key
{site}
}}
"
        );
        let config = folder.write("caddy/Caddyfile", config);
        let mut command = Command::new("/usr/bin/caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]);
        command.arg(config).env("HOME", folder.at("caddy"));
        command.stderr(Stdio::null());
        let service = Self::start(&mut command);
        eventually("caddy", || TcpStream::connect(("127.0.0.1", port)).ok());
        service
    }

    /// Starts the gRPC server in `tests/clients/grpc-check`. Returns the process and its port in cleartext.
    ///
    /// # Panics
    /// If the server cannot be built or does not start.
    #[must_use]
    pub fn grpc() -> (Self, u16) {
        let mut command = Command::new(tool("grpc-check"));
        command.arg("serve").stdout(Stdio::piped());
        let (service, numbers) = Self::start_and_read_ports(&mut command);
        let [port] = numbers[..] else {
            panic!("the program printed other numbers than one port: {numbers:?}");
        };
        (service, port)
    }

    /// Starts the certificate authority in `tests/clients/acme-ca`, which validates host names by HTTP at this port of 127.0.0.1. Returns
    /// the process and the authority's port.
    ///
    /// # Panics
    /// If the authority cannot be built or does not start.
    #[must_use]
    pub fn acme(http_port: u16) -> (Self, u16) {
        Self::acme_with(&[], http_port)
    }

    /// As [`Service::acme`], with these command-line options.
    ///
    /// # Panics
    /// If the authority cannot be built or does not start.
    #[must_use]
    pub fn acme_with(options: &[&str], http_port: u16) -> (Self, u16) {
        let mut command = Command::new(tool("acme-ca"));
        command.args(options).arg(http_port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let (service, numbers) = Self::start_and_read_ports(&mut command);
        let [port] = numbers[..] else {
            panic!("the program printed other numbers than one port: {numbers:?}");
        };
        (service, port)
    }

    /// Starts the backend in `tests/clients/one_at_a_time.py`, whose large responses have `length` bytes. Returns the process and its port.
    ///
    /// # Panics
    /// If the backend does not start.
    #[must_use]
    pub fn one_at_a_time(length: usize) -> (Self, u16) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/one_at_a_time.py");
        let mut command = Command::new("/usr/bin/python3");
        command
            .arg(script)
            .arg(length.to_string())
            .stdout(Stdio::piped());
        let (service, numbers) = Self::start_and_read_ports(&mut command);
        let [port] = numbers[..] else {
            panic!("the program printed other numbers than one port: {numbers:?}");
        };
        (service, port)
    }

    /// Starts a server that prints its ports in the first line of its output. Returns the process and the ports.
    fn start_and_read_ports(command: &mut Command) -> (Self, Vec<u16>) {
        let mut service = Self::start(command);
        let stdout = service.child.stdout.take().expect("the stream is a pipe");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the server prints its ports");
        let numbers = line.split(|c: char| !c.is_ascii_digit());
        let numbers = numbers.filter_map(|number| number.parse().ok()).collect();
        (service, numbers)
    }
}

/// A port of 127.0.0.1 that no program listens on, for TCP and UDP. No port is returned twice in a process. The ports are below those
/// that the kernel gives to connections and to programs that ask for any port (`net.ipv4.ip_local_port_range`), so that none of them
/// takes the port before the test uses it.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u32 = 22_000;
    static PICKED: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| {
        let address = ("127.0.0.1", *port);
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    // Each test process begins with another port: connections of an earlier test process to the first ports may not be closed yet.
    let begin = std::process::id().wrapping_mul(97);
    let mut ports = (0..COUNT).map(|_| {
        let place = begin.wrapping_add(PICKED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        FIRST + u16::try_from(place).expect("the number of ports fits into a u16")
    });
    ports.find(is_free).expect("a port is free")
}

impl Drop for Service {
    fn drop(&mut self) {
        let deadline = Deadline::after(Duration::from_secs(5));
        while !matches!(self.child.try_wait(), Ok(Some(_))) {
            let signal = if deadline.has_passed() {
                Signal::KILL
            } else {
                Signal::TERM
            };
            let _ = kill_process(Pid::from_child(&self.child), signal);
            std::thread::sleep(Duration::from_millis(5));
        }
        // The process group includes the processes that the server has started.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}
