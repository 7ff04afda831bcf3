#!/usr/bin/env python3
"""Runs this server and others side by side, and writes a report. See README.md here."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from harness import cases as case_files
from harness import machine, process, report
from harness import servers as server_files
from harness.drivers import CIPHERSUITE, DRIVERS, GROUP, Cores, H3load, LoadFailed
from harness.servers import Running, ServerFailed, Setup
from harness.site import Site

HERE = Path(__file__).resolve().parent
# Rounds of cases in which each round starts a server and opens 10,000 connections. Memory hardly varies, so few are enough.
FRESH_ROUNDS = 3
QUICK_FRESH_ROUNDS = 2


class TimeIsUp(Exception):
    """The run has reached its time limit."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--h2o",
        metavar="PATH",
        default=os.environ.get("H2O_BIN"),
        help="this server's binary (default: $H2O_BIN, else target/release/h2o)",
    )
    parser.add_argument("--servers", metavar="A,B", help="only these of servers/*.toml")
    parser.add_argument("--cases", metavar="A,B", help="only these of cases/*.toml: names, patterns or groups")
    parser.add_argument("--rounds", type=int, help="number of measurements of each server (default 5, quick 3)")
    parser.add_argument("--seconds", type=float, help="duration of one measurement (default 0.6, quick 0.3)")
    parser.add_argument("--quick", action="store_true", help="only the cases and servers of the daily subset")
    parser.add_argument("--floor", action="store_true", help="only this server and the floor program")
    parser.add_argument("--no-micro", action="store_true", help="do not measure the costs of single functions")
    parser.add_argument("--server-core", type=int, metavar="N", help="default: the first core allowed")
    parser.add_argument("--client-core", type=int, metavar="N", help="default: the second core allowed")
    parser.add_argument("--max-minutes", type=float, default=45, metavar="N", help="end the run after N minutes, and report what was measured (default 45)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="where the report goes (default bench/out)")
    parser.add_argument("--redraw", action="store_true", help="only write the report again, from report.json")
    parser.add_argument("--list", action="store_true", help="list cases and servers")
    args = parser.parse_args()
    # Paths on the command line are relative to the directory in which the script is started, all others to the project.
    args.out = args.out.resolve()
    if args.h2o:
        args.h2o = os.path.abspath(args.h2o)
        # The load generator is built beside the server.
        H3load.needs = str(Path(args.h2o).with_name("h3load"))
    os.chdir(HERE.parent)
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.seconds = args.seconds or (0.3 if args.quick else 0.6)
    # A run of some cases or servers measures nothing else.
    args.micro = not (args.no_micro or args.quick or args.floor or args.cases or args.servers)
    return args


def pick_servers(args, notes):
    """The servers that take part. A peer that is not installed is left out; this project's server must exist."""
    servers = server_files.load_all(HERE / "servers", args.h2o)
    if args.servers:
        names = args.servers.split(",")
        unknown = set(names) - {server.name for server in servers}
        if unknown:
            sys.exit(f"no such server: {', '.join(sorted(unknown))} (see --list)")
        servers = [server for server in servers if server.name in names]
    elif args.floor:
        servers = [server for server in servers if server.role != "peer"]
    elif args.quick:
        servers = [server for server in servers if server.role != "peer" or server.quick]
    for server in servers:
        problem = server.build()
        if problem:
            notes.append(f"{server.title} cannot be built ({problem}) and was left out.")
            servers = [other for other in servers if other is not server]
    for server in servers:
        if server.binary is None and server.own:
            sys.exit(f"{server.wanted} not found: run `cargo build --release` first, or name the binary by --h2o PATH")
        if server.binary is None:
            lack = "built" if server.role == "floor" else "installed"
            notes.append(f"{server.title} is not {lack} ({server.wanted}) and was left out.")
    servers = [server for server in servers if server.binary]
    if not servers:
        sys.exit("no server to measure: none is installed")
    return servers


def back_ends(args):
    """The servers that proxies may have as backends, by name: those that are installed, whether they take part or not."""
    every = server_files.load_all(HERE / "servers", args.h2o)
    return {server.name: server for server in every if server.name in case_files.BACKENDS and server.binary}


def pick_cases(args, notes, behind):
    wanted = args.cases.split(",") if args.cases else ()
    cases = case_files.load_all(HERE / "cases", wanted)
    if not cases:
        sys.exit(f"no case has a name or group that matches {args.cases} (see --list)")
    if args.quick and not wanted:
        cases = [case for case in cases if case.quick]
    if args.floor:
        cases = [case for case in cases if case.floor]
    runnable = []
    for case in cases:
        needs = DRIVERS[case.driver].needs
        if needs and not shutil.which(needs):
            notes.append(f"{case.title}: left out, {needs} is not installed.")
        elif case.backend == case_files.FASTCGI and not shutil.which("cc"):
            notes.append(f"{case.title}: left out, cc is not installed.")
        elif case.backend not in ("", case_files.ITSELF, case_files.FASTCGI, *behind):
            notes.append(f"{case.title}: left out, {case.backend} is not installed.")
        else:
            runnable.append(case)
    return runnable


def pick_cores(args):
    allowed = sorted(os.sched_getaffinity(0))
    server = args.server_core if args.server_core is not None else allowed[0]
    client = args.client_core if args.client_core is not None else next((c for c in allowed if c != server), server)
    if not {server, client} <= set(allowed):
        sys.exit(f"this process may use the cores {allowed}, not both of {server} and {client}; choose with --server-core and --client-core")
    if server == client:
        print("there is only one core, which servers and load generator share, so rates mean little", file=sys.stderr)
    return Cores(server, client)


class FastcgiEcho:
    """Runs the FastCGI application that servers pass requests to. A context manager."""

    def __init__(self, site, core):
        target = site.dir / "fastcgi_echo"
        if not target.exists():
            command = ["cc", "-O2", "-o", target, HERE / "client" / "fastcgi_echo.c"]
            subprocess.run(command, check=True, timeout=60)
        (self.http_port,) = server_files.free_ports(1)
        self.process = process.spawn([target, str(self.http_port)], core)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.http_port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    self.__exit__()
                    raise ServerFailed("fastcgi_echo does not listen") from None
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        process.stop(self.process)


class Entrant:
    """A server in a case: its process, its results, and what `prepare` returned."""

    def __init__(self, server, case, running, prepared):
        self.server, self.case, self.running, self.prepared = server, case, running, prepared


class Run:
    """Measures every case with every server in turn."""

    def __init__(self, args, servers, cores, data, behind):
        self.args, self.servers, self.cores, self.data, self.behind = args, servers, cores, data, behind
        self.deadline = time.monotonic() + args.max_minutes * 60
        self.own_failed = False

    def note(self, server, case, problem):
        text = f"{case.title}: {server.title}: {problem}"
        print(f"  ! {text}", file=sys.stderr)
        self.data["notes"].append(text)
        self.own_failed |= server.own

    def driver(self, case):
        return DRIVERS[case.driver](self.cores, self.args.seconds * case.longer, latencies=not self.args.quick)

    def rounds(self, case):
        """Number of rounds of a case. A case that needs a new server for each round has fewer."""
        if not getattr(DRIVERS[case.driver], "fresh_server", False):
            return self.args.rounds
        return min(self.args.rounds, QUICK_FRESH_ROUNDS if self.args.quick else FRESH_ROUNDS)

    def batch(self, cases, site):
        """Measures cases that belong together: each round runs every case with every server."""
        for case in cases:
            site.paths(case)
        records = {case.name: self.new_record(case) for case in cases}
        with contextlib.ExitStack() as stack:
            entrants = self.enter(cases, records, site, stack)
            for turn in range(self.args.rounds):
                # The order of the servers is reversed in every other round, so that none gains by its place.
                for entrant in entrants[:: -1 if turn % 2 else 1]:
                    if turn >= self.rounds(entrant.case):
                        continue
                    if time.monotonic() > self.deadline:
                        raise TimeIsUp
                    server, case = entrant.server, entrant.case
                    rounds = records[case.name]["rounds"]
                    try:
                        rounds.setdefault(server.name, []).append(self.measure(entrant, site))
                    except (ServerFailed, LoadFailed) as problem:
                        # A series with fewer rounds than the others is dropped, because its spread would mislead.
                        self.note(server, case, problem)
                        entrants.remove(entrant)
                        rounds.pop(server.name, None)
        for record in records.values():
            order = [server.name for server in self.servers if server.name in record["rounds"]]
            record["rounds"] = {name: record["rounds"][name] for name in order}
        self.data["cases"] += records.values()

    def enter(self, cases, records, site, stack):
        """Starts all servers, once for each setup; they run until the batch is done."""
        entrants, started, behind = [], {}, {}
        for case in cases:
            driver = self.driver(case)
            for server in self.servers:
                if not server.takes_part(case):
                    continue
                reason = server.left_out(case)
                if reason:
                    records[case.name]["left_out"][server.name] = reason
                    continue
                if time.monotonic() > self.deadline:
                    raise TimeIsUp
                key = (server.name, Setup.of(case))
                try:
                    if key not in started:
                        backend = self.backend(server, case, site, behind, stack)
                        started[key] = stack.enter_context(self.start(server, case, site, backend))
                    running = started[key]
                    records[case.name]["answers"][server.name] = self.check(running, case, site)
                    prepared = driver.prepare(running, case, site)
                    if getattr(driver, "fresh_server", False):
                        started.pop(key).stop()
                        running = None
                    entrants.append(Entrant(server, case, running, prepared))
                except (ServerFailed, LoadFailed) as problem:
                    self.note(server, case, problem)
        return entrants

    def backend(self, server, case, site, started, stack):
        """The backend for a server that is a proxy, or None. It runs on the client's core, and its time is not counted."""
        if not case.backend:
            return None
        if case.backend == case_files.FASTCGI:
            if case.backend not in started:
                started[case.backend] = stack.enter_context(FastcgiEcho(site, self.cores.client))
            return started[case.backend]
        kind = server if case.backend == case_files.ITSELF else self.behind[case.backend]
        if kind.name not in started:
            started[kind.name] = stack.enter_context(Running(kind, site, self.cores.client))
        return started[kind.name]

    def start(self, server, case, site, backend=None):
        return Running(server, site, self.cores.server, Setup.of(case), backend)

    def measure(self, entrant, site):
        driver, case = self.driver(entrant.case), entrant.case
        if entrant.running:
            return driver.measure(entrant.running, case, site, entrant.prepared)
        with self.start(entrant.server, case, site) as running:
            return driver.measure(running, case, site, entrant.prepared)

    def new_record(self, case):
        """The record of a case for the report, without results."""
        return {
            "name": case.name,
            "title": case.title,
            "group": case.group,
            "shows": case.shows,
            "figure": case.figure,
            "also": list(case.also),
            "command": self.driver(case).command(case),
            "limits": case.limits,
            "compare": case.compare or None,
            "answers": {},
            "left_out": {},
            "rounds": {},
        }

    @staticmethod
    def check(running, case, site):
        """Checks that the server gives the response that is to be measured."""
        status, head, body = running.ask(case)
        if status != case.status:
            raise ServerFailed(f"{case.path} gives {status}, not {case.status}")
        if status == 200 and not case.coding and body != site.size_of(case.path):
            raise ServerFailed(f"{case.path} has {body} octets, not {site.size_of(case.path)}")
        return {"head": head, "body": body}

    def all(self, cases):
        with Site() as site:
            for batch in case_files.batches(cases):
                began = time.monotonic()
                print(" + ".join(case.title for case in batch), "…", end="", flush=True, file=sys.stderr)
                self.batch(batch, site)
                print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)
                for record in self.data["cases"][-len(batch) :]:
                    self.say(record)

    def micro(self):
        """Measures the costs of single functions of this project's server."""
        try:
            import micro

            self.data["micro"] = micro.measure()
        except Exception as problem:  # whatever it is, the comparison is worth its report
            self.data["notes"].append(f"The costs of single functions were not measured: {problem}")

    def say(self, case):
        """Prints a case's figures while the run goes on."""
        results = report.Results(self.data)
        unit = case_files.FIGURES[case["figure"]].unit
        for name in case["rounds"]:
            against = results.to_best_peer(case, name)
            ratio = f"   {report.with_spread(against)} of the best peer" if against else ""
            print(f"    {name:12} {report.with_spread(results.spread(case, name))} {unit}{ratio}", file=sys.stderr)


