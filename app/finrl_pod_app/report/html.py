"""The page of a report: one file that opens in any browser without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from finrl_pod.files import write_text
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import figures
from finrl_pod_app.report.columns import CHAMPION, STRATEGY_COLUMNS, in_order, readable
from finrl_pod_app.report.document import to_plain, write_json
from finrl_pod_app.report.palette import Style, styles
from finrl_pod_app.report.tables import key_line, leaderboard_table, metrics_table, yearly_table

FLAWS_SHOWN = 8  # the others fold away


def write_report(out: Path, document: Mapping[str, Any], results: Mapping[str, BacktestResult]) -> Path:
    """Write report.json and report.html into `out` and return the page's path.

    document: the object of `build_document`; results: of the test split, by the same names of strategies. Raises
    RunError when the folder cannot be written; earlier reports then stay.
    """
    plain = to_plain(document)
    page = render(plain, results)
    write_json(out / "report.json", plain)
    return write_text(out / "report.html", page)


def render(document: Mapping[str, Any], results: Mapping[str, BacktestResult]) -> str:
    """The whole page as text. Equal input gives equal text."""
    from plotly.offline import get_plotlyjs

    looks = styles(document["test"]["strategies"])
    title = f"{document['data']['name']}, test {' to '.join(document['splits']['test'])}"
    parts = [
        _head(document, title),
        _section("Results on the test days", _metrics(document, looks)),
        _section("Equity", _key(looks) + _chart("equity", figures.equity_figure(results))),
        _section("Drawdown", _chart("drawdown", figures.drawdown_figure(results), "low")),
        _section("Return of each year", yearly_table(document["test"]["yearly"], looks)),
        _weights(results),
        _leaderboard(document),
        _section("Rules of the market", _list(document["rules"])),
        _section("Data and splits", _data(document)),
        _section("Provenance", _provenance(document)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_asset('style.css')}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _head(document: Mapping[str, Any], title: str) -> str:
    verdict = document.get("verdict")
    if verdict is None:
        return f"<header><h1>Backtest: {html.escape(title)}</h1></header>"
    sentence = "The champion earned its place." if verdict["promoted"] else "The champion did not earn its place."
    style = "verdict promoted" if verdict["promoted"] else "verdict"
    return (
        f'<header><p class="soft">finrl_pod: {html.escape(title)}</p>\n'
        f'<div class="{style}"><h1>{sentence}</h1>{_list(verdict["reasons"])}</div></header>'
    )


def _metrics(document: Mapping[str, Any], looks: Mapping[str, Style]) -> str:
    notes = "; ".join(f"{column.short}: {column.note}" for column in STRATEGY_COLUMNS)
    return metrics_table(document["test"]["strategies"], looks) + f'<p class="note">{html.escape(notes)}.</p>'


def _key(looks: Mapping[str, Style]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-strategy="{html.escape(name)}">'
        f"{key_line(looks[name])}{html.escape(readable(name))}</button>"
        for name in in_order(looks)
    )
    return (
        '<p class="note">Multiple of the equity at the start, on a logarithmic axis. A click on a name hides or shows '
        f'its lines.</p><div class="keys">{buttons}</div>'
    )


def _weights(results: Mapping[str, BacktestResult]) -> str:
    name = CHAMPION if CHAMPION in results else next(iter(results))
    chart = _chart("weights", figures.weights_figure(results[name]), "tall")
    note = f'<p class="note">Shares of equity held by {html.escape(readable(name))} after the fills of each day.</p>'
    return _section("Holdings over time", note + chart)


def _leaderboard(document: Mapping[str, Any]) -> str:
    rows, champion = document["leaderboard"], document.get("champion")
    if not rows or champion is None:
        return ""
    lines = []
    for member in champion["members"]:
        ancestors = champion["lineage"].get(member, [])
        lines.append(f"{member} comes from {', from '.join(ancestors)}." if ancestors else f"{member} began anew.")
    note = f"Score on the validation days. The champion {champion['id']} ({champion['algorithm']}) is the ensemble of "
    note = f'<p class="note">{html.escape(note)}{len(champion["members"])} members.</p>'
    return _section("Leaderboard", note + leaderboard_table(rows, champion["members"]) + _list(lines))


def _data(document: Mapping[str, Any]) -> str:
    data, splits = document["data"], document["splits"]
    spans = {name: " to ".join(span) for name, span in splits.items() if name != "embargo"}
    facts = {
        "data set": f"{data['name']}, {data['source']}" if data["source"] else data["name"],
        "days": f"{data['start']} to {data['end']}, {data['bars']:,} bars",
        "columns": ", ".join(data["columns"]) + (", adjusted for splits and dividends" if data["adjusted"] else ""),
        f"{len(data['symbols'])} symbols": ", ".join(data["symbols"]),
        **spans,
        "embargo": f"{splits['embargo']} bars, dropped from the end of train and of validation",
    }
    flaws = data["flaws"]
    known = "<p>Known flaws of the data:</p>" if flaws else "<p>No flaws of the data are known.</p>"
    folded = flaws[FLAWS_SHOWN:]
    more = f"<details><summary>{len(folded)} more</summary>{_list(folded)}</details>" if folded else ""
    return known + _list(flaws[:FLAWS_SHOWN]) + more + _facts(facts)


def _provenance(document: Mapping[str, Any]) -> str:
    facts = {
        "seed": str(document["seed"]),
        "config": document["config_sha256"],
        "prices": document["data"]["sha256"],
        "versions": ", ".join(f"{name} {version}" for name, version in document["versions"].items()),
    }
    if timing := document.get("timing"):
        facts["training"] = (
            f"{timing['samples']:,} samples in {timing['train_seconds']:,.0f} s "
            f"({timing['samples_per_second']:,.0f} a second), {timing['total_seconds']:,.0f} s in all"
        )
    return _facts(facts)


def _chart(name: str, figure: Any, size: str = "") -> str:
    from plotly.io import to_html

    # A name of its own instead of a random one: equal runs give equal pages.
    drawn = to_html(figure, full_html=False, include_plotlyjs=False, div_id=name, config={"responsive": True})
    return f'<div class="{f"chart {size}".strip()}">{drawn}</div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{body}</section>"


def _facts(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items()) + "</dl>"


def _list(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(
        f"<li{' class=warning' if sentence.startswith('Warning') else ''}>{html.escape(sentence)}</li>"
        for sentence in sentences
    )
    return f"<ul>{items}</ul>"


def _asset(name: str) -> str:
    return resources.files("finrl_pod_app.report").joinpath(name).read_text(encoding="utf-8")
