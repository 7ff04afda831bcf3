"""The servers: a TOML file and a configuration template each, in `servers/`."""

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

READY_LIMIT = 10.0


class ServerFailed(Exception):
    """The server did not start, or does not answer as it should."""


def fill_in(template, values):
    """Replaces @name@ by its value; a name that is not known is an error."""
    return re.sub(r"@(\w+)@", lambda match: str(values[match[1]]), template)


@dataclass
class Server:
    """One kind of server, and how to start it."""

    name: str
    title: str
    own: bool
    binary: str | None
    wanted: str
    version_args: list
    command: list
    template: str
    colour: list = field(default_factory=lambda: ["#888888", "#888888"])

    @classmethod
    def load(cls, path, override=None):
        with path.open("rb") as file:
            spec = tomllib.load(file)
        wanted = override or spec["binary"]
        return cls(
            name=path.stem,
            title=spec["title"],
            own=spec["role"] == "own",
            binary=shutil.which(wanted),
            wanted=wanted,
            version_args=spec["version"],
            command=spec["command"],
            template=(path.parent / spec["config"]).read_text(),
            colour=spec["colour"],
        )

    def version(self):
        return machine.first_line([self.binary, *self.version_args]) or "unknown version"


class Running:
    """A server process with its own directory and ports. A context manager."""

    def __init__(self, server, site, core):
        self.server = server
        self.http_port, self.https_port, self.h2c_port = free_ports(3)
        if "@h2c_port@" not in server.template:
            # It tells HTTP/1 and HTTP/2 apart by the first octets.
            self.h2c_port = self.http_port
        self.dir = site.new_dir(server.name)
        values = {
            "dir": self.dir,
            "config": self.dir / "server.conf",
            "root": site.root,
            "cert": site.cert,
            "key": site.key,
            "http_port": self.http_port,
            "https_port": self.https_port,
            "h2c_port": self.h2c_port,
        }
        values["config"].write_text(fill_in(server.template, values))
        command = [os.path.abspath(server.binary), *(fill_in(arg, values) for arg in server.command)]
        self.log = self.dir / "stderr"
        with self.log.open("wb") as log:
            self.process = process.spawn(command, core, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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

    def ask(self, scheme, path, protocol="h1"):
        """One request on a new connection: status, length of head, length of body."""
        return self.ask_h2(scheme, path) if protocol == "h2" else self.ask_h1(scheme, path)

    def ask_h2(self, scheme, path):
        try:
            with socket.create_connection(("127.0.0.1", self.port(scheme, "h2")), timeout=10) as sock:
                if scheme == "https":
                    context = ssl._create_unverified_context()  # the certificate is our own
                    context.set_alpn_protocols(["h2"])
                    sock = context.wrap_socket(sock)
                    if sock.selected_alpn_protocol() != "h2":
                        raise ServerFailed(f"{self.server.name} does not choose HTTP/2")
                answer = http2.ask(sock, scheme, "127.0.0.1", path)
                sock.close()
        except (OSError, http2.Refused) as error:
            raise ServerFailed(f"{self.server.name} does not answer {path} by HTTP/2: {error}") from None
        return answer

    def ask_h1(self, scheme, path):
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        try:
            with socket.create_connection(("127.0.0.1", self.port(scheme)), timeout=10) as sock:
                if scheme == "https":
                    context = ssl._create_unverified_context()  # the certificate is our own
                    sock = context.wrap_socket(sock)
                sock.sendall(request)
                received = b"".join(iter(lambda: sock.recv(65536), b""))
                sock.close()
        except OSError as error:
            raise ServerFailed(f"{self.server.name} does not answer {path}: {error}") from None
        head, _, body = received.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        if not status:
            raise ServerFailed(f"{self.server.name} answers {path} with {head[:60]!r}")
        return int(status[1]), len(head) + 4, len(body)


def free_ports(count):
    """Ports that nobody listens on. Held together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def load_all(directory, own_binary=None):
    """Every server, our own first, the others by name."""
    servers = []
    for path in sorted(Path(directory).glob("*.toml")):
        server = Server.load(path)
        if server.own and own_binary:
            server = Server.load(path, own_binary)
        servers.append(server)
    return sorted(servers, key=lambda server: (not server.own, server.name))
