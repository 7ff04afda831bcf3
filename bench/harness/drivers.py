"""The drivers, which make load. `measure` of a driver measures one server in one round and returns the numbers.

`prepare` runs once per server and case, before the rounds; its result is passed
to every `measure`. A server's clocks are read while it has nothing to do.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from . import process
from .cases import VERSIONS
from .machine import CoreClock
from .servers import asked_host

# The TLS suite and group that clients offer unless the case says otherwise, so that all servers do the same work.
CIPHERSUITE = "TLS_AES_128_GCM_SHA256"
GROUP = "X25519"
# With TLS 1.2 this list also has the curve of the certificate, which is not used for the key exchange.
GROUPS = {"1.2": f"{GROUP}:P-256", "1.3": GROUP}
OPENSSL_CONFIG = """\
openssl_conf = main
[main]
ssl_conf = tls
[tls]
system_default = every
[every]
Ciphersuites = @suite@
Groups = @group@
"""

CLIENT_DIR = Path(__file__).parents[1] / "client"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# Seconds in which the kernel closes the last connections, and the servers notice it.
SETTLE = 0.1
# Latencies are measured in a run of their own, because logging them costs the client time; for bulk they are not measured.
# Duration of that run in seconds, its largest number of requests, and the largest response that is not bulk, in octets.
LATENCY_SECONDS = 0.15
LATENCY_REQUESTS = 20_000
LATENCY_LARGEST = 1_000_000
PERCENTILES = {"latency_p50_us": 0.5, "latency_p90_us": 0.9, "latency_p99_us": 0.99, "latency_max_us": 1.0}


class LoadFailed(Exception):
    """The load generator did not get the responses that it expected."""


def patience(seconds):
    """How long to wait for a client that was told to work for `seconds`."""
    return 15 + 5 * seconds


def percentiles(durations):
    """For each of PERCENTILES, the smallest duration that this share of the durations does not exceed."""
    durations = sorted(durations)
    return {
        name: durations[max(0, math.ceil(share * len(durations)) - 1)] for name, share in PERCENTILES.items()
    }


class Cores:
    """The core for the server, and the core for the load generator."""

    def __init__(self, server, client):
        self.server, self.client = server, client


class Meter:
    """Measures the time that a server uses between `begin` and `end`."""

    def __init__(self, running, cores):
        self.pid = running.process.pid
        self.core = CoreClock(cores.server)

    def begin(self):
        self.busy = self.core.busy_seconds()
        self.cpu = process.cpu_ns(self.pid)
        self.wall = time.monotonic()

    def end(self, seconds=None):
        """`seconds` is how long the load took, if the load generator has measured that itself."""
        wall = time.monotonic() - self.wall
        time.sleep(SETTLE)
        used = (process.cpu_ns(self.pid) - self.cpu) / 1e9
        others = self.core.busy_seconds() - self.busy - used
        self.seconds = seconds or wall
        self.cpu_seconds = used
        # The ticks of /proc/stat are coarse, so the difference may be negative.
        self.others = max(0.0, others / (wall + SETTLE))

    def common(self, client_seconds):
        """`client_seconds` is the processor time of the load generator."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "seconds": self.seconds,
            "core_busy": self.cpu_seconds / self.seconds,
            "core_others": self.others,
            # The processor time includes the start of the load generator, so the quotient may exceed 1.
            "client_busy": min(1.0, client_seconds / self.seconds),
        }


