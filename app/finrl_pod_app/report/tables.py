"""The tables of the report as HTML. Names from data and settings are escaped here."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from finrl_pod.evaluate.metrics import METRICS, Metric
from finrl_pod.evaluate.tearsheet import compound_return
from finrl_pod.promotion.verdict import Metrics, Rule
from finrl_pod_app.report.columns import CHAMPION, MISSING, champion_first, display_name, format_metric, number, percent
from finrl_pod_app.report.mandate_text import added_rows, usage_periods, usage_rows
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import Added, Champion, CostPoint, Costs, Drawdown, LeaderboardRow, MandateUsage
from finrl_pod_app.report.verdict_text import RULE_LABELS, rule_cells

MAX_LEADERBOARD_ROWS = 32
SAME_COST = 1e-6  # basis points
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MOMENTS = (  # key, heading, unit, digits
    ("mean", "mean", "%", 3),
    ("deviation", "std. deviation", "%", 2),
    ("skewness", "skewness", "", 2),
    ("kurtosis", "kurtosis", "", 1),
    ("value_at_risk", "5% VaR", "%", 2),
    ("expected_shortfall", "5% expected shortfall", "%", 2),
    ("best", "best", "%", 2),
    ("worst", "worst", "%", 2),
    ("positive", "positive", "% of bars", 1),
)


def metrics_table(
    strategies: Mapping[str, Metrics], styles: Mapping[str, Style], metrics: Sequence[Metric] = METRICS
) -> str:
    """One row per strategy and one column per metric, headings with their explanation."""
    heads = "".join(
        f'<th scope="col" title="{html.escape(metric.explanation)}">{html.escape(metric.label)}'
        f"<small>{html.escape(metric.unit.heading)}</small></th>"
        for metric in metrics
    )
    cells = {
        name: [format_metric(metric, values.get(metric.name)) for metric in metrics]
        for name, values in strategies.items()
    }
    return _strategy_table(heads, cells, styles)


def yearly_table(yearly: Mapping[str, Metrics], styles: Mapping[str, Style]) -> str:
    """Returns by calendar year in percent, one row per strategy."""
    years = sorted({year for returns in yearly.values() for year in returns})
    heads = "".join(f'<th scope="col">{html.escape(year)}<small>%</small></th>' for year in years)
    cells = {name: [percent(returns.get(year)) for year in years] for name, returns in yearly.items()}
    return _strategy_table(heads, cells, styles, is_wide=False)


def drawdowns_table(rows: Sequence[Drawdown]) -> str:
    """The deepest drawdowns with their dates."""
    body = [
        table_row(row.peak, [row.trough, row.recovered or "not yet", percent(row.depth), f"{row.bars:,}"])
        for row in rows
    ]
    return table(column_heads("peak", "trough", "recovered", "depth, %", "bars"), body, is_wide=False)


def monthly_table(monthly: Mapping[str, Mapping[str, float]]) -> str:
    """Returns by month in percent, one row per year with its total last. Cells are shaded by size."""
    largest = max((abs(value) for months in monthly.values() for value in months.values()), default=0.0) or 1.0
    rows = []
    for year, months in monthly.items():
        cells = "".join(_shaded_cell(months.get(str(month + 1)), largest) for month in range(len(MONTHS)))
        total = f"<td><strong>{percent(compound_return(months))}</strong></td>"
        rows.append(f'<tr><th scope="row">{html.escape(year)}</th>{cells}{total}</tr>')
    return table(column_heads("year", *MONTHS, "total"), rows)


def distribution_table(moments: Mapping[str, Metrics], styles: Mapping[str, Style]) -> str:
    """Moments and tails of the returns per bar, one row per strategy."""
    heads = "".join(f'<th scope="col">{short}<small>{unit}</small></th>' for _, short, unit, _ in MOMENTS)
    cells = {
        name: [(percent if unit else number)(values.get(key), digits) for key, _, unit, digits in MOMENTS]
        for name, values in moments.items()
    }
    return _strategy_table(heads, cells, styles)


def cost_curve_table(rows: Sequence[CostPoint], run_cost: float) -> str:
    """Performance by proportional cost. run_cost: cost of the run itself in basis points; its row is marked."""
    body = []
    for row in rows:
        is_run_cost = abs(row.cost_bps - run_cost) < SAME_COST
        cells = [percent(row.annual_return, 2), number(row.sharpe, 3), percent(row.max_drawdown, 2)]
        head = f"{row.cost_bps:g}{' (this run)' if is_run_cost else ''}"
        body.append(table_row(head, cells, is_marked=is_run_cost))
    return table(column_heads("cost, bp", "CAGR, %", "Sharpe ratio", "max drawdown, %"), body, is_wide=False)


def costs_table(costs: Mapping[str, Costs], styles: Mapping[str, Style]) -> str:
    """Costs by kind in currency, annual cost drag, interest less fees, and dividends, one row per strategy."""
    kinds = list(dict.fromkeys(kind for strategy_costs in costs.values() for kind in strategy_costs.parts))
    heads = "".join(f'<th scope="col">{html.escape(kind)}</th>' for kind in kinds)
    heads += '<th scope="col">cost drag<small>% per year</small></th>'
    heads += '<th scope="col">interest less fees</th><th scope="col">dividends</th>'
    cells = {
        name: [
            *(number(strategy_costs.parts.get(kind), 0) for kind in kinds),
            percent(strategy_costs.drag, 2),
            number(strategy_costs.carry, 0),
            number(strategy_costs.dividends, 0),
        ]
        for name, strategy_costs in costs.items()
    }
    return _strategy_table(heads, cells, styles, is_wide=False)


def gate_table(rules: Sequence[Rule]) -> str:
    """Each promotion rule with its value, limit, outcome and explanation."""
    heads = '<th scope="col">rule</th><th scope="col">value</th><th scope="col">limit</th><th scope="col">passed</th>'
    heads += '<th scope="col" class="text">explanation</th>'
    body = []
    for rule in rules:
        label, side = RULE_LABELS[rule.name]
        value, limit = rule_cells(rule)
        cells = f"<td>{value}</td><td>{side} {limit}</td>"
        cells += f'<td class="{"good" if rule.passed else "bad"}">{"yes" if rule.passed else "no"}</td>'
        cells += f'<td class="text words">{html.escape(rule.sentence)}</td>'
        body.append(f'<tr><th scope="row">{html.escape(label)}</th>{cells}</tr>')
    return table(heads, body)


def statistics_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Statistics of a verdict: name, value, and interval or explanation."""
    body = [table_row(html.escape(label), [value, html.escape(words)]) for label, value, words in rows]
    return table(column_heads("statistic", "value", "interval or meaning"), body, is_wide=False)


