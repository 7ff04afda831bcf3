"""Evaluates the numbers of a run: spreads, ratios, budgets, and the roles of servers."""

from dataclasses import dataclass

from . import stats
from .cases import FIGURES, Figure

# Figures that a case may name in addition to its main one.
OTHER_FIGURES = {
    "cpu_us_per_connection": Figure("processor time per connection", "µs", "connection", 1e6),
    "octets_per_response": Figure("octets on the wire per response", "B", "response"),
    "gb_per_second": Figure("gigabytes per second", "GB/s", "gigabyte"),
    "per_second": Figure("served per second", "1/s", "request"),
}

MET, WITHIN, MISSED, UNKNOWN = "met", "within its spread", "missed", "not measured"
LESS, SAME, MORE = "less", "same", "more"
HEADLINE_CASES = 12
# Number of the worst cases that are in the headline even if a run has many groups.
HEADLINE_WORST = 3


def figure_of(metric):
    """Title and unit of a figure."""
    return FIGURES.get(metric) or OTHER_FIGURES.get(metric) or Figure(metric.replace("_", " "), "", "request")


def digits(value):
    """Writes a number with three significant digits and without an exponent."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def with_spread(spread, scale=1.0, unit=""):
    """Writes a spread as `median (least–most)`."""
    if spread is None:
        return "–"
    low, middle, high = (digits(value * scale) for value in (spread.low, spread.median, spread.high))
    return f"{middle}{unit} ({low}–{high})"


@dataclass(frozen=True)
class Budget:
    """A limit for this project's server in a case, and whether it is met."""

    case: dict
    figure: str
    wanted: str
    measured: stats.Spread | None
    verdict: str

    @classmethod
    def at_most(cls, case, figure, limit, measured):
        return cls(case, figure, f"at most {limit:g}", measured, cls.judge(measured, lambda value: value <= limit))

    @classmethod
    def at_least(cls, case, figure, limit, measured):
        return cls(case, figure, f"at least {limit:g}", measured, cls.judge(measured, lambda value: value >= limit))

    @staticmethod
    def judge(measured, holds):
        if measured is None:
            return UNKNOWN
        if holds(measured.median):
            return MET
        return WITHIN if holds(measured.low) or holds(measured.high) else MISSED


