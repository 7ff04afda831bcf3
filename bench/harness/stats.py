"""Medians, always together with their spread."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of a figure over some rounds, with its lowest and highest value and its quartiles."""

    median: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    rounds: int

    @classmethod
    def of(cls, values):
        values = sorted(values)
        if len(values) == 1:
            quarter = three_quarters = values[0]
        else:
            quarter, _, three_quarters = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), values[0], values[-1], quarter, three_quarters, len(values))


def of_rounds(rounds, metric):
    """The spread of one figure, or None if the rounds do not have it."""
    values = [numbers[metric] for numbers in rounds if metric in numbers]
    return Spread.of(values) if values else None


def ratio(rounds, other, metric):
    """The spread of the ratios of rounds that were measured next to each other."""
    values = [mine[metric] / theirs[metric] for mine, theirs in zip(rounds, other) if theirs[metric] > 0]
    return Spread.of(values) if values else None
