"""Starts processes on a core of their own, and reads what they have used."""

import os
import re
import resource
import select
import signal
import subprocess
import time
from pathlib import Path


def spawn(command, core, **options):
    """Starts `command`, pinned to `core` and with the largest allowed number of descriptors; its children inherit both."""

    def prepare():
        os.sched_setaffinity(0, {core})
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    return subprocess.Popen(command, preexec_fn=prepare, **options)


def first_line(process, seconds):
    """The first line that a new process writes, or the part that it has written after `seconds`."""
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            break
        octet = os.read(process.stdout.fileno(), 1)  # without Python's buffer, so that `select` sees all bytes
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
            continue  # the process has ended meanwhile
        # The name in parentheses may itself contain blanks and parentheses.
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
    coarse for a run of a second. It is exact while the threads sleep, as those
    of a server without requests do. The time of threads that have ended is not
    included; no server here ends threads while it serves.
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
    """Proportional set size: private pages, and each shared page divided by the number of processes that share it."""
    total = 0
    for pid in tree(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1]) * 1024
    return total


def open_sockets(root):
    """Number of sockets that the processes have open, which shows whether connections were accepted."""
    count = 0
    for pid in tree(root):
        try:
            for fd in os.scandir(f"/proc/{pid}/fd"):
                count += os.readlink(fd.path).startswith("socket:")
        except OSError:
            continue
    return count


def stop(process, patience=5.0):
    """Ends a process that `spawn` started, and its descendants, by their process ids."""
    if process.poll() is not None:
        return
    pids = tree(process.pid)
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # A worker whose parent was killed could live on with its connections.
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids[1:]):
        time.sleep(0.02)
    for pid in pids[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