class Results:
    """The data of one run, as `report.json` has it."""

    def __init__(self, data):
        self.data = data

    def servers(self):
        return self.data["servers"]

    def role(self, name):
        server = self.servers()[name]
        return "own" if server["own"] else server.get("role", "peer")

    def named(self, role):
        return [name for name in self.servers() if self.role(name) == role]

    def own(self):
        """The name of this project's server, or None if it did not take part."""
        return next(iter(self.named("own")), None)

    def floor(self):
        return next(iter(self.named("floor")), None)

    def peers(self):
        return self.named("peer")

    def title(self, name):
        return self.servers()[name]["title"]

    def cases(self):
        return [case for case in self.data["cases"] if case["rounds"]]

    def case(self, name):
        return next((case for case in self.cases() if case["name"] == name), None)

    def groups(self):
        found = {}
        for case in self.cases():
            found.setdefault(case["group"], []).append(case)
        return found

    def spread(self, case, server, metric=None):
        return stats.of_rounds(case["rounds"].get(server, []), metric or case["figure"])

    def best_peer(self, case, metric=None):
        """The peer with the lowest median in a case, or None if there is none."""
        there = [name for name in self.peers() if self.spread(case, name, metric)]
        return min(there, key=lambda name: self.spread(case, name, metric).median, default=None)

    def ratio(self, case, server, other, metric=None, other_case=None):
        """The ratio of one server's figure to another's, computed for each round; None if one of them has no figure."""
        metric = metric or case["figure"]
        mine, theirs = case["rounds"].get(server, []), (other_case or case)["rounds"].get(other, [])
        if not all(metric in numbers for numbers in [*mine, *theirs]):
            return None
        return stats.ratio(mine, theirs, metric)

    def to_best_peer(self, case, server, metric=None):
        """The ratio of this server to the best peer, or None for the best peer itself."""
        best = self.best_peer(case, metric)
        return None if best is None or best == server else self.ratio(case, server, best, metric)

    def to_floor(self, case, server):
        """The ratio of this server to the floor program, or None for the floor program itself."""
        floor = self.floor()
        return None if floor is None or floor == server else self.ratio(case, server, floor)

    def outcome(self, case):
        """Whether this project's server needs less or more than the best peer by more than the spread; None if there is no ratio."""
        ratio = self.to_best_peer(case, self.own())
        if ratio is None:
            return None
        if ratio.high < 1:
            return LESS
        return MORE if ratio.low > 1 else SAME

    def outcomes(self):
        """The cases grouped by outcome."""
        found = {LESS: [], SAME: [], MORE: []}
        for case in self.cases():
            outcome = self.outcome(case)
            if outcome:
                found[outcome].append(case)
        return found

    def losses(self):
        """The cases in which this project's server needs more than the best peer, the worst first."""
        worst = self.outcomes()[MORE]
        return sorted(worst, key=lambda case: self.to_best_peer(case, self.own()).median, reverse=True)

    def headline(self):
        """The first case of each group, and the cases where this project's server compares worst with the best peer."""
        compared = [case for case in self.cases() if self.outcome(case)]
        first = {case["group"]: case["name"] for case in reversed(compared)}
        names = set(first.values())
        room = max(HEADLINE_CASES - len(names), HEADLINE_WORST)
        others = [case for case in compared if case["name"] not in names]
        others.sort(key=lambda case: self.to_best_peer(case, self.own()).median, reverse=True)
        names |= {case["name"] for case in others[:room]}
        return [case for case in compared if case["name"] in names]

    def comparison(self, case):
        """The budget that compares this project's server in this case with itself in another case, or None."""
        compare = case.get("compare")
        if not compare:
            return None
        other = self.case(compare["with"])
        measured = self.ratio(case, self.own(), self.own(), compare["metric"], other) if other else None
        figure = f"{figure_of(compare['metric']).title} to “{other['title'] if other else compare['with']}”"
        if "at_least" in compare:
            return Budget.at_least(case, figure, compare["at_least"], measured)
        return Budget.at_most(case, figure, compare["at_most"], measured)

    def limits(self, case):
        """The budgets that compare this project's server with others in a case."""
        limits = case.get("limits") or {}
        found = []
        if "peer" in limits:
            best = self.best_peer(case)
            figure = f"ratio to best peer ({self.title(best)})" if best else "ratio to best peer"
            found.append(Budget.at_most(case, figure, limits["peer"], self.to_best_peer(case, self.own())))
        if "floor" in limits:
            found.append(Budget.at_most(case, "ratio to floor", limits["floor"], self.to_floor(case, self.own())))
        return found

    def budgets(self):
        """The budgets of all cases."""
        every = [[*self.limits(case), self.comparison(case)] for case in self.cases()]
        return [budget for budgets in every for budget in budgets if budget]

    def others_on_core(self):
        """The share of the server's core that other processes used, over all rounds."""
        every = [rounds for case in self.cases() for rounds in case["rounds"].values()]
        return stats.of_rounds([numbers for rounds in every for numbers in rounds], "core_others")


def header(results):
    """Facts about the run as pairs: the machine, the versions, the placement on cores."""
    data, settings = results.data, results.data["settings"]
    facts = [("Date", data["began"]), *data["machine"].items()]
    facts += [(server["title"], server["version"]) for server in results.servers().values()]
    facts.append(
        ("Placement", f"servers on core {settings['server_core']}, load on core {settings['client_core']}, loopback")
    )
    suite = f"{settings['ciphersuite']}, " if "ciphersuite" in settings else ""
    facts.append(("TLS", f"{suite}key exchange {settings.get('tls_group', '?')}, certificate ECDSA P-256"))
    facts.append(("Rounds", f"{settings['rounds']} of about {settings['seconds']:g} s, servers in turn"))
    facts.append(("Load average", f"{data['load_before']:.2f} before, {data.get('load_after', 0):.2f} after"))
    others = results.others_on_core()
    if others:
        told = f"{others.median:.0%} of its time ({others.low:.0%}–{others.high:.0%}); a quiet machine shows near 0"
        facts.append(("Others on the server's core", told))
    return facts


