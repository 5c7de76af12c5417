"""Charts of a report: colours, lines, bands, stacked weights, and axes whose tick labels are distinct."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.report import charts, contribution, palette
from finrl_pod_app.report.builder import bootstrap_band
from finrl_pod_app.report.palette import line_styles
from finrl_pod_app.report.records import ActiveWeights, Band, Capacity, CostPoint

from finrl_pod.display import MAX_POINTS
from finrl_pod.types import BacktestResult
from tests.app.report_data import STRATEGIES, synthetic_results
from tests.app.test_contribution import CAPACITY

# Transformations of linear RGB under full protanopia and deuteranopia (Machado, Oliveira and Fernandes 2009).
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])  # D65


def linear(colour: str) -> np.ndarray[Any, Any]:
    """Linear RGB of #rrggbb."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """CIELAB of linear RGB."""
    x = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(x > 216 / 24389, np.cbrt(x), (24389 / 27 * x + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, sight: str) -> float:
    """Distance of two colours in CIELAB as seen with a kind of sight."""
    return float(np.linalg.norm(lab(SIGHT[sight] @ linear(one)) - lab(SIGHT[sight] @ linear(other))))


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    return float(linear(colour) @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
def test_strategies_can_be_told_apart(sight: str) -> None:
    names = ("champion", *palette.BASELINE_STYLES)
    colours = {name: style.colour for name, style in line_styles(names).items()}
    assert len(set(colours.values())) == len(names)
    for one, other in itertools.combinations(names, 2):
        assert difference(colours[one], colours[other], sight) >= 15, (one, other)
    for one, other in itertools.combinations(("champion", *charts.REFERENCES), 2):
        assert difference(colours[one], colours[other], sight) >= 39, (one, other)


@pytest.mark.parametrize("sight", SIGHT)
def test_neighbours_in_a_stack_can_be_told_apart(sight: str) -> None:
    colours = palette.area_colours(charts.NAMED_ASSETS)
    assert len(set(colours)) == charts.NAMED_ASSETS
    for one, other in itertools.pairwise(colours):
        assert difference(one, other, sight) >= 48
    assert palette.area_colours(charts.NAMED_ASSETS + 1)[-1] == colours[0]


def label(value: float, distance: float) -> str:
    """The label of a percentage axis at a value, as Plotly writes it for ticks at this distance."""
    for stop in charts.PERCENT_TICKS:
        low, high = stop["dtickrange"]
        if (low is None or distance >= low) and (high is None or distance <= high):
            digits = re.fullmatch(r"\.(\d)%", str(stop["value"]))
            assert digits is not None
            return f"{value:.{digits[1]}%}"
    raise AssertionError(f"no format for ticks at a distance of {distance}")


@pytest.mark.parametrize("exponent", range(-5, 1))
@pytest.mark.parametrize("digit", [1, 2, 5])
def test_labels_of_percentages_are_distinct_and_exact(digit: int, exponent: int) -> None:
    distance = digit * 10.0**exponent
    labels = [label(i * distance, distance) for i in range(10)]
    assert len(set(labels)) == 10
    assert [float(text.rstrip("%")) / 100 for text in labels] == pytest.approx([i * distance for i in range(10)])


def percentage_axes(results: dict[str, BacktestResult]) -> Iterator[Any]:
    champion = results["champion"]
    parts = {"commission": champion.costs, "spread": champion.costs}
    metrics = dict.fromkeys(("cumulative_return", "sharpe", "max_drawdown", "costs_paid"), 1.0)
    rows = [
        CostPoint.model_validate({"cost_bps": cost, "annual_return": 0.1 - cost / 1e5, **metrics})
        for cost in (0.0, 10.0)
    ]
    yield charts.drawdown_figure(results).layout.yaxis
    yield charts.equity_figure(results).layout.yaxis2
    yield charts.active_growth_figure(results, "index", line_styles(results)).layout.yaxis
    yield charts.active_weights_figure(ActiveWeights(base="index", by_asset={"A": 0.1, "B": -0.1})).layout.xaxis
    yield charts.weights_figure(champion).layout.yaxis
    yield charts.turnover_figure(champion, "#000000").layout.yaxis
    yield charts.costs_figure(results).layout.yaxis
    yield charts.cost_breakdown_figure(replace(champion, cost_parts=parts)).layout.yaxis
    yield charts.distribution_figure(results).layout.xaxis
    yield charts.distribution_figure(results).layout.yaxis
    yield charts.cost_curve_figure(rows, 10.0, "#000000").layout.yaxis
    yield contribution.capacity_figure(Capacity.model_validate(CAPACITY)).layout.yaxis


def test_every_axis_of_percentages_has_digits_for_its_ticks() -> None:
    for axis in percentage_axes(synthetic_results(bars=300)):
        assert [stop.value for stop in axis.tickformatstops] == [stop["value"] for stop in charts.PERCENT_TICKS]
        assert axis.tickformat is None
        assert axis.title.text


def test_colours_are_distinct_and_have_contrast_in_light_and_dark() -> None:
    style_by_name = line_styles(STRATEGIES)
    assert list(style_by_name) == list(STRATEGIES)
    assert len({style.colour for style in style_by_name.values()}) == len(STRATEGIES)
    assert len({(style.colour, style.dash) for style in line_styles([f"s{i}" for i in range(10)]).values()}) == 10
    for style in style_by_name.values():
        assert contrast(style.colour, "#ffffff") >= 3.0
        assert contrast(style.colour, "#14171a") >= 3.0


def test_strategy_has_the_same_colour_in_all_charts() -> None:
    results = synthetic_results(bars=60)
    style_by_name = line_styles(results)
    for figure in (charts.equity_figure(results), charts.drawdown_figure(results)):
        assert {line.meta: line.line.color for line in figure.data} == {
            n: style.colour for n, style in style_by_name.items()
        }
        assert figure.data[-1].meta == "champion"


def test_the_subject_of_a_backtest_has_a_wide_solid_line_in_its_colour() -> None:
    names = ("momentum_12_1", "equal_weight", "index")
    lines = charts.costs_figure(synthetic_results(bars=60, names=names)).data
    assert [line.meta for line in lines] == [*reversed(names)]
    assert (lines[-1].line.dash, lines[-1].line.width) == ("solid", palette.SUBJECT_WIDTH)
    assert all(line.line.width < palette.SUBJECT_WIDTH for line in lines[:-1])
    assert lines[-1].line.color == line_styles(names)["momentum_12_1"].colour


def test_stacked_weights_sum_to_one() -> None:
    result = synthetic_results(bars=60)["champion"]
    stacked = charts.weights_figure(result)
    total = np.sum([np.asarray(band.y) for band in stacked.data], axis=0)
    assert total == pytest.approx(np.ones(60))
    assert len(stacked.data) == charts.NAMED_ASSETS + 2


def test_short_positions_are_stacked_below_zero() -> None:
    result = synthetic_results(bars=60)["champion"]
    weights = result.weights.copy()
    weights[:, 0] = -0.4
    stacked = charts.weights_figure(replace(result, weights=weights))
    below = [band for band in stacked.data if band.stackgroup == "short"]
    assert [band.name for band in below] == ["AAPL"]
    assert np.asarray(below[0].y) == pytest.approx(np.full(60, -0.4))


def test_ruined_account_is_nan_on_the_log_axis() -> None:
    results = synthetic_results(bars=60)
    equity = results["index"].equity.copy()
    equity[30:] = 0.0
    figure = charts.equity_figure({**results, "index": replace(results["index"], equity=equity)})
    line = next(line for line in figure.data if line.meta == "index")
    assert np.isnan(np.asarray(line.y)[30:]).all()
    assert np.isfinite(np.asarray(line.y)[:30]).all()


def test_long_lines_are_thinned_and_keep_first_and_last_points() -> None:
    result = synthetic_results(bars=60)["champion"]
    bars = 9_001
    times = np.datetime64("2020-01-01T09:30", "ns") + np.arange(bars) * np.timedelta64(1, "m")
    long = replace(result, times=times, equity=np.linspace(1.0, 2.0, bars), weights=np.full((bars, 20), 0.05))
    line = charts.equity_figure({"champion": long}).data[0]
    assert len(line.x) == len(line.y) <= MAX_POINTS + 1
    assert (line.x[0], line.x[-1]) == ("2020-01-01T09:30", "2020-01-07T15:30")
    assert line.y[-1] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [(0.98, 1.03), (1.0, 1.9), (2.31, 2.33), (0.4, 3.0), (0.001, 90.0)])
def test_labels_of_a_log_axis_are_distinct(low: float, high: float) -> None:
    figure = charts.equity_figure(synthetic_results(bars=60))
    charts.set_log_axis(figure, {"one": np.array([low, high])}, row=1, col=1)
    labels = list(figure.layout.yaxis.ticktext)
    assert len(labels) == len(set(labels)) >= 3
    assert [float(text.rstrip("×")) for text in labels] == pytest.approx(list(figure.layout.yaxis.tickvals))


def test_a_band_does_not_widen_the_axis() -> None:
    results = synthetic_results(bars=300)
    wide = Band(level=0.9, places=(0, 299), low=(1.0, 0.01), high=(1.0, 90.0))
    ranges = [charts.equity_figure(results, band).layout.yaxis.range for band in (None, wide)]
    assert ranges[0] == ranges[1]
    curves = np.concatenate([result.equity / result.equity[0] for result in results.values()])
    low, high = (10**end for end in ranges[0])
    assert 0.9 * curves.min() < low < curves.min()
    assert curves.max() < high < 1.1 * curves.max()
    band = bootstrap_band(results["champion"].equity)
    assert len(charts.equity_figure(results, band).data) == 2 * len(results) + 2


def test_active_growth_is_the_ratio_of_both_curves() -> None:
    results = synthetic_results(bars=60)
    champion, index = results["champion"], results["index"]
    styles = line_styles(results)
    others = replace(index, times=index.times + np.timedelta64(1, "D"))
    figure = charts.active_growth_figure({"champion": champion, "index": index, "other bars": others}, "index", styles)
    (line,) = figure.data
    expected = (champion.equity[-1] / champion.equity[0]) / (index.equity[-1] / index.equity[0]) - 1
    assert (line.y[0], line.y[-1]) == pytest.approx((0.0, expected))
    assert line.line.color == styles["champion"].colour
    assert figure.layout.yaxis.title.text == "growth over the index"
    # Below equity and drawdown the same line has a scale of its own.
    *_, below = charts.equity_figure(results, base="index").data
    assert below.yaxis == "y3"
    np.testing.assert_array_equal(below.y, line.y)


def test_over_and_underweights_are_the_largest_of_each_side() -> None:
    by_asset = {f"<{i}>": (10 - i) / 1e3 for i in sorted(range(31), key=str)}  # as a saved report has them
    bars = charts.active_weights_figure(ActiveWeights(base="index", by_asset=by_asset)).data[0]
    assert bars.x == pytest.approx([*(i / 1e3 for i in range(10, 0, -1)), *(-i / 1e3 for i in range(11, 21))])
    assert bars.y[0] == "&lt;0&gt;"
    assert set(bars.marker.color[:10]) == {charts.GAIN}
    assert set(bars.marker.color[10:]) == {charts.LOSS}


def test_weights_without_leverage_fill_the_axis() -> None:
    result = synthetic_results(bars=60)["champion"]
    assert charts.weights_figure(result).layout.yaxis.range == (0, 1)
    assert charts.weights_figure(replace(result, weights=1.2 * result.weights)).layout.yaxis.range is None
