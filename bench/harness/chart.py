"""The charts as SVG: the cost of each server relative to the best other server, on a logarithmic axis."""

import math
import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .results import MORE, figure_of, summary, with_spread

WIDE, NARROW = 860, 360
PAD = 20
LABEL = 268  # width for the cases' names on a wide chart
VALUE = 150  # width for this project's ratio beside them
LINE = 16
SMALL = 14
BOLD = 14  # bold text of size 13 is as wide as normal text of this size
# The smallest range of an axis, however close the servers are.
LEAST_RANGE = (0.5, 2.0)
# Factors of round numbers within each power of ten, from many to few.
TICKS = [(1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)]
TICK_ROOM = 30

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
# The colours of the page and of the charts, each for the light and for the dark scheme.
COLOURS = {
    "text": ("#10222b", "#e4eef1"),
    "soft": ("#4a606b", "#9db3bd"),
    "card": ("#ffffff", "#0f1c23"),
    "edge": ("#d3dfe4", "#223640"),
    "grid": ("#e3ebee", "#1d2f38"),
    "tint": ("#eef6f6", "#10282d"),
    "bad": ("#b3261e", "#ff9d8f"),
}


def paint(scope, pick, servers):
    """The style rules that differ between the light and the dark scheme."""
    tone = {name: pair[pick] for name, pair in COLOURS.items()}
    rules = [
        f"{scope} text {{ fill: {tone['text']} }}",
        f"{scope} .soft, {scope} .tick {{ fill: {tone['soft']} }}",
        f"{scope} .bad {{ fill: {tone['bad']} }}",
        f"{scope} .whisker.bad {{ stroke: {tone['bad']} }}",
        f"{scope} .card {{ fill: {tone['card']}; stroke: {tone['edge']} }}",
        f"{scope} .grid {{ stroke: {tone['grid']} }}",
        f"{scope} .one {{ stroke: {tone['soft']} }}",
        f"{scope} .tint {{ fill: {tone['tint']} }}",
        f"{scope} .mark {{ stroke: {tone['card']} }}",
    ]
    for name, colour in servers.items():
        rules.append(f"{scope} .{name} {{ fill: {colour[pick]} }}")
        rules.append(f"{scope} .whisker.{name} {{ stroke: {colour[pick]} }}")
    return rules


def style(scope, servers):
    """The style sheet of the charts; `servers` has the class of each server with a colour for light and one for dark."""
    rules = [
        f"{scope} text {{ font: 13px {FONT} }}",
        f"{scope} .title {{ font-size: 18px; font-weight: 700 }}",
        f"{scope} .case, {scope} .ours {{ font-weight: 600 }}",
        f"{scope} .soft, {scope} .tick {{ font-size: 11.5px }}",
        f"{scope} .whisker {{ stroke-width: 2; stroke-linecap: round; opacity: .55 }}",
        f"{scope} .grid {{ stroke-width: 1 }}",
        f"{scope} .one {{ stroke-width: 1.5 }}",
        f"{scope} .mark {{ stroke-width: 1.25 }}",
        *paint(scope, 0, servers),
        "@media (prefers-color-scheme: dark) {",
        *paint(scope, 1, servers),
        "}",
    ]
    return "\n".join(rules)


def class_of(name):
    """Name of the CSS class that has a server's colour."""
    return "s-" + re.sub(r"[^a-zA-Z0-9]", "-", name)


def server_colours(results):
    return {class_of(name): server["colour"] for name, server in results.servers().items()}


def width_of(text, size):
    """An estimate of a text's width, rather too wide than too narrow, because fonts differ."""
    units = 0.0
    for char in text:
        if char in "il.,'|:;!()[] tfjrI1-":
            units += 0.42
        elif char in "mwMW@%":
            units += 0.98
        else:
            units += 0.7 if char.isupper() else 0.62
    return units * size


