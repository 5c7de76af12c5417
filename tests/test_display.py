"""How objects show themselves in notebooks: tables are escaped, lines of prices are scaled, thinned and ordered."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finrl_pod.display import COLOURS, MAX_POINTS, decimated, growth_figure, log_ticks, set_layout, table_html

DAYS = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def test_tables_escape_their_texts_and_dash_what_is_unknown() -> None:
    shown = table_html("<A>", [("<b>", 1234.567, math.nan, None, 3)], ("x & y",), "5 < 6")
    assert "<b>&lt;A&gt;</b>" in shown
    assert "<th>x &amp; y</th>" in shown
    assert "<td>&lt;b&gt;</td><td>1,235</td><td>–</td><td>–</td><td>3</td>" in shown
    assert "<p>5 &lt; 6</p>" in shown


def test_lines_grow_from_their_first_known_value_and_stand_in_the_order_of_their_ends() -> None:
    late = np.array([np.nan, np.nan, 4.0, 8.0, np.nan, 16.0])
    figure = growth_figure(DAYS, {"slow": np.linspace(10, 20, 6), "<late>": late, "never": np.full(6, np.nan)}, "T <1>")
    slow, other = figure.data
    assert slow.x == tuple(f"2020-01-0{day}" for day in range(1, 7))
    np.testing.assert_allclose(slow.y, np.linspace(1, 2, 6))
    np.testing.assert_allclose(other.y, late / 4)
    assert (other.name, figure.layout.title.text) == ("&lt;late&gt;", "T &lt;1&gt;")
    assert other.legendrank < slow.legendrank
    assert slow.line.color != other.line.color
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis.ticktext[0] == "1×"
    assert figure.layout.yaxis.ticktext[-1] == "4×"


@pytest.mark.slow
def test_lines_of_many_symbols_are_thinned_together_and_differ_in_colour_or_dash() -> None:
    bars, times = 2 * MAX_POINTS, np.datetime64("2020-01-01T09:30", "ns") + np.arange(8_000) * np.timedelta64(1, "m")
    alone = growth_figure(times, {"A": np.linspace(1, 2, bars)}, "")
    many = growth_figure(times, {str(i): np.linspace(1, 2 + i, bars) for i in range(4 * len(COLOURS))}, "")
    hundreds = growth_figure(times, {str(i): np.linspace(1, 2 + i, bars) for i in range(400)}, "")
    assert alone.data[0].x[0] == "2020-01-01T09:30"
    assert MAX_POINTS <= len(alone.data[0].y) <= MAX_POINTS + 1
    assert sum(len(line.y) for line in hundreds.data) < 130_000
    assert len({(line.line.color, line.line.dash) for line in many.data}) == 4 * len(COLOURS)
    assert (alone.layout.hovermode, hundreds.layout.hovermode) == ("x unified", "closest")


def test_thinned_values_keep_the_first_and_the_last() -> None:
    np.testing.assert_array_equal(decimated(np.arange(10), 3), [0, 4, 8, 9])
    np.testing.assert_array_equal(decimated(np.arange(3), 3), [0, 1, 2])


@pytest.mark.parametrize(("low", "high"), [(0.7, 2.4), (0.05, 900.0), (1.0, 1.0), (0.98, 1.03), (0.5, 8.0)])
def test_log_ticks_are_sorted_few_and_in_range(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)


def test_short_legends_stand_above_and_long_ones_beside_the_figure() -> None:
    prices = {f"S{i}": np.linspace(1, 2, 6) for i in range(8)}
    legends = {}
    for count in (1, 3, 8):
        figure = growth_figure(DAYS, dict(list(prices.items())[:count]), "")
        set_layout(figure, "")
        legends[count] = (figure.layout.showlegend, figure.layout.legend.orientation)
    assert legends == {1: (False, "h"), 3: (True, "h"), 8: (True, None)}
