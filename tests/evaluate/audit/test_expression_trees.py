"""Random expressions of past and later bars: the audit finds those that look ahead, and accuses no honest one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluate.audit.expression_trees import accused_trees, random_trees

pytestmark = pytest.mark.slow

TREES, SEED = 250, 45
MISSES = 2  # a hundredth of the trees
RECORD = Path(__file__).parents[3] / "benchmarks" / "look_ahead.json"


@pytest.mark.parametrize(("looks_ahead", "misses"), [(True, MISSES), (False, 0)])
def test_random_expressions_are_accused_if_they_look_ahead(looks_ahead: bool, misses: int) -> None:
    trees = random_trees(TREES, looks_ahead, SEED)
    accused = accused_trees(trees)
    wrong = set(range(TREES)) - accused if looks_ahead else accused
    assert len(wrong) <= misses, [trees[i] for i in wrong]


def test_the_recorded_long_run_misses_a_hundredth_and_accuses_none() -> None:
    missed, accused = json.loads(RECORD.read_text())["rows"]
    assert (missed["config"]["expressions"], accused["config"]["expressions"]) == (1000, 2000)
    assert missed["config"]["wrong"] <= 10
    assert accused["config"]["wrong"] == 0