def wrap(text, width, size):
    """The text as lines that are at most `width` wide, unless a single word is wider."""
    lines = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shape(kind, x, y, size):
    """The outline of a mark as an SVG path. Shapes differ so that servers can be told apart without colours."""
    corners = {
        "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        "square": [(-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)],
        "up": [(0, -1.2), (1.2, 0.95), (-1.2, 0.95)],
        "down": [(0, 1.2), (1.2, -0.95), (-1.2, -0.95)],
        "right": [(1.2, 0), (-0.95, 1.2), (-0.95, -1.2)],
        "left": [(-1.2, 0), (0.95, 1.2), (0.95, -1.2)],
        "floor": [(-0.35, -1.7), (0.35, -1.7), (0.35, 1.7), (-0.35, 1.7)],
    }
    if kind == "circle":
        return f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z"
    return "M" + "L".join(f"{x + across * size:.1f} {y + down * size:.1f}" for across, down in corners[kind]) + "z"


PEER_SHAPES = ["diamond", "square", "up", "down", "right", "left"]


def shapes_of(results):
    """The shape of each server's mark: this project's is a circle, the floor's a stroke."""
    peers = iter(range(len(results.peers())))
    found = {}
    for name in results.servers():
        role = results.role(name)
        if role == "peer":
            found[name] = PEER_SHAPES[next(peers) % len(PEER_SHAPES)]
        else:
            found[name] = "circle" if role == "own" else "floor"
    return found


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of ratios between two horizontal positions."""

    low: float
    high: float
    left: float
    right: float

    @classmethod
    def around(cls, ratios, left, right):
        values = [value for ratio in ratios for value in (ratio.low, ratio.high) if value > 0]
        return cls(min([*values, LEAST_RANGE[0]]) / 1.08, max([*values, LEAST_RANGE[1]]) * 1.08, left, right)

    def x(self, value):
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.left + (self.right - self.left) * share

    def ticks(self):
        """As many round numbers as have room for their labels."""
        for factors in TICKS:
            every = (factor * 10.0**exponent for exponent in range(-4, 6) for factor in factors)
            found = [value for value in every if self.low <= value <= self.high]
            places = [self.x(value) for value in found]
            if all(later - one >= TICK_ROOM for one, later in zip(places, places[1:])):
                break
        return found


class Canvas:
    """Collects the parts of a chart from top to bottom."""

    def __init__(self, width):
        self.width = width
        self.parts = []
        self.under = []
        self.y = PAD

    def text(self, x, y, text, kind="", anchor=""):
        kind = f' class="{kind}"' if kind else ""
        anchor = f' text-anchor="{anchor}"' if anchor else ""
        self.parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>')

    def paragraph(self, text, kind, size, line):
        for part in wrap(text, self.width - 2 * PAD, size):
            self.y += line
            self.text(PAD, self.y - 3, part, kind)

    def legend(self, entries):
        """Draws marks with their names, in as many lines as they need."""
        x = PAD
        self.y += 20
        for kind, name, text in entries:
            wide = 18 + width_of(text, 13)
            if x > PAD and x + wide > self.width - PAD:
                x = PAD
                self.y += 20
            self.parts.append(f'<path class="mark {name}" d="{shape(kind, x + 6, self.y - 4.5, 5)}"/>')
            self.text(x + 18, self.y, text)
            x += wide + 14

    def axis(self, axis, stretches, words):
        """Draws the vertical lines behind the rows, in each stretch from top to bottom, and the numbers below them."""
        for top, bottom in stretches:
            lines = [
                f'<rect class="tint" x="{axis.left:.1f}" y="{top:.1f}" '
                f'width="{axis.x(1) - axis.left:.1f}" height="{bottom - top:.1f}"/>'
            ]
            for value in axis.ticks():
                kind = "one" if value == 1 else "grid"
                lines.append(f'<path class="{kind}" d="M{axis.x(value):.1f} {top:.1f}V{bottom:.1f}"/>')
            self.under = lines + self.under
        for value in axis.ticks():
            self.text(axis.x(value), self.y + 15, f"{value:,.4g}", "tick", "middle")
        self.text((axis.left + axis.right) / 2, self.y + 33, words, "tick", "middle")
        self.y += 36

    def svg(self, title, sheet=None):
        height = round(self.y + (PAD if sheet else 8))
        role = "img" if sheet else "group"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="{role}" aria-label="{escape(title)}" '
            f'viewBox="0 0 {self.width} {height}" width="{self.width}" height="{height}">',
        ]
        if sheet:
            lines.append(f"<title>{escape(title)}</title>")
            lines.append(f"<style>\n{sheet}\n</style>")
            lines.append(
                f'<rect class="card" x=".5" y=".5" width="{self.width - 1}" height="{height - 1}" rx="12"/>'
            )
        return "\n".join([*lines, *self.under, *self.parts, "</svg>"]) + "\n"


TITLE = "What each server needs, relative to the best other server"


def ratios_of(results, case):
    """Ratio of each server to the best peer, without the peer itself. This project's comes last, so that it is drawn on top."""
    names = sorted(case["rounds"], key=lambda name: results.role(name) == "own")
    ratios = {name: results.to_best_peer(case, name) for name in names}
    return {name: ratio for name, ratio in ratios.items() if ratio}


