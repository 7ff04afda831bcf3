"""The servers: a TOML file and a configuration template each, in `servers/`."""

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from . import http2, machine, process
from .cases import FASTCGI, VERSIONS

READY_LIMIT = 10.0
ANSWER_LIMIT = 10.0
ROLES = ("own", "peer", "floor")


class ServerFailed(Exception):
    """The server did not start, or does not answer as expected."""


def fill_in(template, values):
    """Replaces each @name@ by its value; an unknown name is an error."""
    return re.sub(r"@(\w+)@", lambda match: str(values[match[1]]), template)


def host_name(index):
    """Name of the host with this index, of those that are configured besides the default host."""
    return f"host-{index:04}.example"


@dataclass
class Server:
    """A kind of server, and how it is started."""

    name: str
    title: str
    role: str
    binary: str | None
    wanted: str
    version_args: list
    command: list
    template: str
    colour: list = field(default_factory=lambda: ["#888888", "#888888"])
    # The server's configuration as a proxy; `@backend_port@` stands for the port of the backend.
    proxy_template: str = ""
    # The server's configuration in front of a FastCGI application; `@backend_port@` stands for the port of the application.
    fastcgi_template: str = ""
    # The command that starts the server in front of a FastCGI application; if it is empty, that is `command`.
    fastcgi_command: list = field(default_factory=list)
    # The text for `@compress@` in the template, by the content coding of the case; `@level@` in it stands for the level.
    compress: dict = field(default_factory=dict)
    # The command that starts the server as a proxy; if it is empty, that is `command`.
    proxy_command: list = field(default_factory=list)
    # Whether the server takes part only in cases with a backend, in which it is a proxy.
    proxy_only: bool = False
    # If this is not empty, the server takes part only in cases that need it; see `Case.needs`.
    only: str = ""
    # Path of a file of the system that the server needs besides its program.
    requires: str = ""
    # How the server is built in a directory of bench/, if the program that builds it is installed; see `build`.
    built: dict = field(default_factory=dict)
    # What the server does not support, with the reason; the names are those of `Case.needs`.
    lacks: dict = field(default_factory=dict)
    # The text for `@tls@` in the template, by the only TLS version that the server is then to speak.
    tls: dict = field(default_factory=dict)
    # The text for one host in `@hosts@` of the template; `@host@` stands for the host's name.
    host: str = ""
    # Environment variables of the server in addition to those of the runner.
    environment: dict = field(default_factory=dict)
    # Files in the server's directory in addition to its configuration.
    files: dict = field(default_factory=dict)
    # Whether the server takes part in the daily subset of the benchmarks.
    quick: bool = False

    @property
    def own(self):
        return self.role == "own"

    @classmethod
    def load(cls, path, override=None):
        with path.open("rb") as file:
            spec = tomllib.load(file)
        if spec.get("role") not in ROLES:
            raise ValueError(f"{path.name}: role must be one of {', '.join(ROLES)}")
        try:
            wanted = override or spec.pop("binary")
            binary, required = shutil.which(wanted), spec.get("requires")
            if required and not Path(required).exists():
                wanted, binary = required, None
            return cls(
                name=path.stem,
                binary=binary,
                wanted=wanted,
                version_args=spec.pop("version"),
                template=(path.parent / spec.pop("config")).read_text() if "config" in spec else "",
                proxy_template=(path.parent / spec.pop("proxy_config")).read_text() if "proxy_config" in spec else "",
                fastcgi_template=(path.parent / spec.pop("fastcgi_config")).read_text() if "fastcgi_config" in spec else "",
                **{key: value for key, value in spec.items() if key != "binary"},
            )
        except KeyError as error:
            raise ValueError(f"{path.name}: {error} is missing") from None
        except TypeError as error:
            raise ValueError(f"{path.name}: {error}") from None

    def version(self):
        if not self.version_args:
            return "of this tree"
        return machine.first_line([self.binary, *self.version_args]) or "unknown version"

    def build(self):
        """Builds the server, if it is one that is built here. Returns why that is not possible, or None."""
        if not self.built:
            return None
        program, *arguments = self.built["command"]
        if not shutil.which(program):
            return f"{program} is not installed"
        target = Path(self.wanted).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [program, *(fill_in(argument, {"target": target}) for argument in arguments)]
        directory = Path(__file__).parents[1] / self.built["directory"]
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
        if made.returncode:
            return (made.stderr.strip().splitlines() or [f"{program} failed"])[-1]
        self.binary = shutil.which(self.wanted)
        return None

    def takes_part(self, case):
        """Whether the server's role fits the case."""
        if self.role == "floor":
            return case.floor
        if self.only and self.only not in case.needs():
            return False
        return bool(case.backend) or not self.proxy_only

    def left_out(self, case):
        """Why the server cannot take part in the case, or None if it can."""
        if case.backend == FASTCGI and not (self.fastcgi_template or self.fastcgi_command):
            return "not compared as a server in front of FastCGI applications"
        if case.coding and case.coding not in self.compress:
            return f"does not compress by {case.coding} here"
        return next((self.lacks[need] for need in sorted(case.needs()) if need in self.lacks), None)


