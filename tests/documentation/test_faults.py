"""The table of faults of paper trading: numbered without gaps, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/paper-trading-faults.md").read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]


def test_rows_are_complete_and_numbered() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, len(ROWS) + 1))
    assert {len(row) for row in ROWS} == {5}
    assert all(cell for row in ROWS for cell in row)


def test_named_tests_exist() -> None:
    for *_, tests in ROWS:
        files = re.findall(r"`([^`]+\.py)`", tests)
        assert files, tests
        for file in files:
            assert (ROOT / ("" if file.startswith("tests/") else "tests/paper") / file).is_file(), file
