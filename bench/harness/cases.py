"""The cases: a TOML file each, in `cases/`. The number at the beginning of a file's name gives the order."""

import fnmatch
import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from .site import BULK, size_of_name


@dataclass(frozen=True)
class Figure:
    """The figure by which a case compares servers. For all of them less is better."""

    title: str
    unit: str
    per: str
    # Factor to compute how many of `per` one core manages in a second, if that is meaningful.
    per_core_second: float | None = None


FIGURES = {
    "cpu_us_per_request": Figure("processor time per request", "µs", "request", 1e6),
    "cpu_ms_per_gb": Figure("processor time per gigabyte", "ms", "gigabyte", 1e3),
    "cpu_us_per_handshake": Figure("processor time per connection with handshake", "µs", "connection", 1e6),
    "cpu_us_per_connection": Figure("processor time per connection", "µs", "connection", 1e6),
    "header_octets_per_response": Figure("header octets per response", "B", "response"),
    "bytes_per_connection": Figure("memory per idle connection", "B", "connection"),
    "page_ms": Figure("time until a page is complete", "ms", "page"),
}
# Figures by which cases of a batch may be compared with each other.
METRICS = (*FIGURES, "octets_per_response", "per_second", "gb_per_second")
# The drivers, with the modes of each.
MODES = {
    "h2load": ("",),
    "handshakes": ("full", "resumed"),
    "connections": ("new", "kept"),
    "h3load": ("", "full", "resumed", "page"),
    "idle": ("request", "silent"),
}
VERSIONS = {"1.2": "TLSv1.2", "1.3": "TLSv1.3"}
LIMITS = ("peer", "floor")
# The attributes of a link between client and server: rate, round trip, and queue in each direction.
LINK = {"kbit", "round_trip_ms", "queue_kb"}
# The backends that a proxy may have: a server of servers/, or a server of the same kind as the proxy.
ITSELF = "itself"
# Value of `backend` for a FastCGI application that answers at once, client/fastcgi_echo.c.
FASTCGI = "fastcgi"
BACKENDS = ("nginx", "h2o", ITSELF, FASTCGI)
# The content codings that clients may ask for in a case; empty for none.
CODINGS = ("", "gzip", "br", "zstd")


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    title: str
    group: str
    # One sentence that says what the case shows.
    shows: str
    driver: str
    scheme: str
    path: str
    connections: int
    figure: str
    status: int = 200
    protocol: str = "h1"
    # Requests in progress at a time on each connection; HTTP/1 has one, and a page requests all of its files.
    streams: int = 1
    # Further figures that the report shows besides the main one.
    also: tuple = ()
    mode: str = ""
    # Requests sent before the measurement, to fill caches and to learn the server's rate.
    warm_up: int = 2000
    # Factor by which the case is measured longer than others, so that opening its connections does not count.
    longer: int = 1
    # The only TLS version and cipher suite that clients offer, if the scheme is https.
    tls: str = "1.3"
    suite: str = "TLS_AES_128_GCM_SHA256"
    # Number of different files that are requested in turn; `path` is the first of them.
    files: int = 1
    # Number of hosts that are configured besides the default one; requests are for the last of them.
    hosts: int = 0
    # The backend, if servers take part in the case as proxies.
    backend: str = ""
    # The content coding that clients ask for, and the level at which servers compress.
    coding: str = ""
    level: int = 0
    # The link over which pages are loaded.
    link: dict = field(default_factory=dict)
    # Whether the case belongs to the daily subset.
    quick: bool = False
    # Cases with the same word are measured in the same rounds, so that they can be compared.
    together: str = ""
    # Whether the floor program takes part.
    floor: bool = False
    # Largest allowed ratio of this project's figure to that of another server.
    limits: dict = field(default_factory=dict)
    # The case that this project's result is divided by, and the largest allowed ratio.
    compare: dict = field(default_factory=dict)

    @classmethod
    def load(cls, path):
        with path.open("rb") as file:
            spec = tomllib.load(file)

        def must(fact, text):
            if not fact:
                raise ValueError(f"{path.name}: {text}")

        for known in fields(cls):
            kind = list if known.type is tuple else known.type
            must(
                known.name not in spec or isinstance(spec[known.name], kind),
                f"{known.name} must be of the kind {kind.__name__}",
            )
        must(spec.get("figure") in FIGURES, f"figure must be one of {', '.join(FIGURES)}")
        unknown = set(spec.get("also", ())) - set(FIGURES)
        must(not unknown, f"unknown figures in `also`: {', '.join(sorted(unknown))}")
        try:
            case = cls(name=path.stem.partition("-")[2], **spec)
        except TypeError as error:
            raise ValueError(f"{path.name}: {error}") from None
        must(case.protocol in ("h1", "h2", "h3"), "protocol must be h1, h2 or h3")
        must(case.scheme in ("http", "https"), "scheme must be http or https")
        must(case.driver in MODES, f"driver must be one of {', '.join(MODES)}")
        modes = MODES[case.driver]
        must(case.mode in modes, f"mode must be one of {', '.join(map(repr, modes))} with the driver {case.driver}")
        must(case.tls in VERSIONS, f"tls must be one of {', '.join(VERSIONS)}")
        must(case.suite.startswith("TLS_") == (case.tls == "1.3"), f"TLS {case.tls} has no suite {case.suite}")
        must(case.status != 200 or size_of_name(case.path), f"{case.path} is not a file of harness/site.py")
        must(
            case.files == 1 or re.fullmatch(r"/many/\w+/00000\.txt", case.path),
            "path must be /many/SIZE/00000.txt with several files",
        )
        must(case.connections > 0 and case.streams > 0 and case.files > 0, "connections, streams and files must be at least 1")
        must(
            case.driver != "connections" or (case.protocol, case.scheme) == ("h1", "http"),
            "the driver connections asks by HTTP/1 in cleartext",
        )
        must(case.streams == 1 or case.protocol != "h1", "only HTTP/2 and HTTP/3 have several streams")
        must(
            (case.protocol == "h3") == (case.driver == "h3load") or case.driver == "idle",
            "the driver h3load asks by HTTP/3, and only it and idle do",
        )
        must(
            case.protocol != "h3" or (case.scheme, case.tls, case.suite) == ("https", "1.3", cls.suite),
            f"HTTP/3 is asked with https and {cls.suite}",
        )
        must(set(case.link) == (LINK if case.mode == "page" else set()), f"pages, and only they, have a link: {LINK}")
        must(case.backend in ("", *BACKENDS), f"backend must be one of {', '.join(BACKENDS)}")
        must(
            not case.backend
            or (case.driver == "h2load" and not case.hosts and (not case.floor or case.backend == FASTCGI)),
            "proxies are asked by the driver h2load, without hosts; the floor program is none, but in front of FastCGI",
        )
        must(case.coding in CODINGS, f"coding must be one of {', '.join(map(repr, CODINGS))}")
        must(
            bool(case.coding) == (case.level > 0) and (not case.coding or (case.driver, case.backend) == ("h2load", "")),
            "a coding has a level, and files are asked by the driver h2load",
        )
        must(set(case.limits) <= set(LIMITS), f"limits are {' and '.join(LIMITS)}")
        must("floor" not in case.limits or case.floor, "a limit to the floor program needs floor = true")
        if case.compare:
            must(
                set(case.compare) in ({"with", "metric", "at_least"}, {"with", "metric", "at_most"}),
                "compare needs `with`, `metric`, and either `at_least` or `at_most`",
            )
            must(case.compare["metric"] in METRICS, f"metric must be one of {', '.join(METRICS)}")
            must(case.together, "only cases of one batch can be compared: `together` is missing")
        return case

    def needs(self):
        """What a server must support for the case; see `[lacks]` in servers/*.toml."""
        needs = {"h2c" if (self.protocol, self.scheme) == ("h2", "http") else self.protocol}
        if self.backend:
            needs |= {"fastcgi"} if self.backend == FASTCGI else {"proxy"}
            if self.backend == ITSELF:
                needs.add("proxy-to-itself")
        if self.coding:
            needs.add(self.coding)
        if self.scheme == "https":
            needs.add("tls12" if self.tls == "1.2" else "tls13")
        if self.path.startswith("/script"):
            needs.add("script")
            if self.path.startswith("/script-guard/"):
                needs.add("dos-detector")
            if self.path.startswith("/script-fetch/"):
                needs.add(f"script-fetch-{self.protocol}")
        elif self.status == 301:
            needs.add("redirect")
        elif size_of_name(self.path) > BULK:
            needs.add("proxy-bulk" if self.backend else "bulk")
        if self.path.startswith("/many/"):
            needs.add("many-files")
        if self.hosts:
            needs.add("hosts")
        if self.driver == "idle":
            needs |= {"idle", "silent" if self.mode == "silent" else f"idle-{self.protocol}"}
        elif self.driver == "handshakes" or self.mode in ("full", "resumed"):
            needs.add("handshakes")
        elif self.mode == "new":
            needs.add("churn")
        return needs


def check_comparisons(cases):
    """Checks that each case is compared only with one that is measured in the same rounds."""
    named = {case.name: case for case in cases}
    if len(named) < len(cases):
        names = [case.name for case in cases]
        raise ValueError(f"several cases are named {max(names, key=names.count)}")
    for case in cases:
        if case.compare:
            other = named.get(case.compare["with"])
            if other is None or other is case or other.together != case.together:
                raise ValueError(f"{case.name}: {case.compare['with']} is no other case of the batch {case.together}")


def load_all(directory, wanted=()):
    """All cases, or those whose name or group matches one of the patterns."""
    cases = [Case.load(path) for path in sorted(Path(directory).glob("*.toml"))]
    check_comparisons(cases)
    if not wanted:
        return cases

    def fits(case):
        return any(
            fnmatch.fnmatchcase(case.name, pattern) or case.group.lower() == pattern.lower() for pattern in wanted
        )

    return [case for case in cases if fits(case)]


def batches(cases):
    """The cases in order, as lists: cases that are measured together are in one list."""
    found = {}
    for case in cases:
        found.setdefault(case.together or f"only {case.name}", []).append(case)
    return list(found.values())
