#!/usr/bin/env python3
"""Interoperation over HTTP/3: the binary against clients on four other stacks, in the cases of the table below.

Each case has a server of its own and, except for the largest file, a relay (relay.py) between server and client, which
simulates the network path and reports what it saw. Prints a table of the outcomes; the exit code is 1 if any case failed.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from backend import Backend

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
TOOLS = TOP / "target/tools"
PATIENCE = 300
HUGE = 100_000_000

CLIENTS = {
    "aioquic": [TOOLS / "aioquic/bin/python3", HERE.parent / "clients/http3.py"],
    "quic-go": [TOOLS / "quic-go"],
    "quiche": [TOOLS / "quiche"],
    "chromium": [sys.executable, HERE / "chromium.py"],
}


# Clients that report ECN counts of received packets to the server (RFC 9000 section 13.4.1).
REPORTS_MARKS = ("quic-go", "chromium")


class Failure(Exception):
    """A case failed; the text says why."""


def expect(is_true, message):
    if not is_true:
        raise Failure(message)


@dataclass
class Seen:
    """What relay, server and backend have recorded when the client has ended successfully."""

    client: str
    # The report that the relay printed: see `report` in relay.py.
    wire: dict
    # Lines of the access log: method, path, protocol, status, then fields `name=value`.
    log: list[str]
    # Number of requests that reached the backend with `early-data: 1`.
    early_requests: int

    def sent(self, kind):
        return self.wire["to_server"]["kinds"].get(kind, 0)

    def came(self, kind):
        return self.wire["to_client"]["kinds"].get(kind, 0)

    def values(self, name):
        return {word.removeprefix(name + "=") for line in self.log for word in line.split() if word.startswith(name + "=")}


@dataclass
class Case:
    # Name of the case in the printed table.
    title: str
    # Name of the conversation that the client runs.
    conversation: str
    # Options of the relay. Without any, it passes on every datagram.
    path: str = ""
    # Directives of the server at the global level, and (`listener`) attributes of its QUIC listener.
    settings: str = ""
    listener: str = ""
    # Name of the certificate chain that the server uses.
    chain: str = "site"
    has_relay: bool = True
    check: Callable[[Seen], None] = lambda seen: None


def check_handshake(seen):
    expect(seen.sent("handshake") and seen.came("handshake"), "client or server sent no Handshake packet")


def check_get(seen):
    expect(seen.values("v") == {"1"}, f"QUIC versions in the access log: {seen.values('v')}")
    expect(seen.values("resumed") == {"0"}, "a first connection was resumed")


def check_retry(seen):
    expect(seen.came("retry"), "the client got no Retry packet")


def check_resumption(seen):
    expect(seen.values("resumed") == {"0", "1"}, f"resumed: {seen.values('resumed')}")


def check_early_data(seen):
    check_resumption(seen)
    expect(seen.sent("0rtt"), "the client sent no 0-RTT packet")
    expect(seen.early_requests, "the backend had no request with `early-data: 1`")


def check_migration(seen):
    expect(seen.wire["clients"] >= 2, "the client kept its port")
    expect(len(seen.values("connection")) == 1, "the client made another connection")


def check_rebinding(seen):
    expect(seen.wire["rebindings"] >= 2, f"the relay changed the client's port {seen.wire['rebindings']} times")
    expect(len(seen.values("connection")) == 1, "the client made another connection")


def check_losses(seen):
    expect(seen.wire["to_client"]["lost"], "the relay lost no datagram to the client")


def check_ecn(seen):
    to_client = seen.wire["to_client"]
    expect(to_client["marked"], "the server sends no datagram with an ECN mark")
    if seen.client in REPORTS_MARKS:
        expect(to_client["marked_of_last_20"] >= 15, "the server stopped sending ECN marks")
    else:
        # Without ECN counts from the client, ECN validation fails, and the server must stop marking (RFC 9000 section 13.4.2).
        expect(to_client["marked_of_last_20"] == 0, "the server still sends ECN marks although the client reports none")


def check_long_hello(seen):
    expect(seen.wire["hello_datagrams"] >= 2, "the ClientHello came in one datagram")


def check_versions(seen):
    expect(seen.came("versions"), "the client got no Version Negotiation packet")
    expect(seen.values("v") == {"1"}, f"QUIC versions in the access log: {seen.values('v')}")


def check_amplification(seen):
    expect(seen.wire["amplification"] > 2, f"the server did not reach the amplification limit of 3: it sent {seen.wire['amplification']} times what it had received")


def check_websocket(seen):
    lines = [line for line in seen.log if "/backend/websocket" in line]
    expect(lines and all(" HTTP/3 " in line for line in lines), f"the requests for the WebSocket in the access log: {lines}")


def check_idle(seen):
    expect(len(seen.values("connection")) == 2, f"connections: {seen.values('connection')}")


# A short idle timeout, so that a browser, which keeps its connections, opens a new one.
BRIEF = "http3-idle-timeout: 1"

# Options of the relay for a link slow enough that the order of responses is visible.
SLOW = "--rate 300000 --queue 50000 --delay 20"

# Options of the relay for a path with a few lost, late and duplicate datagrams.
ROUGH = "--loss 0.01 --late 0.02 --duplicate 0.02 --delay 2 --seed 56"

CASES = [
    Case("handshake", "handshake", check=check_handshake),
    Case("GET", "get", check=check_get),
    Case("Retry", "get", listener="quic: { retry: ON }", check=check_retry),
    Case("version negotiation", "versions", check=check_versions),
    Case("ClientHello in two packets", "long_hello", "--delay 10", check=check_long_hello),
    Case("amplification limit", "get", "--mute-seconds 1 --delay 20", chain="long", check=check_amplification),
    Case("resumption", "late_resumption", settings=BRIEF, check=check_resumption),
    Case("0-RTT", "early_data", "--delay 50", settings=BRIEF, check=check_early_data),
    Case("key update", "key_update"),
    Case("migration to a new port", "migration", "--delay 5 --cut-after 100", check=check_migration),
    Case("NAT rebinding", "download", "--rebind-after 200 --rebindings 3", check=check_rebinding),
    Case("loss of 5 %", "download", "--loss 0.05 --delay 5 --seed 12", check=check_losses),
    Case("blackhole of 2 s", "download", "--hole-after 300 --hole-seconds 2 --delay 5", check=check_losses),
    Case("reordering, duplicates", "download", "--late 0.1 --duplicate 0.1 --delay 5 --seed 34"),
    Case("ECN", "download", "--congested 0.02 --delay 5", check=check_ecn),
    Case("1,200 requests", "requests", ROUGH),
    Case("100 MB", "huge", has_relay=False),
    Case("upload through proxy", "upload", ROUGH),
    Case("HEAD, 304, ranges", "semantics"),
    Case("trailers", "trailers"),
    Case("cancellation", "cancelled"),
    Case("priorities", "priorities", SLOW),
    Case("WebSocket", "websocket", check=check_websocket),
    Case("idle timeout", "idle", settings=BRIEF, check=check_idle),
    Case("graceful shutdown", "shutdown", "--rate 2000000 --delay 5"),
]

# Conversations that a client cannot run, with the reason, by the names of the client and of the conversation.
NOT_OFFERED = {
    ("chromium", "trailers"): "no interface shows trailers to a page",
}

# Remarks that are printed below the table of outcomes, by the names of the client and of the conversation.
REMARKS = {
    ("aioquic", "semantics"): "without HEAD: aioquic ends the connection when an answer to HEAD has a content-length",
    ("aioquic", "key_update"): "begun by the client",
    ("quic-go", "key_update"): "begun by the client after 100 packets",
    ("quiche", "key_update"): "begun by the server; quiche never begins",
    ("chromium", "key_update"): "begun by the server",
    ("aioquic", "versions"): "asks for version 2, goes on with 1",
    ("quic-go", "versions"): "asks for version 2, goes on with 1",
    ("quiche", "versions"): "asks for a reserved version, as quiche has no other, and goes on with 1",
    ("chromium", "versions"): "asks for version 2, gets Version Negotiation, and by design uses no QUIC for the site any more",
    ("chromium", "migration"): "the browser changes its port by itself when nothing passes",
    ("chromium", "websocket"): "with the browser's feature EnableWebsocketsOverHttp3, which is off unless one sets it",
}

CONFIG = """
{settings}
num-threads: 2
listen: &tls
  host: 127.0.0.1
  port: {port}
  ssl: {{ certificate-file: {shared}/{chain}.crt, key-file: {shared}/site.key }}