def leaderboard_table(rows: Sequence[LeaderboardRow], champion: Champion) -> str:
    """The best agents with their lineage and the hyperparameters in which they differ.

    Of agents that are not members only the parent is known. Members are marked unless all agents are members.
    """
    visible_rows = rows[:MAX_LEADERBOARD_ROWS]
    marks_members = any(row.id not in champion.members for row in visible_rows)
    settings = sorted({key for row in visible_rows for key in row.hyperparameters})
    varied_settings = [key for key in settings if len({row.hyperparameters.get(key) for row in visible_rows}) > 1]
    heads = ['<th scope="col">agent</th>', '<th scope="col" class="text">descends from</th>']
    heads += ['<th scope="col">generation</th>', '<th scope="col">score</th>']
    heads += [f'<th scope="col">{html.escape(display_name(key))}</th>' for key in varied_settings]
    body = []
    for row in visible_rows:
        member = marks_members and row.id in champion.members
        ancestors = champion.lineage.get(row.id) or ((row.parent,) if row.parent else ())
        cells = [
            f'<th scope="row">{html.escape(row.id)}{" (member)" if member else ""}</th>',
            f'<td class="text lineage">{html.escape(", ".join(ancestors) or MISSING)}</td>',
            f"<td>{row.generation + 1}</td>",
            f"<td>{number(row.score, 3)}</td>",
        ]
        cells += [f"<td>{_value(row.hyperparameters.get(key))}</td>" for key in varied_settings]
        body.append(f"<tr{' class=champion' if member else ''}>{''.join(cells)}</tr>")
    return table("".join(heads), body)


def mandate_usage_table(usage: Mapping[str, MandateUsage], tested_split: str) -> str:
    """How much of a mandate was used: one row per measure, one column per period. tested_split: heading of the test."""
    periods = [tested_split if name == "test" else name for name in usage_periods(usage)]
    body = [table_row(html.escape(row.label), cells, title=row.note) for row, cells in usage_rows(usage)]
    return table(column_heads("measure", *map(html.escape, periods)), body, is_wide=False)


def added_table(comparison: Added) -> str:
    """A champion against its base: one row per statistic, with its value and interval."""
    base = html.escape(display_name(comparison.base))
    level = f"{100 * comparison.level:.0f}% interval"
    rows = [table_row(html.escape(row.label), cells, title=row.note) for row, *cells in added_rows(comparison)]
    return table(column_heads("statistic", f"against {base}", level), rows, is_wide=False)


def key_line(style: Style) -> str:
    """A short sample of the line of a strategy, as SVG."""
    return (
        f'<svg class="key" viewBox="0 0 26 10" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5" '
        f'stroke="{style.colour}" stroke-width="{style.width}" stroke-dasharray="{style.dash_array}"/></svg>'
    )


def _strategy_table(
    heads: str, cells: Mapping[str, Sequence[str]], styles: Mapping[str, Style], *, is_wide: bool = True
) -> str:
    """A table with a row per strategy, headed by its line and name. cells: cells of each strategy."""
    rows = []
    for name in champion_first(cells):
        head = f'<span class="named">{key_line(styles[name])}{html.escape(display_name(name))}</span>'
        rows.append(table_row(head, cells[name], is_marked=name == CHAMPION))
    return table(f'<th scope="col">strategy<small></small></th>{heads}', rows, is_wide=is_wide)


def column_heads(*names: str) -> str:
    """Header cells of a table."""
    return "".join(f'<th scope="col">{name}</th>' for name in names)


def table_row(head: str, cells: Sequence[str], *, title: str = "", is_marked: bool = False) -> str:
    """A row with its header cell. title: text shown over the header. is_marked: highlighted, as the champion is."""
    attribute = f' title="{html.escape(title)}"' if title else ""
    values = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr{" class=champion" if is_marked else ""}><th scope="row"{attribute}>{head}</th>{values}</tr>'


def table(heads: str, rows: Sequence[str], *, is_wide: bool = True) -> str:
    """A table of header cells and rows; it scrolls on a narrow page."""
    style = ' class="wide"' if is_wide else ""
    # A region that scrolls must be reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0"><table{style}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shaded_cell(value: float | None, largest: float) -> str:
    """A cell of the monthly table: blue for gains, orange for losses, light enough for the text."""
    if value is None:
        return "<td></td>"
    colour = "20, 138, 205" if value > 0 else "213, 94, 0"
    return f'<td style="background: rgba({colour}, {0.5 * min(abs(value) / largest, 1):.2f})">{percent(value)}</td>'


def _value(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
