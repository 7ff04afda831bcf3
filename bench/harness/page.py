"""The report as one HTML file that needs nothing else: style and charts are in it, and it has no scripts."""

import re
from html import escape

from . import chart
from .results import (
    FLOOR,
    LESS,
    MET,
    METHOD,
    MISSED,
    MORE,
    SAME,
    UNKNOWN,
    WITHIN,
    change,
    figure_of,
    header,
    headline_table,
    summary,
    table,
    with_spread,
)

SHEET = """
* { box-sizing: border-box }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100% }
body {
  margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 40px 20px 80px }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -.01em }
h2 { font-size: 21px; line-height: 1.3; margin: 56px 0 6px }
h3 { font-size: 16px; line-height: 1.4; margin: 0 }
p { margin: 0 0 12px; max-width: 72ch }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: 3px }
svg a:hover text { text-decoration: underline }
.lead { font-size: 18px }
.soft { color: var(--soft) }
.small { font-size: 13.5px; line-height: 1.5 }
.card, .tile { background: var(--card); border: 1px solid var(--edge); border-radius: 12px }
.card { padding: 18px 20px; margin: 16px 0 }
.figure { padding: 14px 0 8px }
.figure > svg { display: block; width: 100%; max-width: 920px; height: auto; margin: 0 auto }
.figure > .narrow { display: none }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 }
.tile { padding: 12px 16px }
.tile b { display: block; font-size: 28px; line-height: 1.2; font-variant-numeric: tabular-nums }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 16px 0; font-size: 14.5px }
.verdict { white-space: nowrap; font-weight: 600; font-size: 13.5px }
.good { color: var(--good) } .even { color: var(--even) } .bad { color: var(--bad) }
code { font: 12.5px/1.5 ui-monospace, "Liberation Mono", monospace; overflow-wrap: anywhere; color: var(--soft) }
.case { scroll-margin-top: 12px }
.case-head { display: flex; flex-wrap: wrap; gap: 2px 16px; justify-content: space-between; align-items: baseline }
.shows { margin: 2px 0 10px; font-size: 14.5px; color: var(--soft) }
.bars { margin: 12px 0 6px; font-size: 14px; line-height: 1.35 }
.bar { display: grid; grid-template-columns: 150px 1fr 220px; gap: 0 12px; align-items: center; padding: 3px 0 }
.bar .value { font-variant-numeric: tabular-nums; white-space: nowrap }
.bar.own .name, .bar.own .value { font-weight: 600 }
.value small, td small { font-size: .88em; font-weight: 400; color: var(--soft) }
.track { position: relative; height: 16px }
.track i { position: absolute; top: 0; bottom: 0; left: 0 }
.fill { border-radius: 0 3px 3px 0 }
.track .whisker { top: 7px; bottom: 7px; background: var(--text); min-width: 1px; opacity: .8 }
.track .whisker::before, .track .whisker::after {
  content: ""; position: absolute; top: -3px; bottom: -3px; width: 1.5px; background: inherit }
.track .whisker::before { left: 0 } .track .whisker::after { right: 0 }
.track .least { top: -3px; bottom: -3px; width: 0; border-left: 1.5px dashed var(--text); opacity: .55 }
.out { font-size: 13px; color: var(--soft); grid-column: 2 / -1 }
details { margin-top: 8px }
summary { cursor: pointer; font-size: 14px; color: var(--link) }
.scroll { overflow-x: auto; margin: 8px 0 }
table { border-collapse: collapse; font-size: 13.5px; line-height: 1.4; font-variant-numeric: tabular-nums }
.scroll table { min-width: 100% }
th, td { text-align: right; padding: 6px 7px; border-bottom: 1px solid var(--edge); vertical-align: baseline }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; min-width: 80px }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
td:first-child { min-width: 120px }
td small { display: block; white-space: nowrap }
tr.own td, td.least { font-weight: 600 }
.facts { width: 100% } .facts td { text-align: left; font-variant-numeric: normal; overflow-wrap: anywhere }
.facts td:first-child { color: var(--soft); width: 30% }
ul { padding-left: 20px; margin: 8px 0 }
li { margin: 3px 0 }
.plain { list-style: none; padding: 0 }
.budgets { display: grid; grid-template-columns: 1fr; margin: 0; padding: 0; list-style: none }
.budgets li { display: grid; grid-template-columns: 1fr 150px 160px; gap: 2px 16px; padding: 8px 0; margin: 0;
  border-bottom: 1px solid var(--edge); font-size: 14.5px; align-items: baseline }
.budgets li:last-child { border-bottom: 0 }
.budgets .what { display: block; font-size: 13.5px; color: var(--soft) }
.budgets .number { font-variant-numeric: tabular-nums }
.budgets .number small { color: var(--soft) }
@media (max-width: 640px) {
  main { padding: 24px 14px 60px }
  h1 { font-size: 25px }
  .lead { font-size: 16.5px }
  .card { padding: 14px }
  .figure { padding: 10px 0 4px }
  .figure > .wide { display: none }
  .figure > .narrow { display: block }
  .tiles { grid-template-columns: 1fr 1fr }
  .bar { grid-template-columns: auto 1fr; gap: 0 10px; padding: 5px 0 }
  .bar .value { text-align: right; order: 2 }
  .bar .track { grid-column: 1 / -1; order: 3; height: 12px }
  .track .whisker { top: 5px; bottom: 5px }
  .out { grid-column: 1 / -1; order: 3 }
  .budgets li { grid-template-columns: 1fr auto }
  .budgets .title { grid-column: 1 / -1 }
}
@media print { details > * { display: block } .card { break-inside: avoid } }
"""

