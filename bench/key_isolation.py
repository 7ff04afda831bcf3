#!/usr/bin/env python3
"""What `neverbleed: ON` costs per full handshake: two servers that differ in that only, in turn, on a core of their own.

The processor time is that of the server and of the key process. See "Keys in a process of their own" in docs/tls.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from harness import process, servers
from harness.drivers import CIPHERSUITE, GROUP

CLIENT = Path(__file__).resolve().parent / "client" / "handshakes.c"
KEYS = {"ecdsa": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "rsa": ["rsa:2048"]}
MOST = 1.5

CONFIG = """num-threads: 1
listen:
  host: 127.0.0.1
  port: {port}
  ssl: {{ certificate-file: {dir}/{key}.crt, key-file: {dir}/{key}.key, neverbleed: {isolated} }}
hosts: {{ default: {{ paths: {{ /: {{ file.dir: {dir}/site }} }} }} }}
{user}"""


def start(stack, arguments, directory, key, isolated):
    path = directory / f"{key}-{isolated}.conf"
    user = "user: root\n" if os.getuid() == 0 else ""

    def command(port):
        path.write_text(CONFIG.format(port=port, dir=directory, key=key, isolated=isolated, user=user))
        return [arguments.h2o, "-c", path]

    return servers.serve(stack, command, arguments.server_core)


def measure(arguments, client, server, port):
    """Microseconds of processor time per handshake."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    words = ["full", arguments.handshakes, 4, "TLSv1.3", CIPHERSUITE, GROUP, "/a"]
    running = process.spawn(
        [client, "127.0.0.1", str(port), *(str(word) for word in words)], arguments.client_core, **pipes
    )
    try:
        if process.first_line(running, 30) != "ready":
            raise SystemExit("the client is not ready")
        time.sleep(0.1)
        before = process.cpu_ns(server.pid)
        running.stdin.write(b"\n")
        running.stdin.flush()
        told = json.loads(process.first_line(running, 120))
        used = process.cpu_ns(server.pid) - before
    finally:
        process.stop(running)
    if told["failed"] or told["done"] != arguments.handshakes:
        raise SystemExit(f"handshakes failed: {told}")
    return used / 1000 / told["done"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h2o", default="target/release/h2o", help="the server's binary")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--handshakes", type=int, default=1000, help="in a round")
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--server-core", type=int, default=cores[-1])
    parser.add_argument("--client-core", type=int, default=cores[0])
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        (directory / "site").mkdir()
        (directory / "site" / "a").write_text("a")
        client = directory / "handshakes"
        subprocess.run(["cc", "-O2", "-o", client, CLIENT, "-lssl", "-lcrypto", "-lpthread"], check=True)
        is_too_much = False
        for key, kind in KEYS.items():
            made = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-subj", "/CN=localhost"]
            files = ["-keyout", directory / f"{key}.key", "-out", directory / f"{key}.crt"]
            subprocess.run([*made, *files], check=True, capture_output=True)
            servers = {isolated: start(stack, arguments, directory, key, isolated) for isolated in ("OFF", "ON")}
            rounds = {isolated: [] for isolated in servers}
            for _ in range(arguments.rounds):
                for isolated, (server, port) in servers.items():
                    rounds[isolated].append(measure(arguments, client, server, port))
            off, on = (statistics.median(rounds[isolated]) for isolated in ("OFF", "ON"))
            print(
                f"{key}: {off:.0f} us (from {min(rounds['OFF']):.0f} to {max(rounds['OFF']):.0f}) without, "
                f"{on:.0f} us (from {min(rounds['ON']):.0f} to {max(rounds['ON']):.0f}) with isolation: {on / off:.2f}"
            )
            is_too_much |= on / off > MOST
    return is_too_much


if __name__ == "__main__":
    sys.exit(main())
