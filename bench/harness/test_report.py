"""Tests of the report, with an invented run that has every kind of result."""

import random
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

from . import chart, page, report
from .results import MET, MISSED, UNKNOWN, WITHIN, Results, digits, table

SERVERS = {
    "h2o": ("h2o (this server)", "own", "h2o version 0.9.0", ["#0a7480", "#4fc3ce"], 1.0),
    "apache": ("Apache httpd", "peer", "Server version: Apache/2.4.62 (Debian)", ["#b58900", "#d9b13b"], 2.9),
    "caddy": ("Caddy", "peer", "2.6.2", ["#2f6fd0", "#7fb0f5"], 6.5),
    "debian-h2o": ("H2O 2.2.5 (Debian)", "peer", "h2o version 2.2.5", ["#8f5fa8", "#c79be0"], 1.5),
    "haproxy": ("HAProxy", "peer", "HAProxy version 2.6.12-1+deb12u1 2023/12/16", ["#6b7b84", "#a9b8c0"], 1.8),
    "nginx": ("nginx", "peer", "nginx version: nginx/1.22.1", ["#cf5b12", "#f0935a"], 1.3),
    "floor": ("floor", "floor", "the least that must be done", ["#10222b", "#e4eef1"], 0.75),
}
# For each group of cases: its name, its figure, a typical value of the figure, and the number of cases.
GROUPS = [
    ("Small answers", "cpu_us_per_request", 9.0, 8),
    ("Many files and hosts", "cpu_us_per_request", 12.0, 5),
    ("Bulk", "cpu_ms_per_gb", 180.0, 6),
    ("Handshakes", "cpu_us_per_handshake", 310.0, 6),
    ("Connections that come and go", "cpu_us_per_connection", 42.0, 3),
    ("Memory of idle connections", "bytes_per_connection", 900.0, 4),
    ("HTTP/2, small answers", "cpu_us_per_request", 2.4, 9),
    ("HTTP/2, bulk", "cpu_ms_per_gb", 240.0, 6),
    ("HTTP/2, heads", "header_octets_per_response", 30.0, 3),
    ("HTTP/2, memory of idle connections", "bytes_per_connection", 14_000.0, 4),
]
DETAILS = [
    "1 KB, 10 connections",
    "in cleartext, 301, 16 streams on each of 200 connections",
    "TLS 1.2, ECDHE-ECDSA-CHACHA20-POLY1305, 1280 octets, 50 connections",
    "612 octets",
]


def sample():
    """The data of a run: six servers and the floor, ten groups; some cases lack a server, have limits, or are compared with another case."""
    chance = random.Random(7)
    cases = []
    for number, (group, figure, usual, count) in enumerate(GROUPS):
        for index in range(count):
            cases.append(made_up_case(chance, f"case-{number}-{index}", group, figure, usual, index))
    cases[3]["compare"] = {"with": cases[2]["name"], "metric": "cpu_us_per_request", "at_most": 1.1}
    cases[14]["compare"] = {"with": cases[13]["name"], "metric": "gb_per_second", "at_least": 0.97}
    cases[15]["compare"] = {"with": "not-run", "metric": "gb_per_second", "at_least": 0.97}
    servers = {
        name: {"title": title, "role": role, "own": role == "own", "version": version, "colour": colour}
        for name, (title, role, version, colour, _) in SERVERS.items()
    }
    return {
        "began": "2026-11-22 04:00 UTC",
        "machine": {
            "Processor": "AMD EPYC 7B13, 2 cores, virtual machine",
            "Memory": "8 GiB",
            "Kernel": "Linux 6.1.0",
            "Load generator": "h2load nghttp2/1.52.0",
        },
        "settings": {
            "rounds": 5,
            "seconds": 3.0,
            "server_core": 0,
            "client_core": 1,
            "tls_group": "X25519",
        },
        "load_before": 0.12,
        "load_after": 1.03,
        "servers": servers,
        "cases": cases,
        "micro": [
            {"name": "parse", "title": "HTTP/1 head of 12 fields", "instructions": 4_812, "recorded": 4_790},
            {"name": "hpack", "title": "HPACK block of 9 fields", "instructions": 1_204, "recorded": 1_290},
            {"name": "new", "title": "Router, 64 paths", "instructions": 733, "recorded": None},
        ],
        "notes": ["HAProxy: a note about <something> & more."],
    }


