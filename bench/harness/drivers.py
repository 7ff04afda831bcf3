"""How load is made. A driver measures one server once and returns its numbers.

`prepare` runs once per server and case, before the rounds; what it returns is
handed to every `measure`. The server's clocks are read while it has nothing to do.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from . import process
from .machine import CoreClock

# What every TLS client here offers, so that all servers do the same work.
CIPHERSUITE = "TLS_AES_128_GCM_SHA256"
GROUP = "X25519"
OPENSSL_CONFIG = f"""\
openssl_conf = main
[main]
ssl_conf = tls
[tls]
system_default = every
[every]
Ciphersuites = {CIPHERSUITE}
Groups = {GROUP}
"""

CLIENT_DIR = Path(__file__).parents[1] / "client"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# For the kernel to close what the last connections left, and the servers to notice.
SETTLE = 0.2


class LoadFailed(Exception):
    """The load generator did not get the answers it should."""


class Cores:
    """Which core serves, and which core asks."""

    def __init__(self, server, client):
        self.server, self.client = server, client


class Meter:
    """Time used by a server between `begin` and `end`."""

    def __init__(self, running, cores):
        self.pid = running.process.pid
        self.core = CoreClock(cores.server)

    def begin(self):
        self.busy = self.core.busy_seconds()
        self.cpu = process.cpu_ns(self.pid)
        self.wall = time.monotonic()

    def end(self, seconds=None):
        """`seconds`: how long the load took, if the generator knows better than we."""
        wall = time.monotonic() - self.wall
        time.sleep(SETTLE)
        used = (process.cpu_ns(self.pid) - self.cpu) / 1e9
        others = self.core.busy_seconds() - self.busy - used
        self.seconds = seconds or wall
        self.cpu_seconds = used
        # Ticks of /proc/stat are coarse, hence never below zero.
        self.others = max(0.0, others / (wall + SETTLE))

    def common(self):
        return {
            "cpu_seconds": self.cpu_seconds,
            "seconds": self.seconds,
            "core_busy": self.cpu_seconds / self.seconds,
            "core_others": self.others,
        }


class H2load:
    """Requests over persistent connections, as fast as the answers come."""

    needs = "h2load"

    def __init__(self, cores, seconds):
        self.cores, self.wanted_seconds = cores, seconds

    def prepare(self, running, case, site):
        warm_up = max(case.warm_up, case.connections * case.streams)
        seconds = self.run(running, case, site, warm_up)["seconds"]
        # The same time for every server, so that the clocks are equally exact.
        return max(case.connections, int(warm_up / seconds * self.wanted_seconds))

    def measure(self, running, case, site, requests):
        meter = Meter(running, self.cores)
        meter.begin()
        told = self.run(running, case, site, requests)
        meter.end(told.pop("seconds"))
        result = meter.common() | told | {
            "requests": requests,
            "per_second": requests / meter.seconds,
            "pss": process.pss_bytes(running.process.pid),
        }
        result["cpu_us_per_request"] = meter.cpu_seconds / requests * 1e6
        if case.status == 200:
            gigabytes = site.size_of(case.path) * requests / 1e9
            result["cpu_ms_per_gb"] = meter.cpu_seconds / gigabytes * 1e3
            result["gb_per_second"] = gigabytes / meter.seconds
        return result

    def run(self, running, case, site, requests):
        """Runs h2load; checks that all went as it should; returns what it tells."""
        url = f"{case.scheme}://127.0.0.1:{running.port(case.scheme, case.protocol)}{case.path}"
        command = ["h2load", "-t1", f"-c{case.connections}", f"-n{requests}"]
        command += [f"-m{case.streams}"] if case.protocol == "h2" else ["--h1"]
        command += [f"--tls13-ciphers={CIPHERSUITE}", f"--groups={GROUP}", url]
        client = process.spawn(command, self.cores.client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = client.communicate(timeout=30 + 5 * self.wanted_seconds)
        except subprocess.TimeoutExpired:
            raise LoadFailed("h2load took too long") from None
        finally:
            process.stop(client)
        told = {"seconds": self.judge(output, case, requests)}
        if case.protocol == "h2":
            told |= self.traffic(output, requests, site.size_of(case.path) if case.status == 200 else None)
        return told

    @staticmethod
    def traffic(output, requests, size):
        """What an answer takes by HTTP/2, before encryption; the sum of the bodies must be right."""
        octets = re.search(r"^traffic: .*\((\d+)\) total, .*\((\d+)\) headers .*\((\d+)\) data", output, re.MULTILINE)
        if not octets:
            raise LoadFailed("h2load does not tell the octets received")
        total, head, body = (int(number) / requests for number in octets.groups())
        if size is not None and body != size:
            raise LoadFailed(f"bodies have {body} octets on average, not {size}")
        return {"header_octets_per_response": head, "octets_per_response": total}

    @staticmethod
    def judge(output, case, requests):
        done = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed", output, re.MULTILINE)
        codes = re.search(r"^status codes: (\d+) 2xx, (\d+) 3xx", output, re.MULTILINE)
        finished = re.search(r"^finished in ([\d.]+)(us|ms|s|m), ", output, re.MULTILINE)
        if not (done and codes and finished):
            raise LoadFailed(f"h2load: {output.strip().splitlines()[-1:]}")
        if int(done[1]) != requests or int(codes[2 if case.status // 100 == 3 else 1]) != requests:
            raise LoadFailed(f"{done[0]}; {codes[0]}; wanted {requests} with {case.status}")
        if case.scheme == "https":
            for fact in ("TLSv1.3", CIPHERSUITE, GROUP):
                if fact not in output:
                    raise LoadFailed(f"the connection does not use {fact}")
        # A connection that fell back to HTTP/1 would be measured as something else.
        if case.protocol == "h2" and not re.search(r"^Application protocol: h2c?$", output, re.MULTILINE):
            raise LoadFailed("the connection does not use HTTP/2")
        return float(finished[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[finished[2]]


class Handshakes:
    """New TLS connections, a few at a time. Built from `client/handshakes.c` when first needed."""

    needs = "cc"
    program = None

    def __init__(self, cores, seconds):
        self.cores, self.wanted_seconds = cores, seconds

    @classmethod
    def build(cls, directory):
        cls.program = directory / "handshakes"
        command = ["cc", "-O2", "-o", cls.program, CLIENT_DIR / "handshakes.c", "-lssl", "-lcrypto", "-lpthread"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            cls.program = None
            reason = next((line for line in built.stderr.splitlines() if "error" in line), "cc failed")
            raise LoadFailed(f"client/handshakes.c cannot be built (are the OpenSSL headers installed?): {reason}")

    def prepare(self, running, case, site):
        if self.program is None:
            self.build(site.dir)
        warm_up = 200
        seconds = self.run(running, case, warm_up)["seconds"]
        return max(warm_up, int(warm_up / seconds * self.wanted_seconds))

    def measure(self, running, case, site, count):
        meter = Meter(running, self.cores)
        told = self.run(running, case, count, meter)
        return meter.common() | {
            "connections": count,
            "per_second": count / meter.seconds,
            "resumed": told["reused"] / count,
            "negotiated": told["negotiated"],
            "cpu_us_per_handshake": meter.cpu_seconds / count * 1e6,
            "pss": process.pss_bytes(running.process.pid),
        }

    def run(self, running, case, count, meter=None):
        command = [self.program, "127.0.0.1", str(running.port("https")), case.mode, str(count)]
        command += [str(case.connections), CIPHERSUITE, GROUP, case.path]
        client = process.spawn(command, self.cores.client, **PIPES, text=True)
        try:
            if client.stdout.readline() != "ready\n":
                raise LoadFailed(f"the handshake client: {client.stderr.read().strip()}")
            time.sleep(SETTLE)
            if meter:
                meter.begin()
            output, _ = client.communicate("\n", timeout=30 + 5 * self.wanted_seconds)
            told = json.loads(output)
            if meter:
                meter.end(told["seconds"])
        except subprocess.TimeoutExpired:
            raise LoadFailed("the handshake client took too long") from None
        finally:
            process.stop(client)
        if told["failed"] or told["done"] != count:
            raise LoadFailed(f"{told['failed']} of {count} connections failed")
        if CIPHERSUITE not in told["negotiated"]:
            raise LoadFailed(f"the connection uses {told['negotiated']}")
        wanted = count if case.mode == "resumed" else 0
        if abs(told["reused"] - wanted) > count // 100:
            raise LoadFailed(f"{told['reused']} of {count} handshakes were resumed")
        return told


class Idle:
    """Memory for connections that do nothing. Each measurement has a server of its own."""

    needs = None
    fresh_server = True
    # With TCP_DEFER_ACCEPT a server hears of a silent connection only after some seconds.
    patience = 15.0

    def __init__(self, cores, _seconds):
        self.cores = cores

    def prepare(self, running, case, site):
        return None

    def measure(self, running, case, site, _):
        pid = running.process.pid
        # What every server sets up for its first requests is not counted per connection.
        for _ in range(20):
            running.ask(case.scheme, case.path, case.protocol)
        time.sleep(SETTLE)
        before, sockets_before = process.pss_bytes(pid), process.open_sockets(pid)

        command = [sys.executable, CLIENT_DIR / "idle.py", "127.0.0.1", str(running.port(case.scheme, case.protocol))]
        command += [str(case.connections), case.mode, case.path]
        environment = os.environ
        if case.protocol == "h2":
            command[1] = CLIENT_DIR / "idle_h2.py"
            command += [CIPHERSUITE if case.scheme == "https" else "http"]
            # Python cannot choose TLS 1.3's ciphersuite, OpenSSL's own configuration can.
            config = site.dir / "openssl.cnf"
            config.write_text(OPENSSL_CONFIG)
            environment = environment | {"OPENSSL_CONF": str(config)}
        client = process.spawn(command, self.cores.client, **PIPES, text=True, env=environment)
        try:
            if client.stdout.readline() != "ready\n":
                raise LoadFailed(f"the idle client: {client.stderr.read().strip()}")
            accepted = self.wait_for_accepts(pid, sockets_before, case.connections)
            time.sleep(1.0)
            after = process.pss_bytes(pid)
        finally:
            process.stop(client)
        if accepted < case.connections:
            raise LoadFailed(f"only {accepted} of {case.connections} connections were accepted")
        return {
            "bytes_per_connection": (after - before) / case.connections,
            "pss_before": before,
            "pss": after,
        }

    def wait_for_accepts(self, pid, before, wanted):
        deadline = time.monotonic() + self.patience
        while True:
            accepted = process.open_sockets(pid) - before
            if accepted >= wanted or time.monotonic() > deadline:
                return accepted
            time.sleep(0.25)


DRIVERS = {"h2load": H2load, "handshakes": Handshakes, "idle": Idle}