# Colours of the page in addition to those of the charts, each for the light and for the dark scheme.
COLOURS = {
    "back": ("#f5f8f9", "#0a141a"),
    "link": ("#0a6571", "#62cdd8"),
    "good": ("#0b6e4f", "#5fd3a5"),
    "even": ("#5c5f00", "#d5cf6a"),
    **{name: chart.COLOURS[name] for name in ("text", "soft", "card", "edge", "bad")},
}

# The cases of a group share a scale if the highest value is at most this many times the lowest.
ONE_SCALE = 4.0
# Number of lost cases that are shown without unfolding the list.
LOSSES = 6


def tones(pick):
    return "; ".join(f"--{name}: {pair[pick]}" for name, pair in COLOURS.items())


def sheet(results):
    """The style sheet of the whole page, with each server's colours."""
    servers = chart.server_colours(results)
    fills = [[f".fill.{name} {{ background: {pair[pick]} }}" for name, pair in servers.items()] for pick in (0, 1)]
    return "\n".join(
        [
            f":root {{ color-scheme: light dark; {tones(0)} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {tones(1)} }} }}",
            SHEET.strip(),
            *fills[0],
            "@media (prefers-color-scheme: dark) {",
            *fills[1],
            "}",
            chart.style(".chart", servers),
        ]
    )


def small_spread(text):
    """Escapes `median (least–most)`, with the parentheses in small print."""
    return re.sub(r" (\([^()]+\))$", r" <small>\1</small>", escape(text))


