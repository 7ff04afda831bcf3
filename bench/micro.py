#!/usr/bin/env python3
"""Counts the instructions of the micro-benchmarks and compares them with the record. See README.md here."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
RECORD = HERE / "micro" / "recorded.json"
# Each benchmark is run twice, with these two numbers of operations; the difference of the instruction counts is that of the operations
# alone. The cost of starting varies, because hashes are seeded at random, but divided by so many operations it is small.
FEW, MORE = 200, 4200
# Share, and number of instructions, by which a case may exceed its recorded count; the larger one applies.
TOLERANCE, SLACK = 0.03, 2.0
# Features of the processor by which libraries choose their code at run time.
CPU_FLAGS = ("sse4_2", "avx", "avx2", "bmi2", "erms", "fsrm", "avx512vl", "avx512bw", "aes", "pclmulqdq")


class MicroFailed(Exception):
    """The instructions cannot be counted."""


@dataclass(frozen=True)
class Case:
    """One operation in a benchmark program."""

    program: str
    name: str
    title: str


def run(command, **more):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, **more)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise MicroFailed(f"{command[0]}: {problem}") from None
    if done.returncode != 0:
        raise MicroFailed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return done


def built_programs(messages):
    """Names and paths of the benchmark programs, from the messages of cargo."""
    programs = {}
    for line in messages.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and "bench" in message["target"]["kind"]:
            programs[message["target"]["name"]] = message["executable"]
    return programs


def build():
    """Builds the benchmarks as `cargo bench` would, but with the profile `bench-quick`."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--profile", "bench-quick", "--workspace", "--bench", "*"]
    return built_programs(run([*command, "--message-format=json-render-diagnostics"], cwd=PROJECT).stdout)


def cases_of(name, program):
    """The cases of a program; the program's name is the first part of theirs."""
    lines = run([program, "--list"]).stdout.splitlines()
    return [Case(program, f"{name}/{case}", title) for case, title in (line.split("\t") for line in lines)]


def collected(output):
    """The number of instructions in the output of callgrind."""
    match = re.search(r"^==\d+== Collected : (\d+)$", output, re.MULTILINE)
    if not match:
        raise MicroFailed(f"callgrind gave no count:\n{output.strip()[-2000:]}")
    return int(match[1])


def per_operation(few, more):
    """Instructions of one operation, computed from the counts of both runs."""
    return round((more - few) / (MORE - FEW), 1)


def count(case):
    """Counts the instructions of one operation of a case."""
    # The environment of the caller must not change the counts.
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "TMPDIR": tempfile.gettempdir()}
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [*tool, case.program, case.name.split("/", 1)[1]]
    few, more = (collected(run([*command, str(times)], env=environment).stderr) for times in (FEW, MORE))
    return per_operation(few, more)


def toolchain():
    """What the counts depend on besides this project's code."""
    rustc = os.environ.get("RUSTC", "rustc")
    version = run([rustc, "--version"]).stdout.strip()
    config = run([rustc, "--print", "cfg", *os.environ.get("RUSTFLAGS", "").split()]).stdout
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = flags[1].split() if flags else []
    return {
        "rustc": version,
        "built_for": sorted(re.findall(r'^target_feature="(.+)"$', config, re.MULTILINE)),
        "processor_has": [flag for flag in CPU_FLAGS if flag in flags],
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
    }


def load_record():
    return json.loads(RECORD.read_text()) if RECORD.exists() else {"recorded_with": {}, "instructions": {}}


def differing(recorded, now):
    """The parts of the toolchain that differ from the recorded ones."""
    return [part for part in now if recorded.get(part) != now[part]]


def is_too_high(entry):
    """Whether a case needs more instructions than recorded, beyond the tolerance."""
    recorded = entry["recorded"]
    return recorded is not None and entry["instructions"] - recorded > max(recorded * TOLERANCE, SLACK)


