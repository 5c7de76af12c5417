"""Writes docs/glossary.md: python -m finrl_pod_app.setup.glossary > docs/glossary.md."""

from __future__ import annotations

import sys

from finrl_pod.evaluate.active_management import COMPARISON_METRICS
from finrl_pod.evaluate.metrics import METRICS, OWNER_METRICS
from finrl_pod.evaluate.tearsheet import TEAR_SHEET_METRICS
from finrl_pod_app.report.terms import TERMS


def page() -> str:
    """The page: all terms and metrics in alphabetical order."""
    terms = dict(TERMS)
    for metric in (*METRICS, *OWNER_METRICS, *COMPARISON_METRICS, *TEAR_SHEET_METRICS):
        label = metric.label
        is_name = label.startswith(metric.heading)  # names of persons keep their capital
        terms[label if is_name else label[0].lower() + label[1:]] = metric.explanation
    items = sorted(terms.items(), key=lambda term: term[0].casefold())
    rows = "".join(f"| {word} | {meaning} |\n" for word, meaning in items)
    return f"# Glossary\n\n| word | meaning |\n|---|---|\n{rows}"


if __name__ == "__main__":
    sys.stdout.write(page())
