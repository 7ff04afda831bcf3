"""Processes on a core of their own, and what they have used."""

import os
import re
import resource
import select
import signal
import subprocess
import time
from pathlib import Path


def spawn(command, core, **options):
    """Starts `command` pinned to `core`, with all descriptors it may have; its children and threads inherit that."""

    def prepare():
        os.sched_setaffinity(0, {core})
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    return subprocess.Popen(command, preexec_fn=prepare, **options)


def first_line(process, seconds):
    """The first line that a new process writes, or what it has after so many seconds."""
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            break
        octet = os.read(process.stdout.fileno(), 1)  # past the buffer, so that `select` knows all
        if not octet:
            break
        line += octet
    return line.decode(errors="replace").strip()


def ended_children_seconds():
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree(root):
    """The process and all its descendants."""
    children = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        # The name, in parentheses, may itself hold blanks and parentheses.
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found, to_visit = [], [root]
    while to_visit:
        pid = to_visit.pop()
        found.append(pid)
        to_visit += children.get(pid, [])
    return found


def cpu_ns(root):
    """Processor time of every thread of the process and its descendants.

    From schedstat, in nanoseconds: the clock ticks of /proc/PID/stat are too
    coarse for a run of a second. Exact while the threads sleep, which a server
    without requests does. A thread that ends takes its time along; no server
    here ends threads while it serves.
    """
    total = 0
    for pid in tree(root):
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total


def pss_bytes(root):
    """Proportional set size: private pages, and a share of the shared ones."""
    total = 0
    for pid in tree(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1]) * 1024
    return total


def open_sockets(root):
    """How many sockets the processes hold, to see that connections were really accepted."""
    count = 0
    for pid in tree(root):
        try:
            for fd in os.scandir(f"/proc/{pid}/fd"):
                count += os.readlink(fd.path).startswith("socket:")
        except OSError:
            continue
    return count


def stop(process, patience=5.0):
    """Ends a process started by `spawn`, and what it left behind, by their ids."""
    if process.poll() is not None:
        return
    pids = tree(process.pid)
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # A worker whose parent was killed would live on with the connections.
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids[1:]):
        time.sleep(0.02)
    for pid in pids[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