@dataclass(frozen=True)
class Setup:
    """The settings in which the configurations of a server differ between cases."""

    tls: str = "1.3"
    hosts: int = 0
    # Name of the backend that it is a proxy for; empty if it serves files.
    backend: str = ""
    # The content coding in which the server compresses files, and its level; the coding is empty if it does not compress.
    coding: str = ""
    level: int = 0

    @classmethod
    def of(cls, case):
        return cls(case.tls, case.hosts, case.backend, case.coding, case.level)

    def values(self, server):
        hosts = range(self.hosts)
        return {
            "tls": server.tls.get(self.tls, ""),
            "compress": server.compress[self.coding].replace("@level@", str(self.level)) if self.coding else "",
            "hosts": "".join(server.host.replace("@host@", host_name(index)) for index in hosts),
        }


class Running:
    """A server process with its own directory and ports. A context manager.

    `backend` is the running server that it forwards to, if it is started as a proxy.
    """

    def __init__(self, server, site, core, setup=Setup(), backend=None):
        self.server = server
        template, command = server.template, server.command
        if backend:
            template, command = server.proxy_template, server.proxy_command or server.command
            if setup.backend == FASTCGI:
                template, command = server.fastcgi_template, server.fastcgi_command or server.command
        self.http_port, self.https_port, self.h2c_port = free_ports(3)
        if not any("@h2c_port@" in text for text in (template, *command)):
            # The server recognises HTTP/1 and HTTP/2 by the first octets of a connection, so both use one port.
            self.h2c_port = self.http_port
        if not any("@https_port@" in text for text in (template, *command)):
            # The floor program has no TLS in front of a FastCGI application.
            self.https_port = self.http_port
        self.dir = site.new_dir(server.name)
        values = {
            "dir": self.dir,
            "config": self.dir / "server.conf",
            "root": site.root,
            "host_root": site.host_root,
            "cert": site.cert,
            "key": site.key,
            "pem": site.pem,
            "http_port": self.http_port,
            "https_port": self.https_port,
            "h2c_port": self.h2c_port,
        }
        if backend:
            values["backend_port"] = backend.http_port
        # These texts contain names of other values.
        values |= {name: fill_in(text, values) for name, text in setup.values(server).items()}
        values["config"].write_text(fill_in(template, values))
        for name, text in server.files.items():
            (self.dir / name).write_text(fill_in(text, values))
        environment = os.environ | {name: fill_in(text, values) for name, text in server.environment.items()}
        command = [os.path.abspath(server.binary), *(fill_in(arg, values) for arg in command)]
        self.log = self.dir / "stderr"
        with self.log.open("wb") as log:
            self.process = process.spawn(
                command, core, cwd=self.dir, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.wait_until_ready()
        except ServerFailed:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        process.stop(self.process)

    def port(self, scheme, protocol="h1"):
        if scheme == "https":
            return self.https_port
        return self.h2c_port if protocol == "h2" else self.http_port

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_LIMIT
        for port in (self.http_port, self.https_port, self.h2c_port):
            while True:
                if self.process.poll() is not None:
                    raise ServerFailed(f"{self.server.name} ended at once: {self.last_words()}")
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise ServerFailed(f"{self.server.name} does not listen: {self.last_words()}") from None
                    time.sleep(0.05)

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def ask(self, case):
        """Sends the case's request on a new connection. Returns status, length of head, length of body."""
        if case.protocol == "h3":
            return self.ask_h3(case)
        host = asked_host(case)
        more = f"Accept-Encoding: {case.coding}\r\n" if case.coding else ""
        deadline = time.monotonic() + ANSWER_LIMIT
        try:
            with socket.create_connection(("127.0.0.1", self.port(case.scheme, case.protocol)), timeout=5) as sock:
                if case.scheme == "https":
                    context = ssl._create_unverified_context()  # the harness made the certificate itself
                    context.set_alpn_protocols(["h2" if case.protocol == "h2" else "http/1.1"])
                    sock = context.wrap_socket(sock)
                    if sock.version() != VERSIONS[case.tls]:
                        raise ServerFailed(f"{self.server.name} speaks {sock.version()}, not TLS {case.tls}")
                    if case.protocol == "h2" and sock.selected_alpn_protocol() != "h2":
                        raise ServerFailed(f"{self.server.name} does not choose HTTP/2")
                with sock:
                    if case.protocol == "h2":
                        return http2.ask(sock, case.scheme, host, case.path, deadline)
                    status, head, body = self.ask_h1(sock, host, case.path, deadline, more)
                    if case.coding and f"\r\ncontent-encoding: {case.coding}\r\n".encode() not in head.lower():
                        raise ServerFailed(f"{self.server.name} does not compress {case.path} by {case.coding}")
                    return status, len(head), body
        except (OSError, http2.Refused) as error:
            raise ServerFailed(f"{self.server.name} does not answer {case.path}: {error}") from None

    def ask_h3(self, case):
        from .drivers import H3load  # imported here, because that module imports this one

        command = [H3load.needs, "127.0.0.1", str(self.https_port), "ask", case.path]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_LIMIT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerFailed(f"{self.server.name} does not answer {case.path}: {error}") from None
        if asked.returncode:
            raise ServerFailed(f"{self.server.name} does not answer {case.path}: {asked.stderr.strip()}")
        told = json.loads(asked.stdout)
        return told["status"], told["head"], told["body"]

    def ask_h1(self, sock, host, path, deadline, more=""):
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode())
        received = bytearray()
        while octets := sock.recv(65536):
            received += octets
            if time.monotonic() > deadline:
                raise TimeoutError("the answer does not end")
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        if not status:
            raise ServerFailed(f"{self.server.name} answers {path} with {head[:60]!r}")
        return int(status[1]), head + b"\r\n\r\n", len(body)


