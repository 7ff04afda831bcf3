#!/usr/bin/env python3
"""Runs a command and ends every process that the command leaves behind.

    reap.py COMMAND [ARGUMENT ...]

A test must stop each process that it starts. A process that a test forgets would keep the output of `make test` open, so that the
program that reads this output would wait for it without end. The exit status is that of the command; each process that had to be
ended is named on standard error.

>>> reap(["sh", "-c", "exit 3"])
(3, [])
>>> reap(["sh", "-c", "sleep 987 & (setsid sleep 986 &) & exit 0"], patience=0.1)
(0, ['sleep 986', 'sleep 987'])
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

# From <linux/prctl.h>: processes whose parent ends become children of this process.
PR_SET_CHILD_SUBREAPER = 36
# How long in seconds processes that are about to end may take after the end of the command.
PATIENCE = 10


def children():
    """Maps the pids of this process's children to their command lines."""
    found = {}
    for directory in pathlib.Path("/proc").iterdir():
        try:
            # The parent's pid is the second word after the name of the program, which is in parentheses.
            parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                words = (directory / "cmdline").read_bytes().split(b"\0")
                found[int(directory.name)] = b" ".join(words).decode(errors="replace").strip()
        except (OSError, ValueError, IndexError):
            # The directory is not that of a process, or the process has ended.
            continue
    return found


def collect_ended():
    """Collects all children that have ended; returns the status of each by its pid."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def reap(command, patience=PATIENCE):
    """Runs the command. Returns its exit status and the command lines of the processes that it left behind, which are killed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)
    for number in [signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, lambda number, _frame: os.kill(process.pid, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The terminal sends it to the command, too.
    status = None
    while status is None:
        pid, code = os.waitpid(-1, 0)
        if pid == process.pid:
            status = os.waitstatus_to_exitcode(code)
    process.returncode = status
    deadline = time.monotonic() + patience
    while children() and time.monotonic() < deadline:
        collect_ended()
        time.sleep(0.05)
    left = []
    # Children of a killed process become children of this one, and are killed in the next round.
    while found := children():
        for pid, words in found.items():
            if words:
                left.append(words)
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        collect_ended()
    return (128 - status if status < 0 else status), sorted(left)


if __name__ == "__main__":
    code, left = reap(sys.argv[1:])
    for words in left:
        print(f"a process was left behind, and was killed: {words}", file=sys.stderr)
    sys.exit(code)
