"""The files that all servers serve, and their certificate."""

import random
import re
import shutil
import string
import subprocess
import tempfile
import time
from pathlib import Path

MAKE_CERT = Path(__file__).parents[2] / "examples" / "make-cert.sh"
UNITS = {"b": 1, "k": 1024, "m": 1_000_000}
# Files above this size are bulk, which some servers do not support.
BULK = 16 * 1024
LINE = b"0123456789abcde\n"

# Names of the files in the served directory; each begins with its size.
FILES = ("1b.txt", "6b.txt", "612b.txt", "1k.txt", "1280b.txt", "513k.bin", "10m.bin", "10m.txt", "400k.txt")
# A file that is served only for a host other than the default one:
HOST_FILE = "host-1k.txt"


# Seconds to wait after files were written; timestamps of files may be as coarse as two seconds.
SETTLE = 3.0


def size_of_name(path):
    """The size of a file, which is in its name, or None if there is no such file.

    `/many/SIZE/00000.txt` is the first of many files of that size. Scripts answer with files, too: below `/script-fetch/` and
    `/script-guard/`.
    """
    path = re.sub(r"^/script-(fetch|guard)(?=/)", "", path)
    many = re.fullmatch(r"/many/(\d+)([bkm])/\d{5}\.txt", path)
    if not many and path.lstrip("/") not in (*FILES, HOST_FILE):
        return None
    amount, unit = many.groups() if many else re.search(r"(\d+)([bkm])\.", path).groups()
    return int(amount) * UNITS[unit]


def content(name, size):
    """The content of a file: text or, for `.bin`, octets of all values."""
    if name == "400k.txt":
        # The text consists of words, like a page: repeated lines, as in the other files, would compress to almost nothing.
        chance = random.Random(7)
        words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randrange(2, 10))) for _ in range(2000)]
        weights = [1 / (1 + rank) for rank in range(len(words))]
        return " ".join(chance.choices(words, weights, k=size // 3)).encode()[:size]
    if name.endswith(".bin"):
        pattern = bytes(range(256)) * 4
    elif size == 6:
        pattern = b"hello\n"
    else:
        pattern = LINE
    return (pattern * (size // len(pattern) + 1))[:size]


class Site:
    """A directory that is removed at the end of the run. A context manager."""

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="h2o-bench-"))
        try:
            self.fill()
        except BaseException:
            self.__exit__()
            raise

    def fill(self):
        # Servers that root starts read the directory as another user.
        self.dir.chmod(0o755)
        self.root, self.host_root = self.dir / "root", self.dir / "host-root"
        self.root.mkdir()
        self.host_root.mkdir()
        for name in FILES:
            (self.root / name).write_bytes(content(name, size_of_name(name)))
        (self.host_root / HOST_FILE).write_bytes(content(HOST_FILE, size_of_name(HOST_FILE)))
        tls = self.dir / "tls"
        subprocess.run(["sh", MAKE_CERT, tls], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.cert, self.key = tls / "cert.pem", tls / "key.pem"
        # HAProxy needs certificate and key in one file.
        self.pem = tls / "both.pem"
        self.pem.write_bytes(self.cert.read_bytes() + self.key.read_bytes())
        tls.chmod(0o755)
        self.started = 0
        self.settle()

    @staticmethod
    def settle():
        """Waits, because servers may not cache files that were written just now."""
        time.sleep(SETTLE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def size_of(self, path):
        return size_of_name(path)

    def paths(self, case):
        """The paths of all files that the case requests; writes those that do not exist yet."""
        if not case.path.startswith("/many/"):
            return [case.path]
        directory = Path(case.path).parent
        paths = [str(directory / f"{index:05}.txt") for index in range(case.files)]
        there = self.root / directory.relative_to("/")
        there.mkdir(parents=True, exist_ok=True)
        body = content(case.path, self.size_of(case.path))
        missing = paths[len(list(there.iterdir())) :]
        for path in missing:
            # Each file begins with its own path, so that no two are alike.
            (self.root / path.lstrip("/")).write_bytes((path.encode() + body)[: len(body)])
        if missing:
            self.settle()
        return paths

    def new_dir(self, name):
        """Makes a directory for one start of a server."""
        self.started += 1
        new = self.dir / f"{self.started:03}-{name}"
        new.mkdir()
        return new
