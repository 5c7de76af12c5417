"""Shares of random expressions of past and of later bars that the look-ahead check accuses and misses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from finrl_pod_app.setup.extension_checks import PROBES

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import Row
from finrl_pod.evaluate.intervals import binomial_interval


@dataclass(frozen=True)
class LookAheadSettings:
    looking_ahead: int = 1000
    honest: int = 2000
    seed: int = 45


def look_ahead_rows(settings: LookAheadSettings) -> Iterator[Row]:
    from tests.evaluate.audit.expression_trees import accused_trees, random_trees

    check_minimum(settings, looking_ahead=1, honest=1)
    for name, looks_ahead, count in (
        ("missed_look_ahead", True, settings.looking_ahead),
        ("accused_honest", False, settings.honest),
    ):
        trees = random_trees(count, looks_ahead, settings.seed)
        accused = accused_trees(trees)
        wrong = sorted(set(range(count)) - accused if looks_ahead else accused)
        low, high = binomial_interval(len(wrong), count)
        config = {"expressions": count, "wrong": len(wrong), "examples": [repr(trees[i]) for i in wrong]}
        config |= {"seed": settings.seed, "probes": PROBES, "interval": "95% Clopper-Pearson"}
        yield Row(name, len(wrong) / count, low, high, "share", config)
