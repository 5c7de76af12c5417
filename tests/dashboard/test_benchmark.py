"""Strategies against a benchmark: statistics and rolling regression against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import accounts as figures
from finrl_pod_app.dashboard.queries import comparison as benchmark
from finrl_pod_app.dashboard.queries.comparison import Curve

from finrl_pod.evaluate.tearsheet import rolling_alpha_beta

BARS, BETA, ALPHA = 400, 0.6, 0.0002  # alpha per bar


def curve(returns: np.ndarray) -> Curve:
    times = np.arange("2020-01-01", BARS, dtype="datetime64[D]")
    return Curve(times, 100 * np.concatenate([[1.0], np.cumprod(1 + returns)]), None, {})


@pytest.fixture
def curves() -> dict[str, Curve]:
    market = np.random.default_rng(0).normal(0.0004, 0.01, BARS - 1)
    short = Curve(np.arange("2020-01-01", 50, dtype="datetime64[D]"), np.linspace(1, 2, 50), None, {})
    return {"mine": curve(ALPHA + BETA * market), "index": curve(market), "shorter": short}


def test_active_table(curves: dict[str, Curve]) -> None:
    table = benchmark.active_table(curves, "index").set_index("strategy")
    assert list(table.index) == ["mine"]  # other bars cannot be compared
    own, base = (np.diff(curves[name].equity) / curves[name].equity[:-1] for name in ("mine", "index"))
    years = (own - base).mean() / table.loc["mine", "active_return"]
    assert table.loc["mine", "beta"] == pytest.approx(BETA)
    assert table.loc["mine", "alpha"] == pytest.approx(ALPHA / years)
    assert table.loc["mine", "tracking_error"] == pytest.approx((own - base).std(ddof=1) / np.sqrt(years))


def test_rolling_alpha_and_beta_of_an_exact_relation(curves: dict[str, Curve]) -> None:
    alpha, beta = rolling_alpha_beta(curves["mine"].equity, curves["index"].equity, window=60)
    assert len(alpha) == len(beta) == BARS
    assert np.isnan(beta[:60]).all()
    np.testing.assert_allclose(beta[60:], BETA)
    np.testing.assert_allclose(alpha[60:] / alpha[60], 1.0)


def test_rolling_alpha_and_beta_are_drawn_with_one_legend(curves: dict[str, Curve]) -> None:
    styles = {name: theme.style_of(name) for name in curves}
    lines = figures.rolling_alpha_beta_figure(curves, "index", styles).data
    assert [line.showlegend for line in lines] == [True, False]