def made_up_case(chance, name, group, figure, usual, index):
    usual *= chance.uniform(0.7, 1.6) * (20 if index == 2 and "memory" in group else 1)
    rounds, left_out = {}, {}
    for server, (_, role, _, _, factor) in SERVERS.items():
        if role == "floor" and index % 3 == 2:
            continue
        if server == "haproxy" and "per_gb" in figure:
            left_out[server] = "answers of more than 16 KB cannot be given from memory by its `return` action"
            continue
        factor *= chance.choice([0.7, 0.8, 0.9, 1.0, 1.0, 1.3, 1.7]) if role == "own" else chance.uniform(0.85, 1.2)
        rounds[server] = [made_up_round(chance, figure, usual * factor) for _ in range(3 if "bytes" in figure else 5)]
    return {
        "name": name,
        "title": f"{group}: {DETAILS[index % len(DETAILS)]}",
        "group": group,
        "shows": "What a request costs when <nothing> else is in the way & nobody waits.",
        "figure": figure,
        "also": ["header_octets_per_response"] if group == "HTTP/2, small answers" else [],
        "command": "h2load -t1 -c10 -n200000 --h1 {url}" if index % 2 else "",
        "limits": [{"peer": 0.75}, {"peer": 0.9, "floor": 1.35}, {}, {"peer": 1.1}][index % 4],
        "compare": None,
        "answers": {server: {"head": 180 + len(server), "body": 1000} for server in rounds},
        "left_out": left_out,
        "rounds": rounds,
    }


def made_up_round(chance, figure, value):
    value *= chance.uniform(0.96, 1.05)
    numbers = {figure: value, "pss": 9e6 * chance.uniform(1, 1.1)}
    if figure == "bytes_per_connection":
        return numbers | {"pss_before": 4e6}
    numbers |= {"core_busy": chance.uniform(0.9, 1.0), "core_others": chance.uniform(0, 0.02)}
    numbers |= {"gb_per_second": 1000 / value} if "per_gb" in figure else {"per_second": 1e6 / value}
    if figure == "cpu_us_per_request":
        numbers |= {"latency_p50_us": value * 9, "latency_p99_us": value * 30, "octets_per_response": 1180.0}
        numbers["header_octets_per_response"] = value * 4
    return numbers


