"""Tables of features: the look-ahead check changes what becomes known after a bar."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from finrl_pod.data.as_of import table_values
from finrl_pod.data.panel import cut
from finrl_pod.data.sources.feature_tables import with_tables
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.evaluate.audit.pipeline import Pipeline, with_random_future
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import TableConfig
from finrl_pod.types import FeatureTable, Floats, Panel
from tests.data.panels import random_panel

NAMES = ("macro.level",)


@pytest.fixture
def prices(tmp_path: Path) -> Panel:
    """Prices of 140 days with a value on every third day, and one in the evening of the 90th."""
    lines = [f"{np.datetime64('2020-01-01') + t},{t % 7}" for t in range(0, 140, 3)]
    file = tmp_path / "macro.csv"
    file.write_text("\n".join(["known_at,level", *lines, "2020-03-31T21:00Z,50"]) + "\n")
    return with_tables(random_panel(bars=140), (TableConfig(str(file), 45),))


def findings(prices: Panel) -> list[str]:
    normaliser = build_market(prices, NAMES, (0, 60)).normaliser
    pipeline = Pipeline(
        "tables", prices, lambda panel: build_market(panel, NAMES, normaliser), ExecutionRules(), 1.0, out_of_sample=100
    )
    return [finding.part for finding in check_lookahead(pipeline, probes=40) if finding.status == "fail"]


def test_the_join_does_not_look_ahead(prices: Panel) -> None:
    assert findings(prices) == []


def test_a_join_that_uses_the_same_day_is_found(prices: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_day(table: FeatureTable, column: int, panel: Panel) -> Floats:
        earlier = table.known_at - np.timedelta64(1, "D")
        return table_values(dataclasses.replace(table, known_at=earlier), column, panel)

    monkeypatch.setattr("finrl_pod.data.features.table_values", same_day)
    assert findings(prices) == ["feature macro.level"]


def test_changed_and_cut_panels_keep_what_was_known(prices: Panel) -> None:
    (table,) = prices.tables
    time = prices.times[60]
    changed = with_random_future(prices, 60, seed=1).tables[0]
    known = table.known_at < time
    assert np.array_equal(changed.values[known], table.values[known])
    assert not np.isclose(changed.values[~known], table.values[~known]).any()
    assert cut(prices, 0, 61).tables[0].known_at.max() == table.known_at[known].max()