METHOD = (
    "The main figure is the processor time that the server's threads and processes spent, by the scheduler's own "
    "account, divided by what they served; each server has one core, the load generator another. The servers take "
    "turns round by round: a figure is the median of the rounds with the least and the most in parentheses, a ratio "
    "the median of the quotients round by round, and below 1 means less than the other needs."
)
FLOOR = (
    "The floor is a small program that does the least any server must do for these answers. It is no web "
    "server and never counts as the best peer."
)


def summary(results):
    """One sentence about all cases."""
    counts = {outcome: len(cases) for outcome, cases in results.outcomes().items()}
    total = sum(counts.values())
    if not total:
        return "No case has results of both this server and a peer."
    told = (
        f"In {counts[LESS]} of {total} cases this server needs less than the best other server, in {counts[SAME]} the "
        f"difference is within the spread, in {counts[MORE]} it needs more."
    )
    rest = len(results.data["cases"]) - total
    return f"{told} Not compared for want of a result: {rest}." if rest else told


@dataclass(frozen=True)
class Table:
    """The numbers of a case as text: a row for each server that has results."""

    columns: list
    rows: list  # of (server, cells)


def latency_unit(results, case):
    """The unit for latencies and its factor: microseconds, unless a median is 10,000 of them or more."""
    medians = [results.spread(case, name, "latency_p50_us") for name in case["rounds"]]
    return ("ms", 1e-3) if any(spread and spread.median >= 10_000 for spread in medians) else ("µs", 1.0)


def table(results, case):
    """The table of a case; columns in which no server has a number are left out."""
    figure = figure_of(case["figure"])
    unit, scale = latency_unit(results, case)
    rate = ("gb_per_second", "GB/s") if figure.per == "gigabyte" else ("per_second", f"{figure.per}s/s")
    memory = [("pss", "memory, MB")]
    if "bytes" in case["figure"]:
        memory = [("pss_before", "memory before, MB"), ("pss", "memory with all, MB")]
    also = [metric for metric in case.get("also", ()) if metric != case["figure"]]
    plan = [
        (*rate, 1.0),
        ("latency_p50_us", f"latency p50, {unit}", scale),
        ("latency_p99_us", f"latency p99, {unit}", scale),
        ("core_busy", "core busy, %", 100.0),
        *((*each, 1e-6) for each in memory),
        ("octets_per_response", "octets on the wire per response", 1.0),
    ]

    names = [name for name in results.servers() if case["rounds"].get(name)]
    columns = against_peer(results, case, case["figure"], names)
    columns.append(("ratio to floor", [with_spread(results.to_floor(case, name)) for name in names]))
    for metric, title, factor in plan:
        if metric not in also:
            columns.append((title, [with_spread(results.spread(case, name, metric), factor) for name in names]))
    for metric in also:
        columns += against_peer(results, case, metric, names)
    columns = [column for column in columns if any(cell != "–" for cell in column[1])]
    rows = [(name, [cells[index] for _, cells in columns]) for index, name in enumerate(names)]
    return Table([title for title, _ in columns], rows)


def against_peer(results, case, metric, names):
    """Two columns: a figure, and its ratio to the best peer."""
    figure, best = figure_of(metric), results.best_peer(case, metric)
    cells = [with_spread(results.spread(case, name, metric)) for name in names]
    ratios = [with_spread(results.to_best_peer(case, name, metric)) for name in names]
    if any(ratio != "–" for ratio in ratios):
        ratios = ["best peer" if name == best else ratio for name, ratio in zip(names, ratios)]
    return [(f"{figure.title}, {figure.unit}", cells), ("ratio to best peer", ratios)]


def headline_table(results):
    """The main figure of each headline case for each server; the lowest in each row is marked."""
    names = [*results.named("own"), *results.peers(), *results.named("floor")]
    rows = []
    for case in results.headline():
        figure = figure_of(case["figure"])
        spreads = [results.spread(case, name) for name in names]
        servers = [spread for name, spread in zip(names, spreads) if spread and results.role(name) != "floor"]
        least = min((spread.median for spread in servers), default=None)
        cells = [(with_spread(spread), bool(spread) and spread.median == least) for spread in spreads]
        rows.append((case, f"{figure.unit} per {figure.per}", cells))
    return names, rows


def change(entry):
    """The change of a micro-benchmark from its recorded count, as text."""
    if not entry.get("recorded"):
        return "new"
    return f"{(entry['instructions'] / entry['recorded'] - 1) * 100:+.1f} %".replace("-", "−")