def headline(results, width=WIDE, link="#", foot=(), sheet=None):
    """The chart of the headline cases: a row for each, a mark for each server.

    With a style sheet (`sheet`) the chart stands alone and has a title.
    """
    canvas = Canvas(width)
    narrow = width < 600
    cases = results.headline()
    shapes = shapes_of(results)
    if sheet:
        canvas.paragraph(TITLE, "title", 18, 24)
        canvas.paragraph(summary(results), "", 13, 19)
        canvas.y += 4
    else:
        canvas.y -= PAD
    entries = [(shapes[name], class_of(name), results.title(name)) for name in results.servers()]
    canvas.legend(entries)
    canvas.y += 12
    left = PAD + (0 if narrow else LABEL + 12)
    right = width - PAD - (0 if narrow else VALUE + 12)
    # The axis is so long that the marks at its ends lie within the drawing.
    axis = Axis.around([ratio for case in cases for ratio in ratios_of(results, case).values()], left, right)
    stretches = [row(canvas, results, case, axis, shapes, narrow, link) for case in cases]
    canvas.axis(axis, stretches, "logarithmic; 1 = best other server; left is less")
    canvas.y += 8
    for text in foot:
        canvas.paragraph(text, "soft", 11.5, 16)
    return canvas.svg(TITLE, sheet)


