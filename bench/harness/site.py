"""The files that are served, and the certificate: alike for every server."""

import shutil
import subprocess
import tempfile
from pathlib import Path

MAKE_CERT = Path(__file__).parents[2] / "examples" / "make-cert.sh"


class Site:
    """A directory that vanishes with the run. A context manager."""

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="h2o-bench-"))
        # Servers started as root read it as another user.
        self.dir.chmod(0o755)
        self.root = self.dir / "root"
        self.root.mkdir()
        (self.root / "1b.txt").write_bytes(b"x")
        (self.root / "6b.txt").write_bytes(b"hello\n")
        (self.root / "612b.txt").write_bytes(b"0123456789abcde\n" * 38 + b"0123")
        (self.root / "1k.txt").write_bytes(b"0123456789abcde\n" * 64)
        (self.root / "1280b.txt").write_bytes(b"0123456789abcde\n" * 80)
        (self.root / "513k.bin").write_bytes(bytes(range(256)) * 4 * 513)
        (self.root / "10m.bin").write_bytes(bytes(range(250)) * 40_000)
        tls = self.dir / "tls"
        subprocess.run(["sh", MAKE_CERT, tls], check=True, stdout=subprocess.DEVNULL)
        self.cert, self.key = tls / "cert.pem", tls / "key.pem"
        tls.chmod(0o755)
        self.started = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def size_of(self, path):
        return (self.root / path.lstrip("/")).stat().st_size

    def new_dir(self, name):
        """A directory for one start of a server."""
        self.started += 1
        new = self.dir / f"{self.started:03}-{name}"
        new.mkdir()
        return new
