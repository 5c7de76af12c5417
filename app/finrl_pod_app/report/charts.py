"""The charts of reports, dashboard and notebooks as Plotly figures without a template; each of them sets its own."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from finrl_pod.display import dates, decimated, log_ticks
from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import bars_per_year, drawdown, simple_returns
from finrl_pod.promotion.verdict import Histogram
from finrl_pod_app.report.columns import CHAMPION, SLOW_BASE, champion_first, display_name, in_sentence
from finrl_pod_app.report.palette import Style, area_colours, report_styles
from finrl_pod_app.report.records import ActiveWeights, Band, CostPoint

if TYPE_CHECKING:
    from finrl_pod.types import BacktestResult, Floats, Times

NAMED_ASSETS = 9  # shown by name in the stacked area; the rest is one band
MARGIN = 0.04  # of a log axis above and below its curves, as a share of their range
MIN_MARGIN = 0.005  # in natural logs, for curves that are flat
# More digits for closer ticks: labels stay distinct at every zoom.
PERCENT_TICKS = [
    {"dtickrange": [None, 9e-5], "value": ".3%"},
    {"dtickrange": [9e-5, 9e-4], "value": ".2%"},
    {"dtickrange": [9e-4, 9e-3], "value": ".1%"},
    {"dtickrange": [9e-3, None], "value": ".0%"},
]
AREA_LINE = {"width": 0.5, "color": "rgba(255, 255, 255, 0.6)"}  # between the areas of a stack
OTHERS_COLOUR, CASH_COLOUR = "#b0b5ba", "rgba(128, 128, 128, 0.25)"
GAIN, LOSS = "#148acd", "#d55e00"
WEIGHTS_SHOWN = 10  # over- and underweights each
SIDE_LEGEND = {"traceorder": "reversed", "y": 1, "yanchor": "top"}  # in the order of the stack
HISTOGRAM_BINS = 61
CLIP_QUANTILE = 0.995  # of absolute returns; returns beyond it are counted in the outermost bins
SHOWN_REFERENCES = 3
REFERENCES = ("index", "equal_weight", "mandate_at_tilt_zero")
ZERO_LINE = "#8a9099"
BAND_COLOUR = "rgba(128, 128, 128, 0.16)"
_AXIS = {
    "title": {"standoff": 8, "font": {"size": 13}},
    "zeroline": False,
    "zerolinecolor": ZERO_LINE,
    "automargin": True,
}
_ZERO_AXIS = {"zeroline": True, "zerolinecolor": ZERO_LINE}
REPORT_TEMPLATE = {
    "layout": {
        "showlegend": False,
        "hovermode": "x unified",
        "margin": {"l": 48, "r": 8, "t": 8, "b": 32},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#1b1f24", "size": 12}},
        # The ticks leave room for the lowest label of y.
        "xaxis": {**_AXIS, "showgrid": False, "ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0, 0, 0, 0)"},
        "yaxis": {**_AXIS, "gridcolor": "#d0d4d9"},
    }
}


Styles = Mapping[str, Style]


class Account(Protocol):
    """An account over time. times, equity: [T]. risk_free: [T-1] or None."""

    @property
    def times(self) -> Times: ...
    @property
    def equity(self) -> Floats: ...
    @property
    def risk_free(self) -> Floats | None: ...


def reference_names(results: Collection[str]) -> list[str]:
    """The baselines that a chart shows at first, at most `SHOWN_REFERENCES`; the others are a click away."""
    return [name for name in dict.fromkeys((*REFERENCES, *results)) if name in results and name != CHAMPION][
        :SHOWN_REFERENCES
    ]


def empty_figure() -> Any:
    """A figure without traces. Plotly is imported at its first use: it takes half a second."""
    from plotly.graph_objects import Figure

    return Figure()


def equity_figure(results: Mapping[str, Account], band: Band | None = None, base: str = "") -> Any:
    """Equity as a multiple of its first value on a log axis, and below it the decline from the running peak.

    band: places, low and high, drawn behind the lines of equity. base: one of the results; the growth of the champion,
    or of the first strategy, over it is a third plot at the bottom. Empty for none.
    """
    from plotly.subplots import make_subplots

    row_heights = [0.5, 0.2, 0.3] if base else [0.7, 0.3]
    figure = make_subplots(rows=len(row_heights), shared_xaxes=True, row_heights=row_heights, vertical_spacing=0.04)
    style_by_name = report_styles(results)
    multiples = {name: growth(result.equity) for name, result in results.items()}
    if band is not None:
        add_band(figure, next(iter(results.values())).times, band, meta="band", showlegend=False)
    # The champion comes last: its line is on top.
    for name in reversed(champion_first(results)):
        result = results[name]
        for row, values, hover in ((1, multiples[name], "%{y:.2f}×"), (2, drawdown(result.equity), "%{y:.1%}")):
            attributes = {"legendgroup": name, "showlegend": row == 1, "row": row, "col": 1}
            add_line(figure, name, result.times, values, style_by_name[name], hover, **attributes)
    figure.update_layout(legend={"traceorder": "reversed"})
    set_log_axis(figure, multiples, row=1, col=1)
    figure.update_yaxes(title="growth of 1", row=1, col=1)
    figure.update_yaxes(title="drawdown", tickformatstops=PERCENT_TICKS, rangemode="tozero", nticks=4, row=2, col=1)
    if base:
        subject = champion_first(results)[0]
        accounts = {name: results[name] for name in (subject, base)}
        attributes = {"meta": subject, "legendgroup": subject, "showlegend": False}
        _add_active_growth(figure, accounts, base, style_by_name, {"row": 3, "col": 1}, **attributes)
    return figure


def growth_figure(accounts: Mapping[str, Account], band: Band | None = None, styles: Styles | None = None) -> Any:
    """Growth of 1 on a log axis. band: bootstrap band of the first account."""
    multiples = {name: growth(account.equity) for name, account in accounts.items()}
    figure = line_figure(accounts, multiples, "%{y:.3f}×", styles)
    set_log_axis(figure, multiples)
    if band is not None:
        first = next(iter(accounts))
        name = f"{100 * band.level:.0f}% bootstrap band of {html.escape(display_name(first))}"
        add_band(figure, accounts[first].times, band, name=name)
    figure.update_yaxes(title="growth of 1, log scale")
    return figure


def drawdown_figure(accounts: Mapping[str, Account], styles: Styles | None = None) -> Any:
    """Decline from the running peak."""
    values = {name: drawdown(account.equity) for name, account in accounts.items()}
    figure = line_figure(accounts, values, "%{y:.1%}", styles)
    figure.update_yaxes(title="drawdown", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def active_growth_figure(accounts: Mapping[str, Account], base: str, styles: Styles) -> Any:
    """Growth of strategies relative to their base, minus one; strategies on other bars are left out.

    base: one of the accounts.
    """
    figure = empty_figure()
    _add_active_growth(figure, accounts, base, styles, {})
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def label_end(figure: Any) -> str:
    """Label the last value of the only line of a chart over time, name its first year, and drop the title of y.

    Returns the label.
    """
    (line,) = figure.data
    text = f"{line.y[-1]:+.1%}"
    figure.add_annotation(x=line.x[-1], y=line.y[-1], text=text, showarrow=False, xanchor="left", xshift=4)
    figure.update_layout(margin_r=56)
    figure.update_xaxes(ticklabelmode="period", nticks=6, range=[line.x[0], line.x[-1]])
    figure.update_yaxes(title="")
    return text


def _add_active_growth(
    figure: Any,
    accounts: Mapping[str, Account],
    base: str,
    styles: Styles,
    subplot: Mapping[str, int],
    **attributes: Any,
) -> None:
    """Add the lines of `active_growth_figure` to a subplot, given by row and col. attributes: Plotly attributes."""
    reference = accounts[base]
    for name in reversed(champion_first(accounts)):
        account = accounts[name]
        if name != base and np.array_equal(account.times, reference.times):
            active = growth(account.equity) / growth(reference.equity) - 1
            # Without meta, the buttons of a report do not hide the only line of its chart.
            lines = {"meta": None, **attributes, **subplot}
            add_line(figure, name, account.times, active, styles[name], "%{y:+.2%}", **lines)
    label = "the base" if base == SLOW_BASE else in_sentence(base)
    figure.update_yaxes(title=f"growth over {label}", tickformatstops=PERCENT_TICKS, **_ZERO_AXIS, **subplot)


def active_weights_figure(weights: ActiveWeights) -> Any:
    """Over- and underweights as bars, the largest overweight on top; at most `WEIGHTS_SHOWN` at each end."""
    items = sorted(weights.by_asset.items(), key=lambda item: -item[1])
    over = [item for item in items if item[1] > 0][:WEIGHTS_SHOWN]
    under = [item for item in items if item[1] < 0][-WEIGHTS_SHOWN:]
    return signed_bars_figure(dict([*over, *under]), "weight less weight in the base", in_percent=True)


def signed_bars_figure(values: Mapping[str, float], title: str, *, in_percent: bool) -> Any:
    """Horizontal bars from the top down: blue for gains and overweights, orange for losses and underweights.

    title: title of the axis of values. in_percent: whether values are fractions.
    """
    form, axis = ("+.2%", {"tickformatstops": PERCENT_TICKS}) if in_percent else ("+,.0f", {"tickformat": "~s"})
    figure = empty_figure()
    figure.add_bar(
        x=list(values.values()),
        y=[html.escape(name) for name in values],
        orientation="h",
        marker_color=[GAIN if value >= 0 else LOSS for value in values.values()],
        hovertemplate=f"%{{y}}: %{{x:{form}}}<extra></extra>",
    )
    set_name_axis(figure)
    figure.update_xaxes(title=title, showgrid=True, gridcolor="#d0d4d9", **_ZERO_AXIS, **axis)
    figure.update_layout(hovermode="closest")
    return figure


def set_name_axis(figure: Any) -> None:
    """Set the axis of names of horizontal bars: the first on top, with room between names and bars."""
    figure.update_yaxes(autorange="reversed", type="category", dtick=1, showgrid=False, automargin=True)
    figure.update_yaxes(ticks="outside", tickcolor="rgba(0, 0, 0, 0)", tickfont={"size": 11})


def rolling_sharpe_figure(accounts: Mapping[str, Account], styles: Styles | None = None) -> Any:
    """Rolling annualised Sharpe ratio over half a year of bars."""
    from finrl_pod.evaluate.tearsheet import ROLLING_BARS, rolling_sharpe  # loads torch

    values = {
        name: rolling_sharpe(account.equity, account.risk_free, periods=bars_per_year(account.times))
        for name, account in accounts.items()
    }
    figure = line_figure(accounts, values, "%{y:.2f}", styles)
    figure.update_yaxes(zeroline=True, title=f"Sharpe ratio, {ROLLING_BARS} bars")
    return figure


def rolling_volatility_figure(accounts: Mapping[str, Account]) -> Any:
    """Rolling annualised volatility over half a year of bars."""
    from finrl_pod.evaluate.tearsheet import rolling_volatility

    values = {name: rolling_volatility(x.equity, periods=bars_per_year(x.times)) for name, x in accounts.items()}
    figure = line_figure(accounts, values, "%{y:.1%}")
    figure.update_yaxes(title="volatility per year", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def rolling_beta_figure(accounts: Mapping[str, Account], base: str) -> Any:
    """Rolling beta to a base over half a year of bars, of the accounts with the same bars."""
    from finrl_pod.evaluate.tearsheet import rolling_alpha_beta

    reference = accounts[base]
    values = {
        name: rolling_alpha_beta(account.equity, reference.equity, account.risk_free)[1]
        for name, account in accounts.items()
        if name != base and np.array_equal(account.times, reference.times)
    }
    figure = line_figure({name: accounts[name] for name in values}, values, "%{y:.2f}", report_styles(accounts))
    figure.update_yaxes(title="beta")
    return figure


def weights_figure(result: BacktestResult) -> Any:
    """Portfolio weights over time, stacked: the largest assets by mean weight, the others together, and cash.

    Long positions are above zero, short ones below.
    """
    figure = empty_figure()
    bands = _weight_bands(result)
    named = min(len(bands) - 1, NAMED_ASSETS)
    colours = [*area_colours(named), *[OTHERS_COLOUR] * (len(bands) - 1 - named), CASH_COLOUR]
    for (name, values), colour in zip(bands, colours, strict=True):
        for weights, group in ((np.clip(values, 0, None), "long"), (np.clip(values, None, 0), "short")):
            if group == "short" and not weights.any():
                continue
            attributes = {"legendgroup": name, "showlegend": group == "long", "hovertemplate": "%{y:.1%}"}
            _add_area(figure, html.escape(name), result, weights, group, colour, **attributes)
    figure.update_yaxes(title="share of equity", tickformatstops=PERCENT_TICKS)
    if (result.weights >= 0).all() and (result.weights.sum(1) <= 1).all():
        figure.update_yaxes(range=[0, 1])
    return figure


def _add_area(
    figure: Any, name: str, account: Account, values: Floats, stack: str, colour: str, **attributes: Any
) -> None:
    figure.add_scatter(
        x=dates(account.times),
        y=decimated(values),
        name=name,
        stackgroup=stack,
        mode="lines",
        line=AREA_LINE,
        fillcolor=colour,
        **attributes,
    )


def turnover_figure(result: BacktestResult, colour: str) -> Any:
    """One-sided turnover of each month as a share of equity."""
    months, sums = monthly_turnover(result)
    figure = empty_figure()
    figure.add_bar(x=months, y=sums, marker_color=colour, hovertemplate="%{y:.1%}")
    figure.update_yaxes(title="monthly turnover", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def monthly_turnover(result: BacktestResult) -> tuple[list[str], Floats]:
    """Months as 2019-01, and the one-sided turnover of each as a share of equity."""
    names, month_index = np.unique(result.times.astype("datetime64[M]"), return_inverse=True)
    sums = 0.5 * np.bincount(month_index, weights=result.turnover).astype(np.float64)
    return [str(name) for name in names], sums


def costs_figure(results: Mapping[str, BacktestResult], styles: Styles | None = None) -> Any:
    """Cumulative costs as a share of initial equity."""
    costs = {name: result.costs.cumsum() / result.equity[0] for name, result in results.items()}
    figure = line_figure(results, costs, "%{y:.3%}", styles)
    figure.update_yaxes(title="costs / initial equity", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def cost_breakdown_figure(result: BacktestResult) -> Any:
    """Cumulative costs by kind, stacked, as a share of initial equity."""
    figure = empty_figure()
    for (name, values), colour in zip(result.cost_parts.items(), area_colours(len(result.cost_parts)), strict=True):
        share = values.cumsum() / result.equity[0]
        _add_area(figure, name, result, share, "costs", colour, hovertemplate="%{y:.3%}")
    figure.update_yaxes(title="costs / initial equity", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def distribution_figure(results: Mapping[str, BacktestResult]) -> Any:
    """Histogram of returns per bar as shares of the bars. Outliers are counted in the outermost bins."""
    returns = {name: simple_returns(result.equity) for name, result in results.items()}
    limit = max(float(np.quantile(np.abs(values), CLIP_QUANTILE)) for values in returns.values()) or 1e-4
    edges = np.linspace(-limit, limit, HISTOGRAM_BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    figure = empty_figure()
    style_by_name = report_styles(results)
    for name in reversed(champion_first(results)):
        counts, _ = np.histogram(np.clip(returns[name], -limit, limit), edges)
        style = style_by_name[name]
        figure.add_scatter(
            x=centres,
            y=counts / len(returns[name]),
            name=display_name(name),
            meta=name,
            mode="lines",
            line={"color": style.colour, "dash": style.dash, "width": style.width, "shape": "hvh"},
            hovertemplate="%{y:.1%}",
        )
    figure.update_xaxes(title="return of a bar", tickformatstops=PERCENT_TICKS, zeroline=True)
    figure.update_yaxes(title="share of bars", tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def cost_curve_figure(rows: Sequence[CostPoint], run_cost: float, colour: str) -> Any:
    """Annual return by proportional cost in basis points. run_cost: cost of the backtest, marked by a dotted line."""
    costs = [row.cost_bps for row in rows]
    returns = [row.annual_return for row in rows]
    figure = empty_figure()
    figure.add_scatter(
        x=costs,
        y=returns,
        mode="lines+markers",
        line={"color": colour, "width": 2},
        hovertemplate="%{x:g} bp: CAGR %{y:.2%}<extra></extra>",
    )
    figure.add_vline(x=run_cost, line={"color": ZERO_LINE, "dash": "dot", "width": 1.5})
    label = {"yref": "paper", "yanchor": "top", "xanchor": "left", "xshift": 4, "showarrow": False}
    figure.add_annotation(x=run_cost, y=1, text=f"this run: {run_cost:g} bp", **label)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="transaction cost, bp")
    figure.update_yaxes(title="CAGR", tickformatstops=PERCENT_TICKS, zeroline=True)
    return figure


def logits_figure(logits: Histogram) -> Any:
    """Histogram of the PBO logits. Bars at or below zero are orange: they count as overfitting."""
    edges = np.asarray(logits.edges, dtype=np.float64)
    centres = (edges[1:] + edges[:-1]) / 2
    colours = ["#d55e00" if centre <= 0 else "#148acd" for centre in centres]
    figure = empty_figure()
    counts = list(logits.counts)
    figure.add_bar(x=centres, y=counts, width=np.diff(edges), marker_color=colours, hovertemplate="%{y:,}")
    figure.update_xaxes(title="logit of the rank out of sample", zeroline=True)
    figure.update_yaxes(title="splits", tickformat=",d")
    return figure


def line_figure(
    accounts: Mapping[str, Account], values: Mapping[str, Floats], hover: str, styles: Styles | None = None
) -> Any:
    """One line per strategy. values: [T] each. styles: line styles; by default the styles of a report."""
    figure = empty_figure()
    style_by_name = report_styles(accounts) if styles is None else styles
    # The champion, or the first strategy, comes last: its line is on top.
    for name in reversed(champion_first(accounts)):
        add_line(figure, name, accounts[name].times, values[name], style_by_name[name], hover)
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def add_line(
    figure: Any, strategy: str, times: Times, values: Floats, style: Style, hover: str, **attributes: Any
) -> None:
    """Add the thinned line of a strategy in its style. attributes: Plotly attributes, and row and col of a subplot."""
    trace = {
        "x": dates(times),
        "y": decimated(values),
        "name": html.escape(display_name(strategy)),
        "meta": strategy,
        "mode": "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": style.width},
        "hovertemplate": hover,
    }
    figure.add_scatter(**trace | attributes)


def growth(equity: Floats) -> Floats:
    """Growth of 1: equity [T] over its first value. NaN at or below zero: a log axis has no place for it."""
    multiples = equity / equity[0]
    return np.where(multiples > 0, multiples, np.nan)


def set_log_axis(figure: Any, multiples: Mapping[str, Floats], **subplot: int) -> None:
    """Set a log axis with round ticks that covers all curves; wider bands are cut off. subplot: its row and col."""
    ends = [math.log(end(values)) for values in multiples.values() for end in (np.nanmin, np.nanmax)]
    margin = max(MARGIN * (max(ends) - min(ends)), MIN_MARGIN)
    low, high = min(ends) - margin, max(ends) + margin
    ticks = log_ticks(math.exp(low), math.exp(high))
    limits = [low / math.log(10), high / math.log(10)]
    figure.update_yaxes(type="log", range=limits, tickvals=ticks, ticktext=[f"{tick:g}×" for tick in ticks], **subplot)


def add_band(figure: Any, times: Times, band: Band, **attributes: Any) -> None:
    """Add a filled band behind the other lines. attributes: Plotly attributes of both of its edges."""
    x = dates(times, np.asarray(band.places))
    add_range(figure, x, band.low, band.high, **attributes)
    figure.data = (*figure.data[-2:], *figure.data[:-2])


def add_range(figure: Any, x: Any, low: Any, high: Any, colour: str = BAND_COLOUR, **attributes: Any) -> None:
    """Fill the area between two lines. attributes: Plotly attributes of both."""
    hidden = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=low, **hidden, **{**attributes, "showlegend": False})
    figure.add_scatter(y=high, fill="tonexty", fillcolor=colour, **hidden, **attributes)


def _weight_bands(result: BacktestResult) -> list[tuple[str, Floats]]:
    """Names and weights [T], largest first, then the others together, then cash."""
    mean = np.abs(result.weights).mean(0)
    order = [int(i) for i in np.argsort(-mean, kind="stable") if mean[i] > 0]
    bands = [(result.symbols[i], result.weights[:, i]) for i in order[:NAMED_ASSETS]]
    if (other_count := len(order) - NAMED_ASSETS) > 0:
        bands.append((count_text(other_count, "other"), result.weights[:, order[NAMED_ASSETS:]].sum(1)))
    return [*bands, ("cash", 1 - result.weights.sum(1))]
