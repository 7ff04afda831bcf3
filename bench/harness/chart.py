"""Bar charts as SVG, light and dark: one bar per server and case, a whisker for its spread."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760
LEFT = 168  # for the servers' names
RIGHT = 176  # for the numbers
BAR = 16
BAR_STEP = 24
HEAD = 62
CASE_HEAD = 34
CASE_GAP = 14
FOOT = 44

STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #10222b }
    .title { font-size: 17px; font-weight: 700 }
    .case { font-weight: 600 }
    .soft { fill: #4a606b }
    .tick { font-size: 11px; fill: #4a606b }
    .card { fill: #ffffff; stroke: #d3dfe4 }
    .grid { stroke: #e3ebee }
    .whisker { stroke: #10222b; stroke-width: 1.5 }
"""
DARK = """
      text { fill: #e4eef1 }
      .soft, .tick { fill: #9db3bd }
      .card { fill: #0f1c23; stroke: #223640 }
      .grid { stroke: #1d2f38 }
      .whisker { stroke: #e4eef1 }
"""


@dataclass(frozen=True)
class Bar:
    """One server in one case. Without a spread there is no result, only the reason."""

    label: str
    colour: tuple
    spread: object  # stats.Spread, or None
    text: str


@dataclass(frozen=True)
class Cluster:
    """One case."""

    title: str
    bars: list


def tick_step(top):
    """A round number that divides the axis into about five."""
    magnitude = 1.0
    while magnitude * 10 <= top:
        magnitude *= 10
    while magnitude > top:
        magnitude /= 10
    for factor in (0.2, 0.5, 1, 2):
        if top / (magnitude * factor) <= 6:
            return magnitude * factor
    return magnitude * 5


def plain(number):
    return f"{number:,.10g}"


def draw(title, unit, clusters):
    """The whole SVG file as text."""
    top = max((bar.spread.high for cluster in clusters for bar in cluster.bars if bar.spread), default=1.0)
    step = tick_step(top)
    top = step * -(-top // step)
    plot = WIDTH - LEFT - RIGHT

    def x(value):
        return LEFT + plot * value / top

    colours = {bar.label: bar.colour for cluster in clusters for bar in cluster.bars}
    classes = {label: f"s{index}" for index, label in enumerate(colours)}
    light = "".join(f"    .{classes[label]} {{ fill: {colour[0]} }}\n" for label, colour in colours.items())
    dark = "".join(f"      .{classes[label]} {{ fill: {colour[1]} }}\n" for label, colour in colours.items())

    body = []
    y = HEAD
    for cluster in clusters:
        body.append(f'<text class="case" x="20" y="{y + 18}">{escape(cluster.title)}</text>')
        y += CASE_HEAD
        for bar in cluster.bars:
            middle = y + BAR / 2
            body.append(f'<text class="soft" x="{LEFT - 10}" y="{middle + 4.5}" text-anchor="end">{escape(bar.label)}</text>')
            end = LEFT
            if bar.spread:
                width = x(bar.spread.median) - LEFT
                low, high = x(bar.spread.low), x(bar.spread.high)
                body.append(f'<rect class="{classes[bar.label]}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>')
                body.append(
                    f'<path class="whisker" fill="none" d="M{low:.1f} {middle}H{high:.1f}'
                    f'M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"/>'
                )
                end = max(LEFT + width, high)
            body.append(f'<text x="{end + 9:.1f}" y="{middle + 4.5}">{escape(bar.text)}</text>')
            y += BAR_STEP
        y += CASE_GAP

    axis = []
    for index in range(round(top / step) + 1):
        at = x(index * step)
        axis.append(f'<path class="grid" d="M{at:.1f} {HEAD}V{y}"/>')
        axis.append(f'<text class="tick" x="{at:.1f}" y="{y + 16}" text-anchor="middle">{plain(index * step)}</text>')

    height = y + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{STYLE}{light}    @media (prefers-color-scheme: dark) {{{DARK}{dark}    }}\n  </style>",
        f'  <rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="12"/>',
        f'  <text class="title" x="20" y="34">{escape(title)}</text>',
        f'  <text class="soft" x="20" y="53">{escape(unit)}; less is better; bar: median, whisker: least to most</text>',
        *(f"  {line}" for line in axis),
        *(f"  {line}" for line in body),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