listen:
  <<: *tls
  type: quic
  {listener}
hosts:
  default:
    paths:
      /: {{ file.dir: {shared}/www }}
      /go: {{ proxy.reverse.url: "https://127.0.0.1:{go}/", proxy.ssl.verify-peer: OFF, proxy.http2.ratio: 100 }}
      /backend: {{ proxy.reverse.url: "http://127.0.0.1:{backend}/", proxy.tunnel: ON }}
access-log:
  path: {folder}/access-log
  format: '%m %U %H %s v=%{{http3.quic-version}}x resumed=%{{ssl.session-reused}}x connection=%{{connection-id}}x'
"""


def prepare(folder):
    """Makes the certificates and files that all cases use. Returns the hash of the largest file."""
    # The server changes to an unprivileged user, who must be able to read the folder.
    folder.chmod(0o755)
    www = folder / "www"
    # The files that are served: the example site, and files that cases need.
    shutil.copytree(TOP / "examples/site", www)
    (www / "part").mkdir()
    (www / "hello.txt").write_text("hello, world")
    (www / "large").write_bytes(b"".join(b"%07x " % n for n in range(50_000)))
    for n in range(4):
        (www / f"part/{n}").write_bytes(bytes([n]) * 250_000)
    (www / "page.html").write_text("<!DOCTYPE html><title>page</title>")
    # A page that requests six images first and a style sheet after them.
    images = "".join(f"<link rel=preload as=image href=/part/{n}.bmp>" for n in range(6))
    shown = "".join(f"<img src=/part/{n}.bmp>" for n in range(6))
    page = f"<!DOCTYPE html><title>page</title>{images}<link rel=stylesheet href=/part/style.css><body>{shown}"
    (www / "priorities.html").write_text(page)
    (www / "part/style.css").write_text("body { color: black }\n" * 3000)
    for n in range(6):
        (www / f"part/{n}.bmp").write_bytes(noise(180))
    sum_of_huge = hashlib.sha256()
    with open(www / "huge", "wb") as huge:
        for _ in range(HUGE // 1_000_000):
            piece = os.urandom(1_000_000)
            huge.write(piece)
            sum_of_huge.update(piece)
    make_certificate(folder, "site", "localhost,IP:127.0.0.1")
    # A certificate chain that is longer than what the server may send before the client's address is validated. The certificates after the
    # first are fillers, which sign nothing.
    chain = (folder / "site.crt").read_text()
    for n in range(3):
        make_certificate(folder, f"filler-{n}", ",DNS:".join(f"no-such-host-{k:03}.h2o.invalid" for k in range(100)))
        chain += (folder / f"filler-{n}.crt").read_text()
    (folder / "long.crt").write_text(chain)
    return sum_of_huge.hexdigest()


def noise(side):
    """An uncompressed picture of random points, `side` by `side`, with 3 bytes for each."""
    sizes = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 3 * side * side, 2835, 2835, 0, 0)
    return struct.pack("<2sIII", b"BM", 54 + 3 * side * side, 0, 54) + sizes + os.urandom(3 * side * side)


def make_certificate(folder, name, hosts):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "10", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{hosts}"]
    command += ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    subprocess.run(command, check=True, capture_output=True)


def free_port():
    """Returns a port that is free for both TCP and UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            return tcp.getsockname()[1]