def row(canvas, results, case, axis, shapes, narrow, link):
    """Draws a case: its name, the marks of the servers, this project's ratio as a number. Returns where the vertical lines go."""
    own = results.own()
    ratio = results.to_best_peer(case, own)
    against = f"of {results.title(results.best_peer(case))}"
    kind = "bad" if results.outcome(case) == MORE else "ours"
    label_width = canvas.width - 2 * PAD if narrow else LABEL
    lines = wrap(case["title"], label_width, BOLD)
    began = canvas.y + 8
    if link is not None:
        canvas.parts.append(f'<a href="{link}{escape(case["name"])}">')
    for index, line in enumerate(lines):
        canvas.text(PAD, began + 12 + index * LINE, line, "case")
    if link is not None:
        canvas.parts.append("</a>")
    below = began + len(lines) * LINE + 11
    canvas.text(PAD, below, figure_of(case["figure"]).title, "soft")
    if narrow:
        below += LINE
        canvas.text(PAD, below, f"{with_spread(ratio)} {against}", f"ours {kind}")
        middle = below + 18
        stretch = (middle - 13, middle + 13)
        canvas.y = middle + 16
    else:
        middle = (began + below) / 2 + 1
        value = wrap(against, VALUE, 11.5)
        at = middle - 2 - (len(value) - 1) * SMALL / 2
        canvas.text(axis.right + 14, at, with_spread(ratio), f"ours {kind}")
        for index, line in enumerate(value):
            canvas.text(axis.right + 14, at + 15 + index * SMALL, line, "soft")
        canvas.y = max(below, at + 15 + (len(value) - 1) * SMALL) + 10
        stretch = (began - 8, canvas.y)
    canvas.under.append(f'<path class="grid" d="M{axis.left:.1f} {middle:.1f}H{axis.right:.1f}"/>')
    best = results.best_peer(case)
    marks = ratios_of(results, case)
    order = [name for name in marks if name != own] + [best] + [name for name in marks if name == own]
    for name in order:
        told = f"{results.title(name)}: {with_spread(results.spread(case, name))} {figure_of(case['figure']).unit}"
        at = axis.x(marks[name].median if name in marks else 1)
        canvas.parts.append(f"<g><title>{escape(told)}</title>")
        if name in marks:
            low, high = axis.x(marks[name].low), axis.x(marks[name].high)
            canvas.parts.append(f'<path class="whisker {class_of(name)}" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
        size = 6.5 if name == own else 5
        canvas.parts.append(f'<path class="mark {class_of(name)}" d="{shape(shapes[name], at, middle, size)}"/></g>')
    return stretch


def small_print(results):
    """The explanations that a chart needs when it stands alone."""
    data = results.data
    counts = {len(rounds) for case in results.headline() for rounds in case["rounds"].values()}
    versions = [f"{server['title']}: {server['version']}" for server in results.servers().values()]
    return [
        "Rows: the first case of each group, and those where this server does worst. Marks are medians of "
        f"{' or '.join(map(str, sorted(counts)))} rounds, lines their least and most; ratios are taken round by round.",
        f"{data['began']}. {data['machine'].get('Processor', '')}; a core for the server, one for the load; loopback.",
        "; ".join(versions) + ".",
    ]


def headline_file(results):
    """The headline chart as an SVG file that can stand alone."""
    return headline(results, link=None, foot=small_print(results), sheet=style(".chart", server_colours(results)))


def every_case(results, width=WIDE):
    """This project's ratio to the best peer in every case, with a row for each group."""
    canvas = Canvas(width)
    canvas.y = 4
    narrow = width < 600
    own = results.own()
    left = PAD + (0 if narrow else LABEL + 12)
    right = width - PAD - 8
    ratios = {case["name"]: results.to_best_peer(case, own) for case in results.cases() if results.outcome(case)}
    axis = Axis.around(ratios.values(), left, right)
    stretches = []
    for group, cases in results.groups().items():
        cases = [case for case in cases if case["name"] in ratios]
        if cases:
            stretches.append(strip(canvas, results, group, cases, ratios, axis, narrow))
    canvas.axis(axis, stretches, "logarithmic; 1 = best other server; left is less")
    return canvas.svg("This server against the best other server, in every case")


def strip(canvas, results, group, cases, ratios, axis, narrow):
    """Draws the cases of one group; marks that would cover each other are put on different levels. Returns where the vertical lines go."""
    radius = 6
    levels = []  # the right end of the last mark on each level
    places = []
    for case in sorted(cases, key=lambda case: ratios[case["name"]].median):
        at = axis.x(ratios[case["name"]].median)
        level = next((index for index, end in enumerate(levels) if at - end > 2 * radius + 1), len(levels))
        levels[level:level + 1] = [at]
        places.append((case, at, level))
    label = wrap(group, (canvas.width - 2 * PAD) if narrow else LABEL, BOLD)
    head = len(label) * LINE + 4
    tall = len(levels) * (2 * radius + 2) + 8
    height = head + tall + 8 if narrow else max(head, tall) + 10
    first = canvas.y + (16 if narrow else (height - len(label) * LINE) / 2 + 12)
    for index, line in enumerate(label):
        canvas.text(PAD, first + index * LINE, line, "case")
    base = canvas.y + (head + tall / 2 if narrow else height / 2)
    canvas.under.append(f'<path class="grid" d="M{PAD} {canvas.y + height:.1f}H{canvas.width - PAD}"/>')
    for case, at, level in places:
        y = base + (level - (len(levels) - 1) / 2) * (2 * radius + 2)
        ratio = ratios[case["name"]]
        worse = results.outcome(case) == MORE
        told = f"{case['title']}: {with_spread(ratio)} of {results.title(results.best_peer(case))}"
        name = "bad" if worse else class_of(results.own())
        whisker = f"M{axis.x(ratio.low):.1f} {y:.1f}H{axis.x(ratio.high):.1f}"
        canvas.parts.append(
            f'<a href="#{escape(case["name"])}"><title>{escape(told)}</title>'
            f'<path class="whisker {name}" d="{whisker}"/>'
            f'<path class="mark {name}" d="{shape("up" if worse else "circle", at, y, 5.5)}"/></a>'
        )
    began, canvas.y = canvas.y, canvas.y + height
    return (began + (head if narrow else 0), canvas.y)