class H2load:
    """Requests over persistent connections, each sent as soon as a response comes."""

    needs = "h2load"

    def __init__(self, cores, seconds, latencies=True):
        self.cores, self.wanted_seconds, self.latencies = cores, seconds, latencies

    def prepare(self, running, case, site):
        """Returns how many requests a measurement has, and how many one of latencies (0 for none)."""
        least = case.connections * case.streams
        warm_up = max(case.warm_up, least)
        rate = warm_up / self.run(running, case, site, warm_up)["seconds"]
        # Each server is measured for the same time, so that the clocks are equally exact.
        requests = max(least, int(rate * self.wanted_seconds))
        turn = case.files * case.connections
        if case.files > 1 and turn <= 2 * requests:
            # Every connection requests each file equally often.
            requests = round(requests / turn) * turn
        wanted = self.latencies and (case.status != 200 or site.size_of(case.path) <= LATENCY_LARGEST)
        return requests, min(LATENCY_REQUESTS, max(least, int(rate * LATENCY_SECONDS))) if wanted else 0

    def measure(self, running, case, site, prepared):
        requests, timed = prepared
        meter = Meter(running, self.cores)
        meter.begin()
        told = self.run(running, case, site, requests)
        meter.end(told.pop("seconds"))
        result = meter.common(told.pop("client_seconds")) | told | {
            "requests": requests,
            "per_second": requests / meter.seconds,
            "pss": process.pss_bytes(running.process.pid),
        }
        result["cpu_us_per_request"] = meter.cpu_seconds / requests * 1e6
        if case.status == 200:
            gigabytes = site.size_of(case.path) * requests / 1e9
            result["cpu_ms_per_gb"] = meter.cpu_seconds / gigabytes * 1e3
            result["gb_per_second"] = gigabytes / meter.seconds
        if timed:
            result |= self.latency(running, case, site, timed)
        return result

    def latency(self, running, case, site, requests):
        log = site.dir / "latencies"
        log.unlink(missing_ok=True)
        self.run(running, case, site, requests, [f"--log-file={log}"])
        # Columns of the log: start in µs, status, duration in µs.
        durations = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
        if len(durations) != requests:
            raise LoadFailed(f"h2load logged {len(durations)} of {requests} durations")
        return percentiles(durations)

    @staticmethod
    def arguments(case, requests, origin, uris=None):
        """The command line of h2load for a server at `origin`."""
        command = ["h2load", "-t1", f"-c{case.connections}", f"-n{requests}"]
        command += [f"-m{case.streams}"] if case.protocol == "h2" else ["--h1"]
        if case.scheme == "https":
            command += [f"--{'tls13-' if case.tls == '1.3' else ''}ciphers={case.suite}", f"--groups={GROUPS[case.tls]}"]
        if case.coding:
            command.append(f"--header=accept-encoding: {case.coding}")
        if case.hosts:
            command.append(f"--connect-to={origin.rpartition('/')[2]}")
            origin = f"{case.scheme}://{asked_host(case)}"
        return command + ([f"--input-file={uris}", f"--base-uri={origin}"] if uris else [origin + case.path])

    def command(self, case):
        """The command line of h2load as the report shows it."""
        origin = "127.0.0.1:PORT" if case.hosts else "{url}"
        text = " ".join(self.arguments(case, "N", origin, "FILES" if case.files > 1 else None))
        return text.replace("{url}" + case.path, "{url}")

    def run(self, running, case, site, requests, more=()):
        """Runs h2load, checks its output, and returns the figures in it."""
        origin = f"{case.scheme}://127.0.0.1:{running.port(case.scheme, case.protocol)}"
        uris = None
        if case.files > 1:
            uris = site.dir / f"{case.name}.uris"
            if not uris.exists():
                uris.write_text("".join(f"{path}\n" for path in site.paths(case)))
        used_before = process.ended_children_seconds()
        client = process.spawn(
            [*self.arguments(case, requests, origin, uris), *more],
            self.cores.client,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = client.communicate(timeout=patience(self.wanted_seconds))
        except subprocess.TimeoutExpired:
            raise LoadFailed("h2load took too long") from None
        finally:
            process.stop(client)
        return {
            "seconds": self.judge(output, case, requests),
            "client_seconds": process.ended_children_seconds() - used_before,
            **self.traffic(output, requests, site.size_of(case.path) if case.status == 200 and not case.coding else None),
        }

    @staticmethod
    def traffic(output, requests, size):
        """Octets of a response on the wire before encryption; the sum of the bodies must be right."""
        octets = re.search(r"^traffic: .*\((\d+)\) total, .*\((\d+)\) headers .*\((\d+)\) data", output, re.MULTILINE)
        if not octets:
            raise LoadFailed("the output of h2load has no line `traffic`")
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
            raise LoadFailed(f"{done[0]}; {codes[0]}; expected {requests} responses with {case.status}")
        if case.scheme == "https":
            for fact in (f"TLS Protocol: {VERSIONS[case.tls]}", f"Cipher: {case.suite}", f"Server Temp Key: {GROUP}"):
                if not re.search(rf"^{re.escape(fact)}\b", output, re.MULTILINE):
                    raise LoadFailed(f"the connection does not use {fact.partition(': ')[2]}")
        # A connection that fell back to HTTP/1 would not measure HTTP/2.
        if case.protocol == "h2" and not re.search(r"^Application protocol: h2c?$", output, re.MULTILINE):
            raise LoadFailed("the connection does not use HTTP/2")
        return float(finished[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[finished[2]]


class Program:
    """A client program of bench/client in C, which is built when it is first needed, and waits for a line before its work begins."""

    needs = "cc"
    source = None
    libraries = ()
    warm_up = 200
    built = {}

    def __init__(self, cores, seconds, latencies=True):
        self.cores, self.wanted_seconds = cores, seconds

    def program(self, site):
        target = site.dir / Path(self.source).stem
        if target not in self.built:
            command = ["cc", "-O2", "-o", target, CLIENT_DIR / self.source, *self.libraries, "-lpthread"]
            built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            reason = next((line for line in built.stderr.splitlines() if "error" in line), "cc failed")
            self.built[target] = reason if built.returncode else None
        if self.built[target]:
            raise LoadFailed(f"client/{self.source} cannot be built (are the headers installed?): {self.built[target]}")
        return target

    def prepare(self, running, case, site):
        least = max(self.warm_up, case.connections)
        seconds = self.run(running, case, site, least)["seconds"]
        return max(least, int(least / seconds * self.wanted_seconds))

    def command(self, case):
        arguments = [str(argument) for argument in self.arguments(case, "N")]
        return " ".join([Path(self.source).stem, "127.0.0.1", "PORT", *arguments])

    def run(self, running, case, site, count, meter=None):
        """Runs the program, checks its output, and returns the figures in it."""
        port = running.port(case.scheme, case.protocol)
        used_before = process.ended_children_seconds()
        client = process.spawn(
            [self.program(site), "127.0.0.1", str(port), *(str(each) for each in self.arguments(case, count))],
            self.cores.client,
            **PIPES,
            text=True,
        )
        try:
            expect_ready(client, self.wanted_seconds)
            time.sleep(SETTLE)
            if meter:
                meter.begin()
            client.stdin.write("\n")
            client.stdin.flush()
            # The client keeps its connections until its standard input ends: closing them is not part of the work.
            told = json.loads(process.first_line(client, patience(self.wanted_seconds)))
            if meter:
                meter.end(told["seconds"])
            client.communicate(timeout=patience(self.wanted_seconds))
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"client/{self.source} took too long") from None
        except ValueError:
            raise LoadFailed(f"client/{self.source} ended early") from None
        finally:
            process.stop(client)
        told["client_seconds"] = process.ended_children_seconds() - used_before
        if told["failed"] or told["done"] != count:
            raise LoadFailed(f"{told['failed']} of {count} connections or requests failed, {told['done']} succeeded")
        self.judge(told, case, count)
        return told


def expect_ready(client, seconds):
    """Waits until a client program prints `ready`."""
    line = process.first_line(client, patience(seconds))
    if line != "ready":
        process.stop(client)
        problem = client.stderr.read().strip().splitlines()
        raise LoadFailed(f"the client: {problem[-1] if problem else 'not ready in time'}")


class Handshakes(Program):
    """New TLS connections, several at a time."""

    source = "handshakes.c"
    libraries = ("-lssl", "-lcrypto")

    def arguments(self, case, count):
        return [case.mode, count, case.connections, VERSIONS[case.tls], case.suite, GROUPS[case.tls], case.path]

    def measure(self, running, case, site, count):
        meter = Meter(running, self.cores)
        told = self.run(running, case, site, count, meter)
        return meter.common(told["client_seconds"]) | {
            "connections": count,
            "per_second": count / meter.seconds,
            "resumed": told["reused"] / count,
            "negotiated": told["negotiated"],
            "cpu_us_per_handshake": meter.cpu_seconds / count * 1e6,
            "pss": process.pss_bytes(running.process.pid),
        }

    @staticmethod
    def judge(told, case, count):
        if told["negotiated"] != f"{VERSIONS[case.tls]} {case.suite}":
            raise LoadFailed(f"the connection uses {told['negotiated']}")
        wanted = count if case.mode == "resumed" else 0
        if abs(told["reused"] - wanted) > count // 100:
            raise LoadFailed(f"{told['reused']} of {count} handshakes were resumed")


class Connections(Program):
    """HTTP/1 in cleartext: a new connection for each request, or many files requested in turn over persistent connections."""

    source = "connections.c"
    warm_up = 1000

    def arguments(self, case, count):
        return [case.mode, count, case.connections, case.path, case.files]

    def prepare(self, running, case, site):
        # Each file is requested at least once before the measurement.
        self.warm_up = max(case.warm_up, case.files)
        return super().prepare(running, case, site)

    def measure(self, running, case, site, count):
        meter = Meter(running, self.cores)
        told = self.run(running, case, site, count, meter)
        result = meter.common(told["client_seconds"]) | {
            "requests": count,
            "per_second": count / meter.seconds,
            "pss": process.pss_bytes(running.process.pid),
            "cpu_us_per_request": meter.cpu_seconds / count * 1e6,
            "octets_per_response": told["octets"] / count,
        }
        if case.mode == "new":
            result["cpu_us_per_connection"] = result["cpu_us_per_request"]
        return result

    @staticmethod
    def judge(told, case, count):
        pass  # the program compares status and length with those of the first response, which `Running.ask` has checked


class H3load(Program):
    """HTTP/3, with the program bench/h3load: requests over persistent connections, new connections, or pages over a link."""

    source = "h3load"
    needs = "target/release/h3load"

    def program(self, site):
        return self.needs

    @staticmethod
    def arguments(case, count):
        if case.mode == "page":
            link = (case.link[name] for name in ("kbit", "round_trip_ms", "queue_kb"))
            return ["page", count, case.path, case.files, *link]
        if case.mode:
            return [case.mode, count, case.connections, case.path]
        return ["requests", count, case.connections, case.streams, case.path]

    def prepare(self, running, case, site):
        if case.mode == "page":
            return 1
        self.warm_up = case.warm_up
        return super().prepare(running, case, site)

    def measure(self, running, case, site, count):
        meter = Meter(running, self.cores)
        told = self.run(running, case, site, count, meter)
        result = meter.common(told["client_seconds"]) | {
            "per_second": count / meter.seconds,
            "pss": process.pss_bytes(running.process.pid),
        }
        if case.mode == "page":
            return result | {"page_ms": told["latency_p50_us"] / 1e3}
        size = site.size_of(case.path)
        if told["octets"] != count * size:
            raise LoadFailed(f"bodies have {told['octets'] / count} octets on average, not {size}")
        if size <= LATENCY_LARGEST:
            result |= {name: told[name] for name in PERCENTILES}
        if case.mode:
            return result | {
                "connections": count,
                "resumed": told["reused"] / count,
                "cpu_us_per_handshake": meter.cpu_seconds / count * 1e6,
            }
        gigabytes = size * count / 1e9
        return result | {
            "requests": count,
            "cpu_us_per_request": meter.cpu_seconds / count * 1e6,
            "cpu_ms_per_gb": meter.cpu_seconds / gigabytes * 1e3,
            "gb_per_second": gigabytes / meter.seconds,
            "header_octets_per_response": told["head_octets"] / count,
        }

    @staticmethod
    def judge(told, case, count):
        wanted = {"full": 0, "resumed": count}.get(case.mode)
        # A ticket that the server sends after the response may come too late for the next connection.
        if wanted is not None and abs(told["reused"] - wanted) > count // 20:
            raise LoadFailed(f"{told['reused']} of {count} handshakes were resumed")


class Idle:
    """Memory for connections that do nothing. Each measurement starts a new server."""

    needs = None
    fresh_server = True
    # With TCP_DEFER_ACCEPT a server is told of a silent connection only after some seconds.
    patience = 15.0

    def __init__(self, cores, seconds, latencies=True):
        self.cores = cores

    def prepare(self, running, case, site):
        return None

    @staticmethod
    def arguments(case):
        if case.protocol == "h3":
            return ["idle", str(case.connections), case.path]
        arguments = [case.connections, case.mode, case.path]
        if case.protocol == "h2":
            arguments.append(case.suite if case.scheme == "https" else "http")
        return [str(argument) for argument in arguments]

    def command(self, case):
        return " ".join([self.program(case), "127.0.0.1", "PORT", *self.arguments(case)])

    @staticmethod
    def program(case):
        return {"h1": "idle.py", "h2": "idle_h2.py", "h3": "h3load"}[case.protocol]

    def measure(self, running, case, site, _):
        pid = running.process.pid
        # The memory that a server allocates for its first requests is not counted for the connections.
        for _ in range(20):
            running.ask(case)
        time.sleep(SETTLE)
        before, sockets_before = process.pss_bytes(pid), process.open_sockets(pid)

        command = [sys.executable, CLIENT_DIR / self.program(case)] if case.protocol != "h3" else [H3load.needs]
        command.append("127.0.0.1")
        command += [str(running.port(case.scheme, case.protocol)), *self.arguments(case)]
        # Python cannot choose the cipher suite of TLS 1.3; OpenSSL's configuration file can.
        config = site.dir / "openssl.cnf"
        config.write_text(OPENSSL_CONFIG.replace("@suite@", case.suite).replace("@group@", GROUP))
        environment = os.environ | {"OPENSSL_CONF": str(config)}
        client = process.spawn(command, self.cores.client, **PIPES, text=True, env=environment)
        try:
            expect_ready(client, 10)
            accepted = case.connections  # over HTTP/3 all connections share a socket, and the server has answered on each
            if case.protocol != "h3":
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


DRIVERS = {"h2load": H2load, "handshakes": Handshakes, "connections": Connections, "h3load": H3load, "idle": Idle}
