"""Reads metrics from standard input with the parser of prometheus_client, and prints each sample on a line.

The argument is the format: `prometheus` or `openmetrics`."""

import sys

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

PARSERS = {
    "prometheus": parser.text_string_to_metric_families,
    "openmetrics": openmetrics.text_string_to_metric_families,
}

for family in PARSERS[sys.argv[1]](sys.stdin.read()):
    for sample in family.samples:
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
        print(f"{family.type} {sample.name}{{{labels}}} {float(sample.value)}")