def asked_host(case):
    """The host that requests of a case name: the last of those configured."""
    return host_name(case.hosts - 1) if case.hosts else "127.0.0.1"


def free_ports(count):
    """Ports that are free for both TCP and UDP. They are held until all are found, so that they differ."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < count:
            tcp, udp = (held.enter_context(socket.socket(type=kind)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            ports.append(tcp.getsockname()[1])
        return ports


def serve(stack, command, core):
    """Starts a server, pinned to `core`, and waits until it listens. It is stopped with `stack`.

    `command` is a function from the port to listen on to the words of the command. Returns the process and the port.
    """
    (port,) = free_ports(1)
    server = process.spawn(command(port), core, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.stop, server)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, port
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server does not serve") from None
            time.sleep(0.05)


def load_all(directory, own_binary=None):
    """Every server: this project's first, then the peers by name, the floor program last."""
    servers = []
    for path in sorted(Path(directory).glob("*.toml")):
        server = Server.load(path)
        if own_binary and server.own:
            server = Server.load(path, own_binary)
        if own_binary and server.role == "floor":
            # The floor program is built beside this project's server, if it is built at all.
            beside = Path(own_binary).parent / Path(server.wanted).name
            server = Server.load(path, str(beside)) if beside.exists() else server
        servers.append(server)
    return sorted(servers, key=lambda server: (ROLES.index(server.role), server.name))
