"""Turns the numbers into `report.json`, `report.md` and a chart for each group of cases."""

import json
import re

from . import chart, stats
from .cases import FIGURES


def digits(value):
    """Three figures that mean something, without an exponent."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def with_spread(spread, scale=1.0, unit=""):
    """`median (least–most)`."""
    if spread is None:
        return "–"
    low, middle, high = (digits(value * scale) for value in (spread.low, spread.median, spread.high))
    return f"{middle}{unit} ({low}–{high})"


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Results:
    """One run, as kept in `report.json`."""

    def __init__(self, data):
        self.data = data

    def servers(self):
        return self.data["servers"]

    def peers(self):
        return [name for name, server in self.servers().items() if not server["own"]]

    def cases(self):
        return [case for case in self.data["cases"] if case["rounds"]]

    def groups(self):
        found = {}
        for case in self.cases():
            found.setdefault(case["group"], []).append(case)
        return found

    def spread(self, case, server, metric=None):
        return stats.of_rounds(case["rounds"].get(server, []), metric or case["figure"])

    def best_peer(self, case, metric=None):
        """The peer with the lowest median, or None."""
        there = [name for name in self.peers() if self.spread(case, name, metric)]
        return min(there, key=lambda name: self.spread(case, name, metric).median, default=None)

    def to_best_peer(self, case, server, metric=None):
        """How this server compares with the best peer, or None for the best peer itself."""
        best = self.best_peer(case, metric)
        if best is None or best == server or not case["rounds"].get(server):
            return None
        return stats.ratio(case["rounds"][server], case["rounds"][best], metric or case["figure"])


def write(results, out):
    """Writes everything to the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(results.data, indent=1, ensure_ascii=False) + "\n")
    for old in out.glob("*.svg"):
        old.unlink()
    for group, cases in results.groups().items():
        (out / f"{slug(group)}.svg").write_text(draw_group(results, group, cases))
    (out / "report.md").write_text(markdown(results))


def draw_group(results, group, cases):
    figure = FIGURES[cases[0]["figure"]]
    clusters = []
    for case in cases:
        bars = []
        for name, server in results.servers().items():
            spread = results.spread(case, name)
            text = with_spread(spread) if spread else "no result"
            bars.append(chart.Bar(server["title"], tuple(server["colour"]), spread, text))
        clusters.append(chart.Cluster(case["title"], bars))
    return chart.draw(group, f"Server's {figure.title}, {figure.unit}", clusters)


def markdown(results):
    lines = ["# Side by side", ""]
    lines += head(results)
    for group, cases in results.groups().items():
        lines += [f"## {group}", "", f"![{group}]({slug(group)}.svg)", ""]
        for case in cases:
            lines += case_table(results, case)
    notes = results.data["notes"]
    if notes:
        lines += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)


def head(results):
    data = results.data
    settings = data["settings"]
    lines = ["| | |", "|---|---|", f"| Date | {data['began']} |"]
    lines += [f"| {name} | {value} |" for name, value in data["machine"].items()]
    lines += [f"| {server['title']} | {server['version']} |" for server in results.servers().values()]
    lines += [
        f"| Placement | servers on core {settings['server_core']}, load on core {settings['client_core']}, loopback |",
        f"| TLS | 1.3, {settings['ciphersuite']}, {settings['tls_group']}, certificate ECDSA P-256 |",
        f"| Rounds | {settings['rounds']} of about {settings['seconds']:g} s, servers in turn |",
        f"| Load average | {data['load_before']:.2f} before, {data.get('load_after', 0):.2f} after |",
    ]
    others = [
        numbers["core_others"]
        for case in results.cases()
        for rounds in case["rounds"].values()
        for numbers in rounds
        if "core_others" in numbers
    ]
    if others:
        spread = stats.Spread.of(others)
        lines.append(
            f"| Others on the server's core | {spread.median:.0%} of its time "
            f"({spread.low:.0%}–{spread.high:.0%}): a quiet machine shows near 0 |"
        )
    lines += [
        "",
        "Each figure is a median, and in parentheses the least and the most of the rounds. The ratio is the median of "
        "the quotients round by round; below 1 means less than the best peer needs.",
        "",
    ]
    return lines


def case_table(results, case):
    figure = FIGURES[case["figure"]]
    lines = [f"### {case['title']}", ""]
    columns = [f"{figure.title}, {figure.unit}", "middle half"]
    timed = figure.per_core_second is not None
    bulk = case["figure"] == "cpu_ms_per_gb"
    if timed:
        rate = "GB/s" if bulk else f"{figure.per}s/s"
        columns += [rate, "core busy", f"{figure.per}s per core second", "PSS at the end, MB"]
    else:
        columns += ["PSS before, MB", "PSS with all, MB"]
    columns.append("ratio to best peer")
    also = case.get("also", [])
    for other in also:
        columns += [f"{FIGURES[other].title}, {FIGURES[other].unit}", "ratio to best peer"]
    lines += [f"| server | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    best = results.best_peer(case)
    for name, server in results.servers().items():
        spread = results.spread(case, name)
        if spread is None:
            lines.append(f"| {server['title']} |{' – |' * len(columns)}")
            continue
        cells = [with_spread(spread), f"{digits(spread.quarter)}–{digits(spread.three_quarters)}"]

        def metric(key, scale=1.0, name=name):
            return with_spread(results.spread(case, name, key), scale)

        if timed:
            each = [{"n": figure.per_core_second / numbers[case["figure"]]} for numbers in case["rounds"][name]]
            cells += [metric("gb_per_second" if bulk else "per_second"), metric("core_busy", 100) + " %"]
            cells += [with_spread(stats.of_rounds(each, "n")), metric("pss", 1e-6)]
        else:
            cells += [metric("pss_before", 1e-6), metric("pss", 1e-6)]
        cells.append("best peer" if name == best else with_spread(results.to_best_peer(case, name)))
        for other in also:
            is_best = name == results.best_peer(case, other)
            cells += [metric(other), "best peer" if is_best else with_spread(results.to_best_peer(case, name, other))]
        title = f"**{server['title']}**" if server["own"] else server["title"]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    answers = case["answers"]
    if answers:
        told = ", ".join(
            f"{results.servers()[name]['title']} {answer['head']} + {answer['body']}" for name, answer in answers.items()
        )
        lines += ["", f"Octets of an answer, head + body: {told}."]
    return [*lines, ""]