def drop_comparisons(cases):
    """Removes comparisons with cases that this run does not have."""
    there = {case["name"] for case in cases}
    for case in cases:
        if case["compare"] and case["compare"]["with"] not in there:
            case["compare"] = None


def main():
    args = arguments()
    if args.redraw:
        report.write(report.Results(json.loads((args.out / "report.json").read_text())), args.out)
        return 0
    if args.list:
        for case in case_files.load_all(HERE / "cases"):
            print(f"case    {case.name:28} {case.group}: {case.title}")
        for server in server_files.load_all(HERE / "servers", args.h2o):
            print(f"server  {server.name:28} {server.title}: {server.binary or f'{server.wanted} (missing)'}")
        return 0

    notes = []
    servers = pick_servers(args, notes)
    behind = back_ends(args)
    cases = pick_cases(args, notes, behind)
    cores = pick_cores(args)
    data = {
        "began": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "settings": {
            "rounds": args.rounds,
            "seconds": args.seconds,
            "server_core": cores.server,
            "client_core": cores.client,
            "ciphersuite": CIPHERSUITE,
            "tls_group": GROUP,
        },
        "load_before": machine.load_average(),
        "servers": {
            server.name: {
                "title": server.title,
                "role": server.role,
                "own": server.own,
                "version": server.version(),
                "colour": server.colour,
            }
            for server in servers
        },
        "cases": [],
        "micro": [],
        "notes": notes,
    }
    # Servers and directories are cleaned up even if SIGTERM ends this script.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Run(args, servers, cores, data, behind)
    interrupted = False
    try:
        run.all(cases)
        data["load_after"] = machine.load_average()
        if args.micro:
            run.micro()
    except TimeIsUp:
        notes.append(f"The run was stopped after {args.max_minutes:g} minutes; cases are missing.")
        interrupted = True
    except KeyboardInterrupt:
        notes.append("The run was interrupted; cases are missing.")
        interrupted = True
    data.setdefault("load_after", machine.load_average())
    drop_comparisons(data["cases"])
    report.write(report.Results(data), args.out)
    print(f"\n{args.out / 'report.md'}", file=sys.stderr)
    return 1 if interrupted or run.own_failed else 0


if __name__ == "__main__":
    sys.exit(main())
