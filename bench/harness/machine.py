"""Describes the machine and the software of a run."""

import os
import platform
import re
import subprocess
from pathlib import Path


def first_line(command):
    """The first line that a program prints, or None if the program cannot be run."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # nginx prints its version to standard error.
    lines = (run.stdout or run.stderr).strip().splitlines()
    return lines[0] if lines else None


def cpu_model():
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def hypervisor():
    text = Path("/proc/cpuinfo").read_text()
    return "virtual machine" if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE) else "bare metal"


def describe():
    """Facts for the head of the report, in the order shown."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "Processor": f"{cpu_model()}, {os.cpu_count()} cores, {hypervisor()}",
        "Memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown",
        "Kernel": f"{platform.system()} {platform.release()}",
        "Load generator": first_line(["h2load", "--version"]) or "h2load missing",
        "TLS client": first_line(["openssl", "version"]) or "openssl missing",
    }


def load_average():
    return os.getloadavg()[0]


class CoreClock:
    """Measures the busy time of one core, to find how much of it processes other than the server used."""

    def __init__(self, core):
        self.core = core
        self.tick = os.sysconf("SC_CLK_TCK")

    def busy_seconds(self):
        match = re.search(rf"^cpu{self.core} (.+)$", Path("/proc/stat").read_text(), re.MULTILINE)
        if not match:
            return 0.0
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, match[1].split()[:8])
        return (user + nice + system + irq + softirq + steal) / self.tick