def is_wanted(name, patterns):
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def all_cases(patterns=("*",)):
    if not shutil.which("valgrind"):
        raise MicroFailed("valgrind is not installed, which counts instructions (Debian: apt-get install valgrind)")
    found = [case for name, program in sorted(build().items()) for case in cases_of(name, program)]
    return [case for case in found if is_wanted(case.name, patterns)]


def entries_of(cases, record):
    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        counts = list(pool.map(count, cases))
    return [
        {
            "name": case.name,
            "title": case.title,
            "instructions": instructions,
            "recorded": record["instructions"].get(case.name),
        }
        for case, instructions in zip(cases, counts)
    ]


def remarks(entries, record, now):
    """Yields what a reader of the comparison must know."""
    parts = differing(record["recorded_with"], now)
    if record["instructions"] and parts:
        yield (
            f"Micro-benchmarks: recorded with another {', '.join(parts).replace('_', ' ')}; compilers and libraries"
            " change counts, so the comparison is only a note."
        )
    gone = record["instructions"].keys() - {entry["name"] for entry in entries}
    if gone:
        yield f"Micro-benchmarks: recorded, but not run: {', '.join(sorted(gone))}."


def measure(notes=None):
    """The entries for the report: `name`, `title`, `instructions`, `recorded`. Empty if instructions cannot be counted. In
    that case, and if the comparison means little, a text is added to `notes`."""
    notes = [] if notes is None else notes
    record = load_record()
    try:
        entries = entries_of(all_cases(), record)
        notes.extend(remarks(entries, record, toolchain()))
    except MicroFailed as problem:
        notes.append(f"Micro-benchmarks: {problem}")
        return []
    return entries


def table(entries):
    """Yields the comparison as lines of text."""
    width = max((len(entry["name"]) for entry in entries), default=4)
    yield f"{'case':{width}} {'instructions':>12} {'recorded':>9}  change"
    for entry in entries:
        instructions, recorded = entry["instructions"], entry["recorded"]
        before = "-" if recorded is None else f"{recorded:.1f}"
        change = f"{(instructions / recorded - 1) * 100:+.1f} %" if recorded else "new"
        mark = "  too high" if is_too_high(entry) else ""
        yield f"{entry['name']:{width}} {instructions:12.1f} {before:>9}  {change:>8}{mark}"


def write_record(entries, now, before=None):
    """Writes the counts of these entries to the record; those `before` that are of other cases are kept."""
    counts = {**(before or {}), **{entry["name"]: entry["instructions"] for entry in entries}}
    ordered = dict(sorted(counts.items(), key=lambda item: item[0].split("/")[0]))
    RECORD.write_text(json.dumps({"recorded_with": now, "instructions": ordered}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["*"], help="only these: names or patterns such as 'hpack/*'")
    parser.add_argument("--record", action="store_true", help="write the counts to micro/recorded.json")
    parser.add_argument("--list", action="store_true", help="list the cases")
    args = parser.parse_args()

    record = load_record()
    is_partial = args.cases != ["*"]
    if args.record and is_partial and differing(record["recorded_with"], toolchain()):
        parser.error("the record was made with another toolchain: record all cases")
    before = record["instructions"] if is_partial else {}
    record["instructions"] = {name: n for name, n in record["instructions"].items() if is_wanted(name, args.cases)}
    try:
        cases = all_cases(args.cases)
        if not cases:
            raise MicroFailed("no such case (see --list)")
        if args.list:
            for case in cases:
                print(f"{case.name:32} {case.title}")
            return 0
        entries, now = entries_of(cases, record), toolchain()
    except MicroFailed as problem:
        sys.exit(str(problem))

    print("\n".join(table(entries)))
    if args.record:
        write_record(entries, now, before)
        return 0
    for remark in remarks(entries, record, now):
        print(remark, file=sys.stderr)
    # Counts with another compiler say nothing about changes of this project's code.
    is_comparable = not differing(record["recorded_with"], now)
    return 1 if is_comparable and any(map(is_too_high, entries)) else 0


if __name__ == "__main__":
    sys.exit(main())