class Page(HTMLParser):
    """A parser that checks whether all elements are closed, and collects what the page refers to."""

    VOID = {"meta", "br", "link", "img", "hr", "wbr"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.sources = [], [], [], []
        self.feed(text)
        self.close()
        if self.open:
            raise ValueError(f"not closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if "href" in attrs else []
        self.sources += [attrs["src"]] if "src" in attrs else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> out of place at {self.getpos()}")


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = Results(sample())

    def test_a_sample_has_the_size_of_a_full_run(self):
        self.assertEqual(len(self.results.groups()), 10)
        self.assertGreater(len(self.results.cases()), 50)

    def test_digits_are_three(self):
        for value, text in ((0, "0"), (0.0123, "0.012"), (12.345, "12.3"), (-3.0, "-3.00"), (1e3, "1,000")):
            self.assertEqual(digits(value), text)

    def test_budgets_are_judged_by_the_median_and_the_spread(self):
        results = Results(small({"h2o": [0.7, 0.8, 0.9], "nginx": [1.0, 1.0, 1.0], "floor": [0.4, 0.4, 0.4]}))
        case = results.cases()[0]
        for limits, verdict in (
            ({"peer": 0.8}, MET),
            ({"peer": 0.75}, WITHIN),
            ({"peer": 0.69}, MISSED),
            ({"floor": 2.0}, MET),
            ({"floor": 1.7}, MISSED),
        ):
            case["limits"] = limits
            self.assertEqual([budget.verdict for budget in results.budgets()], [verdict], limits)
        case["limits"] = {}
        for compare, verdict in (({"at_least": 1}, MET), ({"at_most": 0.9}, MISSED)):
            case["compare"] = {"with": case["name"], "metric": "per_second"} | compare
            self.assertEqual(results.comparison(case).verdict, verdict)
        case["compare"]["with"] = "other"
        self.assertEqual(results.comparison(case).verdict, UNKNOWN)

    def test_the_floor_is_never_the_best_peer(self):
        for case in self.results.cases():
            self.assertIn(self.results.best_peer(case), self.results.peers())

    def test_the_headline_has_each_group_and_the_worst_case(self):
        cases = self.results.headline()
        self.assertEqual({case["group"] for case in cases}, set(self.results.groups()))
        self.assertTrue(10 <= len(cases) <= 14)
        compared = self.results.cases()
        worst = max(compared, key=lambda case: self.results.to_best_peer(case, "h2o").median)
        self.assertIn(worst["name"], [case["name"] for case in cases])

    def test_columns_without_a_number_are_dropped(self):
        results = Results(small({"h2o": [1.0, 2.0], "nginx": [3.0, 3.0]}))
        numbers = table(results, results.cases()[0])
        self.assertEqual(numbers.columns, ["processor time per request, µs", "ratio to best peer", "requests/s"])
        self.assertEqual([cells[1] for _, cells in numbers.rows], ["0.50 (0.33–0.67)", "best peer"])

    def test_markdown_says_why_a_server_is_left_out_and_has_even_tables(self):
        text = report.markdown(self.results)
        self.assertIn("Left out: HAProxy: answers of more than 16 KB", text)
        before = 0
        for line in text.splitlines():
            columns = line.count("|") if line.startswith("|") else 0
            self.assertTrue(not before or not columns or columns == before, line)
            before = columns

    def test_page_is_well_formed_and_refers_only_to_itself(self):
        for data in (sample(), small({"h2o": [1.0]}), small({"nginx": [1.0]}), small({})):
            text = page.html(Results(data))
            parsed = Page(text)
            self.assertEqual(parsed.sources, [])
            self.assertEqual(len(parsed.ids), len(set(parsed.ids)))
            for link in parsed.links:
                self.assertIn(link, [f"#{name}" for name in parsed.ids])
            self.assertNotIn("@import", text)
            self.assertNotIn("url(", text)

    def test_charts_are_well_formed(self):
        for data in (sample(), small({"h2o": [1.0], "nginx": [2.0]}), small({"h2o": [1.0]})):
            results = Results(data)
            for text in (chart.headline_file(results), chart.every_case(results, chart.NARROW)):
                self.assertTrue(ElementTree.fromstring(text).tag.endswith("svg"))

    def test_ticks_are_round_and_have_room(self):
        for low, high in ((0.5, 2.0), (0.01, 0.9), (0.2, 700.0), (0.4, 9.0)):
            axis = chart.Axis(low, high, 20, 340)
            ticks = axis.ticks()
            self.assertTrue(2 <= len(ticks) <= 10, ticks)
            for one, next_one in zip(ticks, ticks[1:]):
                self.assertGreater(axis.x(next_one) - axis.x(one), 20, (low, high, ticks))

    def test_wrapped_lines_fit(self):
        for line in chart.wrap("HTTP/2 in cleartext, 301, 16 streams on each of 200 connections", 200, 13):
            self.assertLessEqual(chart.width_of(line, 13), 200)

    @unittest.skipUnless(which("chromium"), "needs chromium")
    def test_page_in_a_browser(self):
        with tempfile.TemporaryDirectory() as directory:
            report.write(self.results, Path(directory))
            script = Path(__file__).parents[1] / "check_page.py"
            command = [sys.executable, script, directory]
            run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            # The check finds what is wrong in a bad page.
            bad = '<main><p style="width:900px">wide</p><img src="x.png"></main><script>throw 1</script>'
            (Path(directory) / "report.html").write_text(bad)
            run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
            for complaint in ("in a window of 400", "beyond the window: wide", "x.png", "exception"):
                self.assertIn(complaint, run.stdout)


def small(values):
    """A run with one case, these numbers, and only the keys that are required."""
    rounds = {
        name: [{"cpu_us_per_request": each, "per_second": 5.0} for each in numbers] for name, numbers in values.items()
    }
    case = {
        "name": "one",
        "title": "One",
        "group": "All",
        "figure": "cpu_us_per_request",
        "limits": {},
        "rounds": rounds,
    }
    data = sample()
    return data | {"cases": [case], "notes": [], "micro": []}


if __name__ == "__main__":
    unittest.main()
