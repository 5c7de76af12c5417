"""The tables of a report as HTML. Every name from data or settings is escaped here."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from finrl_pod_app.report.columns import CHAMPION, MISSING, STRATEGY_COLUMNS, in_order, readable, show
from finrl_pod_app.report.palette import Style

MOST_ROWS = 32  # of the leaderboard


def metrics_table(strategies: Mapping[str, Mapping[str, float | None]], looks: Mapping[str, Style]) -> str:
    """Strategies down, metrics across, numbers to the right with their units."""
    heads = "".join(
        f'<th scope="col" title="{html.escape(column.note)}">{html.escape(column.short)}'
        f"<small>{html.escape(column.unit)}</small></th>"
        for column in STRATEGY_COLUMNS
    )
    rows = [
        _strategy_row(name, looks, [show(column, strategies[name].get(column.key)) for column in STRATEGY_COLUMNS])
        for name in in_order(strategies)
    ]
    return _table(f'<th scope="col">strategy<small></small></th>{heads}', rows)


def yearly_table(yearly: Mapping[str, Mapping[str, float | None]], looks: Mapping[str, Style]) -> str:
    """Strategies down, calendar years across, returns in percent."""
    years = sorted({year for returns in yearly.values() for year in returns})
    heads = "".join(f'<th scope="col">{html.escape(year)}<small>%</small></th>' for year in years)
    rows = [
        _strategy_row(name, looks, [_percent(yearly[name].get(year)) for year in years]) for name in in_order(yearly)
    ]
    return _table(f'<th scope="col">strategy<small></small></th>{heads}', rows, wide=False)


def leaderboard_table(rows: Sequence[Mapping[str, Any]], members: Sequence[str]) -> str:
    """The best agents with their parents, and the settings in which they differ."""
    shown = rows[:MOST_ROWS]
    settings = sorted({key for row in shown for key in row["hyperparameters"]})
    varied = [key for key in settings if len({row["hyperparameters"].get(key) for row in shown}) > 1]
    heads = ['<th scope="col">agent</th>', '<th scope="col" class="text">parent</th>']
    heads += ['<th scope="col">generation</th>', '<th scope="col">score</th>']
    heads += [f'<th scope="col">{html.escape(readable(key))}</th>' for key in varied]
    body = []
    for row in shown:
        member = row["id"] in members
        cells = [
            f'<th scope="row">{html.escape(row["id"])}{" (member)" if member else ""}</th>',
            f'<td class="text">{html.escape(row["parent"] or MISSING)}</td>',
            f"<td>{row['generation']}</td>",
            f"<td>{MISSING if row['score'] is None else format(row['score'], '.3f')}</td>",
        ]
        cells += [f"<td>{_number(row['hyperparameters'].get(key))}</td>" for key in varied]
        body.append(f"<tr{' class=champion' if member else ''}>{''.join(cells)}</tr>")
    return _table("".join(heads), body)


def key_line(look: Style) -> str:
    """A short line as a strategy is drawn."""
    return (
        f'<svg class="key" viewBox="0 0 26 10" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5" '
        f'stroke="{look.colour}" stroke-width="{look.width}" stroke-dasharray="{look.dashes}"/></svg>'
    )


def _strategy_row(name: str, looks: Mapping[str, Style], cells: Sequence[str]) -> str:
    head = f'<th scope="row"><span class="named">{key_line(looks[name])}{html.escape(readable(name))}</span></th>'
    style = " class=champion" if name == CHAMPION else ""
    return f"<tr{style}>{head}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(heads: str, rows: Sequence[str], *, wide: bool = True) -> str:
    style = ' class="wide"' if wide else ""
    # A region that scrolls must be reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0"><table{style}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return MISSING if value is None else html.escape(str(value))
