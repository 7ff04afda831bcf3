#!/usr/bin/env python3
"""How long scripts that never end hold up another client of the same worker, by the request that it sends right behind each
of them: how far the slowest hundredth is above what it is without such scripts. `mruby.time-limit` is 50 ms. Both the time that
passes and the processor time that the server uses meanwhile are shown; the bar is for the latter, which other programs on the
machine hardly change. See "Limits" in docs/scripts.md.
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from harness import process, servers

# How much more than without hostile scripts the server may work before the slowest hundredth of the responses.
MOST_MS = 100.0
# Each is the body of `lambda { |env| ... }`.
SCRIPTS = [
    "x = 0; while true; x += 1; end",
    "loop {}",
    "loop { begin; loop {}; rescue Exception; end }",
    "begin; while true; end; ensure; while true; end; end",
    "for i in 1..10**18; end",
    "(1..10**18).inject(:+)",
    "[3, 1, 2].sort { |a, b| while true; end }",
    "eval('while true; end')",
    "f = Fiber.new { loop {} }; f.resume",
    "task { loop {} }; loop {}",
    "'abc'.gsub(/b/) { loop {} }",
    "'x' * (1 << 30)",
    "s = 'x'; loop { s << s }",
    "a = []; loop { a << 'x' * 1000 }",
    "h = {}; i = 0; loop { h[i] = i; i += 1 }",
    "a = []; loop { a << Object.new }",
    "a = []; loop { f = Fiber.new { Fiber.yield }; f.resume; a << f }",
    "f = lambda { f.call }; f.call",
    "('a' * 5000 + 'b') =~ /\\A(?=(a+)+\\z)(a|a)*\\1c/; raise 'no match'",
    "20_000.times { Fiber.new { Fiber.yield }.resume }; raise 'all abandoned'",
    "o = Object.new; def o.to_s() loop {} end; [200, {o => 'x'}, []]",
    "2000.times { task { sleep 0.01 } }; raise 'all wait'",
]

CONFIG = """num-threads: 1
listen: {{host: 127.0.0.1, port: {port}}}
mruby.time-limit: 50
mruby.memory-limit: 67108864
error-log: {dir}/error.log
{user}hosts:
  default:
    paths:
      /fine: {{mruby.handler: 'lambda {{ |env| [200, {{}}, ["fine"]] }}'}}
"""


def start(stack, arguments, directory):
    user = "user: root\n" if os.getuid() == 0 else ""

    def command(port):
        config = CONFIG.format(port=port, dir=directory, user=user)
        for number, script in enumerate(SCRIPTS):
            (directory / f"{number}.rb").write_text(f"lambda {{ |env| {script} }}\n")
            config += f"      /{number}: {{mruby.handler-file: {directory}/{number}.rb}}\n"
        (directory / "h2o.conf").write_text(config)
        return [arguments.h2o, "-c", directory / "h2o.conf"]

    return servers.serve(stack, command, arguments.server_core)


class Neighbour:
    """The other client: it sends its next request when it has the response to the last one."""

    def __init__(self, server, port):
        self.server = server
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self):
        """Milliseconds from a request to its response: those that pass, and those that the server works."""
        worked, begun = process.cpu_ns(self.server.pid), time.monotonic()
        self.sock.sendall(b"GET /fine HTTP/1.1\r\nhost: a\r\n\r\n")
        received = b""
        while not received.endswith(b"\r\n\r\nfine"):
            piece = self.sock.recv(4096)
            if not piece:
                raise SystemExit(f"the other client is not served: {received!r}")
            received += piece
        if not received.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"the other client gets {received!r}")
        passed = time.monotonic() - begun
        return passed * 1000, (process.cpu_ns(self.server.pid) - worked) / 1_000_000


def ask_behind(neighbour, port, number):
    """What the other client's request takes that is sent right behind one for a hostile script."""
    with socket.create_connection(("127.0.0.1", port)) as hostile:
        hostile.sendall(f"GET /{number} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        times = neighbour.ask()
        while hostile.recv(65536):
            pass
    return times


def share(times, part):
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h2o", default="target/release/h2o", help="the server's binary")
    parser.add_argument("--rounds", type=int, default=5, help="how often each script runs")
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--server-core", type=int, default=cores[-1])
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        server, port = start(stack, arguments, directory)
        neighbour = Neighbour(server, port)
        alone, behind = [], {number: [] for number in range(len(SCRIPTS))}
        for _ in range(arguments.rounds):
            alone += [neighbour.ask() for _ in range(50 * len(SCRIPTS))]
            for number, times in behind.items():
                times.append(ask_behind(neighbour, port, number))
    for number, times in behind.items():
        passed, worked = (max(kind) for kind in zip(*times))
        print(f"{passed:7.1f} ms, {worked:7.1f} ms of work: {SCRIPTS[number]}")
    each = [times for of_script in behind.values() for times in of_script]
    above = []
    for kind, name in enumerate(("pass", "of work")):
        normal, worst = (share([times[kind] for times in found], 0.99) for found in (alone, each))
        above.append(worst - normal)
        print(f"slowest hundredth: {normal:.2f} ms {name} without hostile scripts, {worst:.2f} ms behind them")
    print(f"above normal: {above[1]:.1f} ms of work, of at most {MOST_MS:.0f} ms; {above[0]:.1f} ms pass")
    return above[1] > MOST_MS


if __name__ == "__main__":
    sys.exit(main())
