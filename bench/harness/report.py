"""Writes the results to `report.json`, `report.md`, `report.html` and `headline.svg`."""

import json

from . import chart, page
from .results import (
    FLOOR,
    METHOD,
    Results,
    change,
    header,
    headline_table,
    summary,
    table,
    with_spread,
)

__all__ = ["Results", "with_spread", "write"]


def write(results, out):
    """Writes all files of the report to the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(results.data, indent=1, ensure_ascii=False) + "\n")
    for old in out.glob("*.svg"):
        old.unlink()
    if results.headline():
        (out / "headline.svg").write_text(chart.headline_file(results))
    (out / "report.md").write_text(markdown(results))
    (out / "report.html").write_text(page.html(results))


def cell(text):
    """Escapes a text, so that it does not end the cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def rows_of(columns, rows, numbers_from=1):
    """A table in Markdown; the columns from `numbers_from` on are numbers, aligned to the right."""
    lines = [f"| {' | '.join(cell(title) for title in columns)} |"]
    lines.append("|" + "|".join("---" if index < numbers_from else "---:" for index in range(len(columns))) + "|")
    return [*lines, *(f"| {' | '.join(cell(text) for text in row)} |" for row in rows), ""]


def markdown(results):
    lines = ["# Side by side", "", summary(results), ""]
    if results.headline():
        lines += ["![What each server needs, relative to the best other server](headline.svg)", ""]
    lines += ["| | |", "|---|---|", *(f"| {cell(name)} | {cell(value)} |" for name, value in header(results)), ""]
    lines += [METHOD, ""]
    if results.floor():
        lines += [FLOOR, ""]
    lines += losses(results)
    lines += budget_table(results)
    lines += headline(results)
    for group, cases in results.groups().items():
        lines += [f"## {group}", ""]
        for case in cases:
            lines += case_section(results, case)
    lines += micro_table(results)
    notes = results.data["notes"]
    if notes:
        lines += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)


def losses(results):
    """The cases in which this project's server needs more than the best peer, the worst first."""
    cases = results.losses()
    if not cases:
        return []
    lines = ["Where this server needs more than the best other one:", ""]
    for case in cases:
        ratio, best = results.to_best_peer(case, results.own()), results.title(results.best_peer(case))
        lines.append(f"- {case['title']}: {with_spread(ratio)} of {best}")
    return [*lines, ""]


def budget_table(results):
    budgets = results.budgets()
    if not budgets:
        return []
    rows = []
    for budget in budgets:
        verdict = budget.verdict if budget.verdict == "met" else f"**{budget.verdict}**"
        rows.append([budget.case["title"], budget.figure, budget.wanted, with_spread(budget.measured), verdict])
    return [
        "## Budgets",
        "",
        "What this server has set itself. “Within its spread”: the median misses the limit, some rounds meet it.",
        "",
        *rows_of(["case", "figure", "wanted", "measured", "verdict"], rows, numbers_from=5),
    ]


def headline(results):
    names, table_rows = headline_table(results)
    if not table_rows:
        return []
    rows = []
    for case, unit, cells in table_rows:
        rows.append([case["title"], unit, *(f"**{text}**" if least else text for text, least in cells)])
    return [
        "## Headline",
        "",
        "The first case of each group, and those where this server does worst. Less is better; the least is bold.",
        "",
        *rows_of(["case", "unit", *map(results.title, names)], rows, numbers_from=2),
    ]


def case_section(results, case):
    lines = [f"### {case['title']}", ""]
    if case.get("shows"):
        lines += [case["shows"], ""]
    if case.get("command"):
        lines += [f"`{case['command']}`", ""]
    numbers = table(results, case)
    rows = []
    for name, cells in numbers.rows:
        title = results.title(name)
        rows.append([f"**{title}**" if results.role(name) == "own" else title, *cells])
    lines += rows_of(["server", *numbers.columns], rows)
    lines += [f"- {text}" for text in remarks(results, case)]
    return [*lines, ""]


def remarks(results, case):
    """The remarks below the table of a case."""
    told = [f"Left out: {results.title(name)}: {reason}" for name, reason in left_out(results, case)]
    for budget in results.limits(case):
        told.append(f"Budget, {budget.figure}: {with_spread(budget.measured)}, {budget.wanted}: {budget.verdict}.")
    comparison = results.comparison(case)
    if comparison:
        measured = with_spread(comparison.measured)
        told.append(f"Within this server, {comparison.figure}: {measured}, {comparison.wanted}: {comparison.verdict}.")
    answers = case.get("answers")
    if answers:
        each = [f"{results.title(name)} {answer['head']} + {answer['body']}" for name, answer in answers.items()]
        told.append(f"Octets of an answer, head + body: {', '.join(each)}.")
    return told


def left_out(results, case):
    return [(name, reason) for name, reason in case.get("left_out", {}).items() if name in results.servers()]


def micro_table(results):
    entries = results.data.get("micro")
    if not entries:
        return []
    rows = []
    for entry in entries:
        recorded = f"{entry['recorded']:,}" if entry.get("recorded") else "–"
        rows.append([entry["title"], f"{entry['instructions']:,}", recorded, change(entry)])
    return [
        "## Micro-benchmarks",
        "",
        "Instructions are counted, not timed, and hardly vary: a change is one of the program.",
        "",
        *rows_of(["part", "instructions", "recorded", "change"], rows),
    ]