def prose(text):
    """Escapes a text of a case or a note; text between backquotes becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def anchor(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def group_anchor(group):
    return f"group-{anchor(group)}"


def html(results):
    """The whole page as HTML."""
    own = results.own()
    title = f"{results.title(own)} side by side with others" if own else "Side by side"
    body = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(summary(results))}</p>']
    body += [f'<p class="soft small">{escape(where(results))}</p>']
    body += contents(results)
    body += overview(results)
    body += budgets(results)
    for group, cases in results.groups().items():
        body += group_section(results, group, cases)
    body += micro(results)
    body += about(results)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en-GB">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{sheet(results)}\n</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def where(results):
    data, settings = results.data, results.data["settings"]
    return (
        f"{data['began']} · {data['machine'].get('Processor', 'unknown processor')} · one core for the server, one for "
        f"the load, loopback · {settings['rounds']} rounds of about {settings['seconds']:g} s, servers in turn"
    )


def both_widths(draw):
    """The chart in two versions, for wide and for narrow screens."""
    wide, narrow = draw(chart.WIDE), draw(chart.NARROW)
    return [
        '<div class="card figure">',
        wide.replace('class="chart"', 'class="chart wide"'),
        narrow.replace('class="chart"', 'class="chart narrow"'),
        "</div>",
    ]


def overview(results):
    """The overview: the headline chart, and every case as a mark."""
    if not results.headline():
        return []
    outcomes = results.outcomes()
    tiles = [
        (len(outcomes[LESS]), "cases: less than the best other server", "good"),
        (len(outcomes[SAME]), "cases: no difference beyond the spread", "even"),
        (len(outcomes[MORE]), "cases: more than the best other server", "bad"),
    ]
    every = results.budgets()
    if every:
        met = sum(budget.verdict == MET for budget in every)
        tiles.append((f"{met} of {len(every)}", "budgets met", "good" if met == len(every) else "even"))
    body = ['<div class="tiles">']
    body += [f'<div class="tile"><b class="{kind}">{count}</b>{escape(text)}</div>' for count, text, kind in tiles]
    body += [
        "</div>",
        f"<h2>{chart.TITLE}</h2>",
        '<p class="soft">The first case of each group, and those where this server does worst. Cost is processor time, '
        "memory or octets, as the line below each name says. Marks are medians, lines the least and the most.</p>",
        *both_widths(lambda width: chart.headline(results, width)),
        *headline_numbers(results),
        "<h2>Every case</h2>",
        '<p class="soft">This server against the best other server: a circle for each case; a triangle where it needs '
        "more. Left of the line it needs less.</p>",
        *both_widths(lambda width: chart.every_case(results, width)),
    ]
    return body + losses(results)


def losses(results):
    """The cases where this project's server needs more, the worst first; most of them are folded."""
    lines = [f"<li>{link(case)}: {against_best(results, case)}</li>" for case in results.losses()]
    if not lines:
        return []
    body = ['<p class="soft">Where this server needs more than the best other one:</p>']
    body += ['<ul class="small">', *lines[:LOSSES], "</ul>"]
    if lines[LOSSES:]:
        body += [f"<details><summary>{len(lines) - LOSSES} more</summary>", '<ul class="small">', *lines[LOSSES:]]
        body += ["</ul>", "</details>"]
    return body


def link(case):
    return f'<a href="#{escape(case["name"])}">{escape(case["title"])}</a>'


def against_best(results, case):
    """This project's ratio to the best peer, coloured by its outcome."""
    outcome = results.outcome(case)
    if outcome is None:
        return ""
    kind = {LESS: "good", SAME: "even", MORE: "bad"}[outcome]
    sign = {LESS: "▾", SAME: "≈", MORE: "▴"}[outcome]
    ratio = with_spread(results.to_best_peer(case, results.own()))
    best = escape(results.title(results.best_peer(case)))
    return f'<span class="verdict {kind}">{sign} {ratio}</span> <span class="small soft">of {best}</span>'


def headline_numbers(results):
    names, rows = headline_table(results)
    body = ["<details><summary>The same as numbers</summary>"]
    body.append('<div class="scroll" tabindex="0" role="region" aria-label="Headline figures"><table>')
    body.append("<tr><th>case</th><th>unit</th>")
    body += [f"<th>{escape(results.title(name))}</th>" for name in names]
    body.append("</tr>")
    for case, unit, cells in rows:
        body.append(f"<tr><td>{link(case)}</td><td>{escape(unit)}</td>")
        body += [f'<td{" class=least" if least else ""}>{small_spread(text)}</td>' for text, least in cells]
        body.append("</tr>")
    return [*body, "</table></div></details>"]