class Server:
    """The h2o process, with the configuration of its case."""

    def __init__(self, binary, folder, case, shared, backend, go_backend):
        self.port = free_port()
        self.folder = folder
        config = CONFIG.format(
            settings=case.settings,
            listener=case.listener,
            chain=case.chain,
            port=self.port,
            backend=backend,
            go=go_backend,
            shared=shared,
            folder=folder,
        )
        (folder / "h2o.conf").write_text(config)
        self.output = open(folder / "messages", "wb")
        self.process = subprocess.Popen(
            [binary, "-c", folder / "h2o.conf"], stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output
        )
        self.wait_until_it_listens()

    def wait_until_it_listens(self):
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                is_hopeless = self.process.poll() is not None or time.monotonic() > until
                if is_hopeless:
                    self.process.kill()
                    raise Failure(f"the server does not start: {self.messages()}") from None
                time.sleep(0.02)

    def messages(self):
        return (self.folder / "messages").read_text()

    def log(self):
        return (self.folder / "access-log").read_text().splitlines()

    def end(self):
        """Sends SIGTERM; the server must end by itself. Returns what went wrong, or `None`."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "the server does not end"
        finally:
            self.output.close()
        if code != 0 or "panicked" in self.messages():
            return f"the server ended with {code}: {self.messages()}"
        return None


class Relay:
    def __init__(self, options, server):
        command = [sys.executable, HERE / "relay.py", "--server", str(server), *options.split()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def end(self):
        """Ends the relay and returns its report."""
        out, _ = self.process.communicate()
        return json.loads(out)


@contextmanager
def go_backend(shared):
    """Runs a backend that speaks HTTP/2. Yields its port."""
    command = [TOOLS / "go-backend", shared / "site.crt", shared / "site.key"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())["https"]
        process.stdin.close()


class Driver:
    def __init__(self, binary, shared, sum_of_huge, go_backend):
        self.binary = binary
        self.go_backend = go_backend
        self.shared = shared
        self.sum_of_huge = sum_of_huge

    def run(self, case, client):
        """Runs a case with a client. Returns the seconds it took and the failure, `None` if it passed."""
        begin = time.monotonic()
        failure = None
        with tempfile.TemporaryDirectory(prefix="h2o-interop-") as name:
            try:
                self.play(case, client, Path(name))
            except Failure as found:
                failure = str(found)
        return time.monotonic() - begin, failure

    def play(self, case, client, folder):
        backend = Backend()
        server = Server(self.binary, folder, case, self.shared, backend.port, self.go_backend)
        relay = None
        try:
            if case.has_relay:
                relay = Relay(case.path, server.port)
            failure = self.talk(case, client, relay.port if relay else server.port, server)
            wire = relay.end() if relay else None
        finally:
            wrong = server.end()
            backend.close()
        if failure and wire:
            failure += f"\n{json.dumps(wire)}"
        if failure:
            raise Failure("\n".join([failure, *server.log()[-5:], server.messages(), wrong or ""]))
        expect(not wrong, wrong)
        try:
            most = wire["amplification"] if wire else 0
            expect(most <= 3, f"the server sent {most} times what it had received")
            case.check(Seen(client, wire, server.log(), backend.early_requests))
        except Failure as failure:
            raise Failure(f"{failure}\n{json.dumps(wire)}") from None

    def talk(self, case, client, port, server):
        """Runs the client. Returns what it complains of, or `None`."""
        arguments = {"huge": [self.sum_of_huge], "shutdown": [str(server.process.pid)]}.get(case.conversation, [])
        process = subprocess.Popen(
            [*CLIENTS[client], case.conversation, str(port), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"INTEROP_CERTIFICATE": str(self.shared / "site.crt")},
        )
        try:
            out, complaints = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, complaints = process.communicate()
            return f"the client did not end within {PATIENCE} s\n{complaints[-1500:]}"
        if process.returncode != 0 or out != "ok\n":
            return f"the client ended with {process.returncode} and printed {out!r}\n{complaints[-1500:]}"
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h2o", default=TOP / "target/debug/h2o", type=Path, help="the h2o binary to test")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="names of clients, separated by commas")
    parser.add_argument("--cases", default="", help="only cases whose titles contain one of these words, separated by commas")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="number of cases that run at the same time")
    options = parser.parse_args()
    clients = options.clients.split(",")
    words = options.cases.split(",")
    cases = [case for case in CASES if any(word in case.title for word in words)]
    with tempfile.TemporaryDirectory(prefix="h2o-interop-") as name:
        shared = Path(name)
        sum_of_huge = prepare(shared)
        with go_backend(shared) as backend, ThreadPoolExecutor(options.jobs) as pool:
            driver = Driver(options.h2o, shared, sum_of_huge, backend)
            begin = time.monotonic()
            running = {
                (case.title, client): pool.submit(driver.run, case, client)
                for client in clients
                for case in cases
                if (client, case.conversation) not in NOT_OFFERED
            }
            found = {place: future.result() for place, future in running.items()}
            seconds = time.monotonic() - begin
    sys.exit(show(cases, clients, found, seconds))


def show(cases, clients, found, seconds):
    """Prints the table of outcomes and the remarks. Returns the exit code."""
    notes = []
    width = max(len(case.title) for case in cases)
    print(" " * width, *(f"{client:12}" for client in clients), sep="  ")
    for case in cases:
        cells = []
        for client in clients:
            remark = REMARKS.get((client, case.conversation))
            reason = NOT_OFFERED.get((client, case.conversation))
            _, failure = found.get((case.title, client), (0, None))
            if reason:
                cells.append("not offered")
                notes.append(f"{case.title}: not offered by {client}: {reason}")
            elif failure:
                cells.append("FAIL")
                notes.append(f"{case.title} with {client} FAILED: {failure}")
            elif remark:
                cells.append("pass *")
                notes.append(f"{case.title} with {client}: {remark}")
            else:
                cells.append("pass")
        print(f"{case.title:{width}}", *(f"{cell:12}" for cell in cells), sep="  ")
    print()
    for note in notes:
        print(note)
    slowest = sorted(((taken, *place) for place, (taken, _) in found.items()), reverse=True)[:3]
    print("slowest:", ", ".join(f"{title} with {client} ({taken:.0f} s)" for taken, title, client in slowest))
    failed = sum(failure is not None for _, failure in found.values())
    outcome = "FAILED" if failed else "ok"
    print(f"test result: {outcome}. {len(found) - failed} passed; {failed} failed; finished in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
