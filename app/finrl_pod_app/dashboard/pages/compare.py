"""Backtest and compare page: champions of runs, strategies and baselines under the same rules, and their verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.metrics import METRIC_BY_NAME, METRICS
from finrl_pod.evaluate.tearsheet import ROLLING_BARS, drawdowns
from finrl_pod.settings.run import RunConfig
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import accounts as figures
from finrl_pod_app.dashboard.figures.accounts import Styles
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND, default_to, follow_default
from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.pages.result_views import show_rules
from finrl_pod_app.dashboard.pages.run_list import show_differences
from finrl_pod_app.dashboard.pages.widgets import (
    damaged_note,
    error_messages,
    newest_result,
    runs_with_champion,
    show_errors,
    show_figure,
    show_metrics,
    show_static_table,
    show_table,
)
from finrl_pod_app.dashboard.queries import comparison, runs
from finrl_pod_app.dashboard.queries.comparison import SLOW_STRATEGIES, STRATEGIES, Curve
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.evaluation.sweeps import DecisionTable
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name, metric_text
from finrl_pod_app.report.contribution import profit_figure
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.verdict_text import best_of_looks

DEFAULT_STRATEGIES = ("equal_weight", "index")  # drawn alone where no run has a verdict
MIN_DATE = date(1900, 1, 1)
MAX_CURVES = 12  # more curves cannot be distinguished
MAX_COST = 100.0  # basis points
MAX_FILE_NAME = 150  # characters
MAX_TRADES = 2_000  # the last ones; the CSV has all
ALL = "all strategies"
VIEWS = (
    "Equity", "Drawdown", "Against the benchmark", "Rolling Sharpe", "Monthly returns", "Weights", "Profit by asset",
    "Turnover and costs", "Trades",
)  # fmt: skip
PREFERRED = ("index", "equal_weight")  # benchmarks


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Backtest and compare")
    damaged_note(settings)
    by_name = runs_with_champion(settings)
    newest = newest_result(settings)
    if newest is not None and "prices" not in st.query_params:
        default_to("run", [newest.name], by_name)
    first, second = st.columns(2)
    run_names = first.multiselect(
        "Champions of runs",
        list(by_name),
        placeholder="none",
        key="run",
        bind=BOUND,
    )
    strategies = second.multiselect(
        "Strategies and baselines",
        STRATEGIES,
        default=DEFAULT_STRATEGIES,
        format_func=display_name,
        help=f"{display_name(', '.join(SLOW_STRATEGIES))} optimise at every rebalancing and take some seconds.",
        key="strategy",
        bind=BOUND,
    )
    champions = [by_name[name] for name in run_names]
    period = _choose_period(champions)
    if len(run_names) > 1:
        show_differences({name: cached.summary(by_name[name]).settings for name in run_names})
    if not run_names and not strategies:
        st.info("Choose a run or a strategy.")
        return
    if len(run_names) + len(strategies) > MAX_CURVES:
        st.warning(f"Choose at most {MAX_CURVES} runs and strategies.")
        return
    if not _confirm_new_looks(champions, period):
        return
    decisions = _decisions(champions, strategies, period)
    if decisions:
        names = list(reversed(by_name))
        styles = {name: theme.style_of(name, names) for name in decisions}
        st.fragment(show_errors(_show_comparison))(decisions, styles, _looks_note(champions, period))
    _show_verdicts(champions)


@dataclass(frozen=True)
class Period:
    """The period of a comparison.

    first, last: ISO dates. is_test: they are the test period of `base`. base: the first run; its data and rules apply
    to strategies; None without runs. data: the panel without a base, None for the default one.
    """

    first: str
    last: str
    is_test: bool
    base: runs.RunFiles | None
    data: str | None

    def dates(self, run: runs.RunFiles | None) -> tuple[str | None, str | None]:
        """Start and end for a run, or for a strategy (None); (None, None) for its own test period."""
        splits = None if self.base is None else cached.config(self.base).splits
        has_base_splits = run is None or cached.config(run).splits == splits
        return (None, None) if self.is_test and has_base_splits and self.data is None else (self.first, self.last)

    def is_look_recorded(self, run: runs.RunFiles) -> bool:
        """True if the look at this period with the champion of a run is recorded already."""
        return self.dates(run)[0] is None and runs.is_test_look_recorded(run)


def _choose_period(champions: Sequence[runs.RunFiles]) -> Period:
    """Draw the choice of prices and dates."""
    base = champions[0] if champions else None
    columns = st.columns([2, 1, 1, 2], vertical_alignment="bottom")
    default = RunConfig()
    if base is None:
        panels = {manifest.name: manifest for manifest in cached.catalogue() if not manifest.fault}
        default_to("prices", next(iter(panels)), panels)
        name = columns[0].selectbox("Prices", list(panels), index=None, key="prices", bind=BOUND)
        name = name or next(iter(panels))
        data = None if name == default.data.name else name
        test = default.splits.test if data is None else (panels[name].start[:10], panels[name].end[:10])
    else:
        data = None
        config = cached.config(base)
        columns[0].text_input("Prices", config.data.name, disabled=True, help="Prices and rules of the first run.")
        test = config.splits.test
    for key, day in zip(("from", "to"), test, strict=True):
        follow_default(key, tuple(test), date.fromisoformat(day))
    first = columns[1].date_input("From", date.fromisoformat(test[0]), MIN_DATE, key="from", bind=BOUND).isoformat()
    last = columns[2].date_input("To", date.fromisoformat(test[1]), MIN_DATE, key="to", bind=BOUND).isoformat()
    in_sample = [run.name for run in champions if first < cached.config(run).splits.test[0]]
    if in_sample:
        columns[3].warning(
            f"In sample: {theme.escape_markdown(', '.join(in_sample))} was trained or selected on part of this period.",
            icon=":material/warning:",
        )
    return Period(first, last, (first, last) == tuple(test), base, data)


def _confirm_new_looks(champions: list[runs.RunFiles], period: Period) -> bool:
    """Whether every look at the period is recorded or confirmed; draws the confirmation if not."""
    confirmed_looks = st.session_state.setdefault("compare: confirmed", set())
    new_looks = {(run, *period.dates(run)): run for run in champions if not period.is_look_recorded(run)}
    unconfirmed_looks = {key: run for key, run in new_looks.items() if key not in confirmed_looks}
    if not unconfirmed_looks:
        return True
    names = ", ".join(theme.escape_markdown(run.name) for run in unconfirmed_looks.values())
    st.info(
        f"A backtest of {names} in this period is a new look at it and is recorded once. The promotion rules become "
        "stricter with every look.",
        icon=":material/visibility:",
    )
    if not st.button("Record the look and continue", type="primary", key="compare: look"):
        return False
    confirmed_looks.update(unconfirmed_looks)
    st.rerun()


def _decisions(champions: list[runs.RunFiles], strategies: list[str], period: Period) -> dict[str, DecisionTable]:
    """Decisions by name, with a progress bar; errors are shown and their strategies omitted."""
    decisions: dict[str, DecisionTable] = {}
    progress_bar = st.empty()
    count = len(champions) + len(strategies)

    def add(name: str, compute: Callable[[], DecisionTable]) -> None:
        progress_bar.progress(len(decisions) / count, f"Computing {theme.escape_markdown(display_name(name))}")
        with error_messages(prefix=f"{name}: "):
            decisions[name] = compute()

    for run in champions:
        dates = period.dates(run)
        is_recorded = period.is_look_recorded(run)
        add(run.name, partial(cached.decisions, run, *dates, None, None, is_recorded))
    for name in strategies:
        add(name, partial(cached.decisions, name, *period.dates(None), period.base, period.data, True))
    progress_bar.empty()
    return decisions


def _looks_note(champions: Sequence[runs.RunFiles], period: Period) -> str:
    """Of how many looks the figures on test may be the best; empty for other periods."""
    reports = [cached.report(run) for run in champions if period.is_test and run.has(runs.REPORT)]
    notes = [
        looks for report in sorted(reports, key=lambda report: -report.looks_so_far) if (looks := best_of_looks(report))
    ]
    return f" On test, {notes[0]} at these bars: tables of test figures do not sort." if notes else ""


def _show_verdicts(champions: Sequence[runs.RunFiles]) -> None:
    """Draw the promotion rules of each run with a verdict."""
    if not champions:
        return
    st.header("Promotion rules", help="The rules that a champion must pass before it may trade.")
    for run in champions:
        name = theme.escape_markdown(run.name)
        verdict = cached.verdict(run)
        if verdict is None:
            st.caption(f"{name}: not evaluated yet.")
            continue
        paragraph = " ".join(cached.paragraph_of(run, verdict))
        st.markdown(f"{name}: {theme.escape_markdown(paragraph)}")
        outcome = "promoted" if verdict.promoted else "not promoted"
        with st.expander(f"{name}: {outcome}", expanded=len(champions) == 1):
            show_rules(run, verdict)


def _show_comparison(decisions: Mapping[str, DecisionTable], styles: Mapping[str, Style], looks_note: str) -> None:
    """Draw the slider of the cost and the views that depend on it, as a fragment of the page.

    looks_note: sentence on the looks at the period.
    """
    environment = next(iter(decisions.values())).inputs.config.environment
    own = environment.cost_bps
    follow_default("cost", own, own)
    cost = st.slider(
        "Transaction cost, basis points",
        0.0,
        max(MAX_COST, own),
        own,
        1.0,
        help="Applied to the decisions made under the cost of the run, the initial value.",
        key="cost",
        bind=BOUND,
    )
    curves = comparison.account_curves(decisions, cost)
    alt = "Return, risk, ratios, turnover and costs of each strategy under the chosen transaction cost."
    show_metrics(comparison.metrics_table(curves), METRICS, alt=alt)
    period = _period(curves)
    st.caption(f"Period: {theme.escape_markdown(period)}.{theme.escape_markdown(looks_note)}")
    view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="view", bind=BOUND)
    if view in ("Equity", "Drawdown", "Rolling Sharpe"):
        _show_lines(view, curves, styles, period)
    elif view == "Against the benchmark":
        _show_benchmark(curves, styles, period)
    elif view == "Turnover and costs":
        results = [comparison.backtest_of(name, recorded, cost) for name, recorded in decisions.items()]
        by_name = {result.name: result for result in results}
        figure = figures.turnover(results, styles)
        show_figure(figure, f"turnover, {period}", alt="Monthly turnover.", height=320)
        show_figure(charts.costs_figure(by_name, styles), f"costs, {period}", alt="Cumulative costs.", height=320)
    elif view == "Trades":
        _show_trades(decisions, cost)
    else:
        name = st.selectbox("Strategy", list(decisions), format_func=display_name, key="of", bind=BOUND)
        _show_strategy(view, name, decisions[name], curves[name], cost)
    _show_exports(decisions, cost, period)


def _show_strategy(view: str, name: str, decisions: DecisionTable, curve: Curve, cost: float) -> None:
    """Draw a view of one strategy: monthly returns, profit or weights."""
    period = _period({name: curve})
    if view == "Monthly returns":
        figure = figures.monthly_returns_heatmap(curve.times, curve.equity)
        alt = f"Return of {display_name(name)} by month and year, in percent."
        show_figure(figure, f"monthly returns of {name}, {period}", alt=alt, height=60 + 30 * len(figure.data[0].y))
    elif view == "Profit by asset":
        result = comparison.backtest_of(name, decisions, cost)
        figure = profit_figure(comparison.profit_of(result, decisions, cost))
        alt = f"Profit of {display_name(name)} by asset, before costs."
        show_figure(figure, f"profit of {name} by asset, {period}", alt=alt, height=None)
        st.caption(
            f"{theme.escape_markdown(period)}, before costs: the change in value of a holding with its dividends, less "
            "what was paid for it."
        )
    else:
        result = comparison.backtest_of(name, decisions, cost)
        figure = charts.weights_figure(result)
        alt = f"Weights of {display_name(name)} over time."
        show_figure(figure, f"weights of {name}, {period}", alt=alt, height=460)


def _show_lines(view: str, curves: Mapping[str, Curve], styles: Mapping[str, Style], period: str) -> None:
    if view == "Drawdown":
        figure = charts.drawdown_figure(curves, styles)
        show_figure(figure, f"drawdown, {period}", alt="Drawdown of each strategy.", height=460)
        _show_drawdowns(curves)
        return
    if view == "Rolling Sharpe":
        figure = charts.rolling_sharpe_figure(curves, styles)
        show_figure(figure, f"rolling Sharpe ratio, {period}", alt="Rolling Sharpe ratio of each strategy.", height=460)
        return
    first = next(iter(curves))
    label = f"Bootstrap band of {display_name(first)}, confidence intervals of all"
    with_intervals = st.toggle(label, help=definition("interval"), key="intervals", bind=BOUND)
    band = cached.bootstrap_band(curves[first].equity) if with_intervals else None
    figure = charts.growth_figure(curves, band, styles)
    show_figure(figure, f"equity, {period}", alt="Growth of 1 of each strategy.", height=460)
    if with_intervals:
        _show_intervals(curves)


def _period(curves: Mapping[str, Curve]) -> str:
    """First and last day of the curves. The curves may differ by a bar."""
    days = [str(curve.times[i].astype("datetime64[D]")) for curve in curves.values() for i in (0, -1)]
    return f"{min(days)} to {max(days)}"


def _show_drawdowns(curves: Mapping[str, Curve]) -> None:
    name = st.selectbox("Deepest drawdowns of", list(curves), format_func=display_name, key="of", bind=BOUND)
    column = st.column_config
    table = pd.DataFrame(map(dataclasses.asdict, drawdowns(curves[name].times, curves[name].equity)))
    if table.empty:
        st.caption("No drawdown.")
        return
    columns = {
        "peak": column.TextColumn("Peak"),
        "trough": column.TextColumn("Trough"),
        "recovered": column.TextColumn("Recovered", help="Empty: not yet."),
        "depth": column.NumberColumn("Depth", format="percent"),
        "bars": column.NumberColumn("Bars", format="localized", help="From the peak to the recovery or the end."),
    }
    show_table(table, columns, "compare: drawdowns", alt=f"The deepest drawdowns of {display_name(name)}.")


def _show_intervals(curves: Mapping[str, Curve]) -> None:
    """Draw metrics with their intervals, as a table that does not sort."""
    metrics = [METRIC_BY_NAME[name] for name in ("sharpe", "annual_return", "max_drawdown")]
    rows = [
        {
            "Strategy": display_name(str(row["strategy"])),
            **{
                metric.label: "{} ({} to {})".format(
                    *(metric_text(metric, row[f"{metric.name}_{end}"]) for end in ("value", "low", "high"))
                )
                for metric in metrics
            },
        }
        for row in comparison.intervals_table(curves, seed=0).to_dict("records")
    ]
    if rows:
        show_static_table(pd.DataFrame(rows), alt="Bootstrap confidence intervals of each strategy.")


def _show_trades(decisions: Mapping[str, DecisionTable], cost: float) -> None:
    """Draw the trades of one strategy or of all, latest first."""
    options = [ALL, *decisions] if len(decisions) > 1 else list(decisions)
    strategy = st.selectbox("Strategy", options, format_func=display_name, key="of", bind=BOUND)
    table = pd.concat(
        comparison.trades_of(name, comparison.backtest_of(name, decision_table, cost), decision_table, cost)
        for name, decision_table in decisions.items()
        if strategy in (ALL, name)
    ).sort_values("time", kind="stable")
    table["strategy"] = table["strategy"].map(display_name)
    column = st.column_config
    config = {
        "time": column.DatetimeColumn("Time", format="YYYY-MM-DD"),
        "strategy": column.TextColumn("Strategy"),
        "symbol": column.TextColumn("Symbol"),
        "side": column.TextColumn("Side"),
        "shares": column.NumberColumn("Shares", format="%.3f"),
        "price": column.NumberColumn("Price", format="localized"),
        "value": column.NumberColumn("Value", format="localized"),
        "cost": column.NumberColumn("Cost", format="localized"),
        "profit": column.NumberColumn(
            "P/L",
            format="localized",
            help="Of what the trade closes: its price less the average entry price, times the shares, less its cost. "
            "Empty where it opens or enlarges a position.",
        ),
        "weight": column.NumberColumn("Weight after", format="percent"),
    }
    last = table.tail(MAX_TRADES).iloc[::-1]
    show_table(last, config, "compare: trades", alt="Trades, latest first.")
    note = f", showing the last {MAX_TRADES:,}" if len(table) > MAX_TRADES else ""
    st.caption(
        f"{len(table):,} trades{note}; costs {table['cost'].sum():,.0f}, realised P/L {table['profit'].sum():+,.0f}."
    )
    csv = comparison.table_csv(table)
    days = table["time"].astype(str).str[:10]
    span = f"-{days.iloc[0]}-to-{days.iloc[-1]}" if len(days) else ""
    file = f"trades-{strategy.replace(' ', '-').replace('/', '-')}{span}.csv"
    st.download_button("Download all trades as CSV", csv, file, "text/csv", key="compare: trades csv")


def _show_exports(decisions: Mapping[str, DecisionTable], cost: float, period: str) -> None:
    """Draw the download buttons; files are generated on click and named by strategies and period."""

    def tables() -> tuple[str, str]:
        return comparison.export_csv([comparison.backtest_of(name, table, cost) for name, table in decisions.items()])

    name = f"{'-'.join(decisions)}-{period.replace(' ', '-')}".replace("/", "-")
    bars_file, weights_file = (f"{kind}-{name[:MAX_FILE_NAME]}.csv" for kind in ("bars", "weights"))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button("Bars (CSV)", lambda: tables()[0], bars_file, "text/csv", icon=":material/table:")
        st.download_button("Weights (CSV)", lambda: tables()[1], weights_file, "text/csv", icon=":material/table:")
        st.caption("The camera icon above a figure saves it as PNG.")


def _show_benchmark(curves: Mapping[str, Curve], styles: Styles, period: str) -> None:
    """Draw the choice of the benchmark, statistics of active returns, their growth, and rolling alpha and beta.

    period: period of the curves, for the names of saved pictures.
    """
    names = list(curves)
    index = next((names.index(name) for name in PREFERRED if name in names), len(names) - 1)
    base = st.selectbox("Benchmark", names, index=index, format_func=display_name, key="benchmark", bind=BOUND)
    if not comparison.comparable(curves, base):
        st.info("Choose a second strategy over the same period.")
        return
    label = display_name(base)
    alt = f"Statistics of each strategy against {label}."
    show_metrics(comparison.active_table(curves, base), comparison.ACTIVE_METRICS, alt=alt)
    figure = charts.active_growth_figure(curves, base, styles)
    alt = f"Growth of each strategy relative to {label}."
    show_figure(figure, f"growth over {base}, {period}", alt=alt, height=360)
    figure = figures.rolling_alpha_beta_figure(curves, base, styles)
    alt = f"Rolling alpha and beta to {label}."
    show_figure(figure, f"rolling alpha and beta to {base}, {period}", alt=alt, height=420)
    st.caption(f"Alpha and beta over a rolling window of {ROLLING_BARS} bars.")