def contents(results):
    links = [("budgets", "Budgets")] if results.budgets() else []
    links += [(group_anchor(group), group) for group in results.groups()]
    links += [("micro", "Micro-benchmarks")] if results.data.get("micro") else []
    links.append(("about", "How it was measured"))
    return ["<nav>", *(f'<a href="#{name}">{escape(text)}</a>' for name, text in links), "</nav>"]


SIGNS = {MET: ("✓", "good"), WITHIN: ("≈", "even"), MISSED: ("✗", "bad"), UNKNOWN: ("–", "soft")}


def budgets(results):
    """The limits: those that are not met first, the others folded."""
    every = results.budgets()
    if not every:
        return []
    counts = {verdict: sum(budget.verdict == verdict for budget in every) for verdict in SIGNS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    body = [
        '<h2 id="budgets">Budgets</h2>',
        f'<p class="soft">What this server has set itself: {told}. “Within its spread” means that the median misses '
        "the limit but some of the rounds meet it.</p>",
        '<div class="card">',
    ]
    order = [MISSED, WITHIN, UNKNOWN]
    open_ones = sorted((budget for budget in every if budget.verdict != MET), key=lambda one: order.index(one.verdict))
    met = [budget for budget in every if budget.verdict == MET]
    if open_ones:
        body += budget_list(open_ones)
    if met:
        state = "" if open_ones else " open"
        body += [f"<details{state}><summary>{len(met)} met</summary>", *budget_list(met), "</details>"]
    return [*body, "</div>"]


def budget_list(some):
    body = ['<ul class="budgets">']
    for budget in some:
        sign, kind = SIGNS[budget.verdict]
        measured = small_spread(with_spread(budget.measured))
        body.append(
            f'<li><span class="title">{link(budget.case)}<span class="what">{escape(budget.figure)}</span></span>'
            f'<span class="number">{measured}<span class="what">wanted {budget.wanted}</span></span>'
            f'<span class="verdict {kind}">{sign} {budget.verdict}</span></li>'
        )
    return [*body, "</ul>"]


def highest(results, case):
    """The highest value that the scale of a case must show."""
    spreads = [results.spread(case, name) for name in case["rounds"]]
    return max((spread.high for spread in spreads if spread), default=0) or 1.0


def group_section(results, group, cases):
    tops = [highest(results, case) for case in cases]
    shared = len({case["figure"] for case in cases}) == 1 and max(tops) <= ONE_SCALE * min(tops)
    scale = "All cases have the same scale." if shared else "Each case has a scale of its own."
    if len(cases) == 1:
        scale = ""
    floor = results.floor()
    if floor and any(results.spread(case, floor) for case in cases):
        scale += " Dashed: the floor."
    body = [f'<h2 id="{group_anchor(group)}">{escape(group)}</h2>']
    told = f"Less is better. Bars are medians, their lines the least and the most. {scale}"
    body.append(f'<p class="soft small">{told.rstrip()}</p>')
    for case, top in zip(cases, tops):
        body += case_card(results, case, max(tops) if shared else top)
    return body


def case_card(results, case, top):
    figure = figure_of(case["figure"])
    body = [
        f'<section class="card case" id="{escape(case["name"])}">',
        f'<div class="case-head"><h3>{escape(case["title"])}</h3><div>{against_best(results, case)}</div></div>',
    ]
    if case.get("shows"):
        body.append(f'<p class="shows">{prose(case["shows"])}</p>')
    title = figure.title[:1].upper() + figure.title[1:]
    body.append(f'<div class="small soft">{escape(title)}, {escape(figure.unit)}</div>')
    body += bars(results, case, top)
    for word, budget in [
        *(("Budget", budget) for budget in results.limits(case)),
        ("Within this server", results.comparison(case)),
    ]:
        if budget:
            sign, kind = SIGNS[budget.verdict]
            body.append(
                f'<div class="small soft">{word}, {escape(budget.figure)}: {with_spread(budget.measured)}, wanted '
                f'{budget.wanted}: <span class="verdict {kind}">{sign} {budget.verdict}</span></div>'
            )
    body += ["<details><summary>All numbers</summary>", *numbers(results, case), "</details>", "</section>"]
    return body


def bars(results, case, top):
    """A bar for each server, with the floor as a line through all of them."""
    floor = results.spread(case, results.floor()) if results.floor() else None
    unit = figure_of(case["figure"]).unit
    line = f'<i class="least" style="left:{percent(floor.median, top)}"></i>' if floor else ""
    body = ['<div class="bars">']
    for name in results.servers():
        role = results.role(name)
        title = f'<span class="name">{escape(results.title(name))}</span>'
        spread = results.spread(case, name)
        if spread is None:
            reason = case.get("left_out", {}).get(name)
            if reason:
                body.append(f'<div class="bar">{title}<span class="out">left out: {prose(reason)}</span></div>')
            elif role != "floor":
                body.append(f'<div class="bar">{title}<span class="out">no result</span></div>')
            continue
        fill = f'<i class="fill {chart.class_of(name)}" style="width:{percent(spread.median, top)}"></i>'
        left, right = percent(spread.low, top), percent(spread.high, top)
        whisker = f'<i class="whisker" style="left:{left};width:calc({right} - {left})"></i>'
        drawn = whisker if role == "floor" else fill + whisker
        body.append(
            f'<div class="bar {role}">{title}<span class="track">{drawn}{line}</span>'
            f'<span class="value">{small_spread(with_spread(spread))} <small>{escape(unit)}</small></span></div>'
        )
    return [*body, "</div>"]


def percent(value, top):
    return f"{max(0.0, min(1.0, value / top)) * 100:.2f}%"


def numbers(results, case):
    """The table of a case, its command line, and the lengths of the responses."""
    data = table(results, case)
    body = [f'<div class="scroll" tabindex="0" role="region" aria-label="Figures of {escape(case["title"])}"><table>']
    body.append("<tr><th>server</th>" + "".join(f"<th>{escape(title)}</th>" for title in data.columns) + "</tr>")
    for name, cells in data.rows:
        kind = ' class="own"' if results.role(name) == "own" else ""
        each = "".join(f"<td>{small_spread(text)}</td>" for text in cells)
        body.append(f"<tr{kind}><td>{escape(results.title(name))}</td>{each}</tr>")
    body.append("</table></div>")
    if case.get("command"):
        body.append(f"<code>{escape(case['command'])}</code>")
    answers = case.get("answers")
    if answers:
        each = (f"{results.title(name)} {answer['head']} + {answer['body']}" for name, answer in answers.items())
        told = ", ".join(each)
        body.append(f'<p class="small soft">Octets of an answer, head + body: {escape(told)}.</p>')
    return body


def micro(results):
    entries = results.data.get("micro")
    if not entries:
        return []
    body = [
        '<h2 id="micro">Micro-benchmarks</h2>',
        '<p class="soft">Instructions are counted, not timed, and hardly vary: a change is one of the program.</p>',
        '<div class="card scroll"><table><tr><th>part</th><th>instructions</th><th>recorded</th><th>change</th></tr>',
    ]
    for entry in entries:
        recorded = f"{entry['recorded']:,}" if entry.get("recorded") else "–"
        body.append(
            f"<tr><td>{escape(entry['title'])}</td><td>{entry['instructions']:,}</td><td>{recorded}</td>"
            f"<td>{change(entry)}</td></tr>"
        )
    return [*body, "</table></div>"]


def about(results):
    body = ['<h2 id="about">How it was measured</h2>', f"<p>{escape(METHOD)}</p>"]
    if results.floor():
        body.append(f"<p>{escape(FLOOR)}</p>")
    body.append('<div class="card"><table class="facts">')
    body += [f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in header(results)]
    body.append("</table></div>")
    notes = results.data["notes"]
    if notes:
        body += ["<h2>Notes</h2>", '<ul class="small">', *(f"<li>{prose(note)}</li>" for note in notes), "</ul>"]
    return body
