"""The cases: a TOML file each, in `cases/`. The number before the name gives the order."""

import fnmatch
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """The number a case is about. Less is better, for all of them."""

    title: str
    unit: str
    per: str
    # How many of `per` one core second pays for, if that makes sense.
    per_core_second: float | None = None


FIGURES = {
    "cpu_us_per_request": Figure("processor time per request", "µs", "request", 1e6),
    "cpu_ms_per_gb": Figure("processor time per gigabyte", "ms", "gigabyte", 1e3),
    "cpu_us_per_handshake": Figure("processor time per connection with handshake", "µs", "connection", 1e6),
    "header_octets_per_response": Figure("header octets per response", "B", "response"),
    "bytes_per_connection": Figure("memory per idle connection", "B", "connection"),
}


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    title: str
    group: str
    driver: str
    scheme: str
    path: str
    connections: int
    figure: str
    status: int = 200
    protocol: str = "h1"
    # Requests under way at a time on each connection; HTTP/1 has one.
    streams: int = 1
    # Other figures that the report shows beside the main one.
    also: tuple = ()
    mode: str = ""
    # Requests sent before anything is measured, to warm caches and to learn the rate.
    warm_up: int = 2000

    @classmethod
    def load(cls, path):
        with path.open("rb") as file:
            spec = tomllib.load(file)
        if spec.get("figure") not in FIGURES:
            raise ValueError(f"{path.name}: figure must be one of {', '.join(FIGURES)}")
        unknown = set(spec.get("also", ())) - set(FIGURES)
        if unknown:
            raise ValueError(f"{path.name}: unknown figures in `also`: {', '.join(sorted(unknown))}")
        if spec.get("protocol", "h1") not in ("h1", "h2"):
            raise ValueError(f"{path.name}: protocol must be h1 or h2")
        try:
            return cls(name=path.stem.partition("-")[2], **spec)
        except TypeError as error:
            raise ValueError(f"{path.name}: {error}") from None


def load_all(directory, wanted=()):
    """Every case, or those whose name or group fits one of the patterns."""
    cases = [Case.load(path) for path in sorted(Path(directory).glob("*.toml"))]
    if not wanted:
        return cases

    def fits(case):
        return any(
            fnmatch.fnmatchcase(case.name, pattern) or case.group.lower() == pattern.lower() for pattern in wanted
        )

    return [case for case in cases if fits(case)]
