"""Render the report as one self-contained HTML file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from finrl_pod.errors import count_text
from finrl_pod.evaluate.tearsheet import TEAR_SHEET_METRICS
from finrl_pod.files import write_json, write_text
from finrl_pod.prices import taken_as
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts, contribution, first_page, score_attribution, sections
from finrl_pod_app.report.builder import subject_of, write_curves
from finrl_pod_app.report.columns import diversity_of, in_sentence, metrics_of, number
from finrl_pod_app.report.mandate_text import deployed_sentence
from finrl_pod_app.report.palette import Style, report_styles
from finrl_pod_app.report.records import REPORT_FILE, RunReport
from finrl_pod_app.report.sections import bullet_list, chart, definitions, fact_list, note, section
from finrl_pod_app.report.tables import leaderboard_table, metrics_table, yearly_table
from finrl_pod_app.report.terms import explain

ADJUSTED = {False: ", adjusted for splits and dividends", True: ", assumed adjusted for splits and dividends"}
PAGE_FILE = "report.html"
FLAWS_SHOWN = 8  # the others are collapsed
SELECTED = {  # procedure by which the members of a champion were selected
    "all": "all entries of the leaderboard",
    "best": "the best of the leaderboard",
    "greedy": "added one by one while the ensemble improved",
}


def write_report(out: Path, report: RunReport, results: Mapping[str, BacktestResult]) -> Path:
    """Write report.json, report.html and curves.safetensors into `out` and return the path of the page.

    results: test results by the same strategy names. The page is headed by the name of the folder and the date (UTC).
    Raises RunError if the folder cannot be written; existing reports are then kept.
    """
    page = _page(out, report, results)
    write_json(out / REPORT_FILE, report.to_dict(), indent=2)
    write_curves(out, results)
    return write_text(out / PAGE_FILE, page)


def write_page(out: Path, report: RunReport, results: Mapping[str, BacktestResult]) -> Path:
    """Write report.html alone, of a run before its test. Arguments and errors as `write_report`."""
    return write_text(out / PAGE_FILE, _page(out, report, results))


def _page(out: Path, report: RunReport, results: Mapping[str, BacktestResult]) -> str:
    return render(report, results, out.resolve().name, f"{datetime.now(UTC):%Y-%m-%d}")


def render(report: RunReport, results: Mapping[str, BacktestResult], name: str = "", report_date: str = "") -> str:
    """The page as HTML text. Deterministic: equal input gives equal text.

    name: run name. report_date: date in ISO format.
    """
    style_by_name = report_styles(report.test.strategies)
    kind, heading = report.period_words
    period = f"{report.data.name}, {kind} {' to '.join(report.splits.test)}"
    first_parts = first_page.parts(report, results, style_by_name)
    body = [
        *first_parts,
        sections.equity(report, results, style_by_name),
        section(f"Results {heading}", _metrics(report, style_by_name)),
        _validation(report, style_by_name),
        contribution.benchmark(report, style_by_name),
        sections.ladder(report),
        sections.mandate_baselines(report),
        sections.active_return(report),
        contribution.active_parts(report),
        score_attribution.reasons(report),
        sections.gate(report),
        sections.mandate(report),
        sections.drawdowns(report),
        sections.rolling(report, results, style_by_name),
        sections.months(report),
        section(
            "Annual returns",
            note("The first and the last year may be partial.") + yearly_table(report.test.yearly, style_by_name),
        ),
        _weights(results),
        contribution.profit(report),
        sections.trading(report, results, style_by_name),
        sections.distribution(report, results, style_by_name),
        sections.cost_curve(report, style_by_name),
        contribution.capacity_section(report),
        sections.overfitting(report),
        _leaderboard(report),
        section("Market rules", bullet_list(report.rules)),
        section("Data and splits", _data(report)),
        section("Provenance", _provenance(report)),
    ]
    title = f"{name}: {period}" if name else period
    contents = sections.contents(body)
    explained_parts = explain(body)
    explained_sections = explained_parts[len(first_parts) :]
    page = "\n".join([first_page.head(report, name, period, report_date), *explained_parts[: len(first_parts)]])
    sections_html = [f'<div class="first-page">{page}</div>', explained_sections[0], contents, *explained_sections[1:]]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_asset('style.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section_html for section_html in sections_html if section_html)
        + f"\n</main>\n<script>{_asset('vendor/plotly-basic.min.js')}</script>\n"
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _metrics(report: RunReport, style_by_name: Mapping[str, Style]) -> str:
    metrics = metrics_of(report.test.strategies)
    table = metrics_table(report.test.strategies, style_by_name, metrics)
    notes = definitions({metric.label: metric.explanation for metric in metrics})
    if report.data.price_only_index and "index" in report.test.strategies:
        notes += note("The index is a price index, without dividends.")
    notes += metrics_table(report.test.strategies, style_by_name, TEAR_SHEET_METRICS)
    notes += definitions({metric.label: metric.explanation for metric in TEAR_SHEET_METRICS})
    return note(f"Period {' to '.join(report.splits.test)}, after costs.") + table + notes


def _validation(report: RunReport, style_by_name: Mapping[str, Style]) -> str:
    if report.validation is None or report.splits.validation is None:
        return ""
    words = note(
        f"Period {' to '.join(report.splits.validation)}, after costs; columns as above. The champion was "
        "selected on these bars, so its own results here are biased upwards."
    )
    return section(
        "Results on the validation period", words + metrics_table(report.validation.strategies, style_by_name)
    )


def _weights(results: Mapping[str, BacktestResult]) -> str:
    name = subject_of(results)
    label = f"Weights of {in_sentence(name)} over time, stacked"
    chart_html = chart("weights", charts.weights_figure(results[name]), label, "tall", side_legend=True)
    words = note(
        f"Weights of {in_sentence(name)} after the fills of each bar: the largest by their mean, "
        "the others together, and cash."
    )
    return section("Portfolio weights", "", lead=words + chart_html)


def _leaderboard(report: RunReport) -> str:
    champion = report.champion
    if not report.leaderboard or champion is None:
        return ""
    base = report.base_score
    count = len(champion.members)
    selection = SELECTED.get(champion.selection)
    ensemble = (
        f"The champion ({champion.algorithm}) is an ensemble of {count_text(count, 'member')}"
        f"{f', {selection},' if selection else ''}{diversity_of(champion.roots, champion.mean_correlation)}."
    )
    if deployed := deployed_sentence(report):
        ensemble = f"The champion is none of them. {deployed}"
    notes = [
        "Scores are Sharpe ratios on the validation period"
        + ("." if base is None else f"; the base, under the same trading rules, has {number(base, 3)}."),
        f"The {len(report.leaderboard)} best agents of all generations are listed.",
        ensemble,
        "The id of an agent counts generations and slots from 0: g01s02 is the third agent of generation 2.",
        "An agent continued or copied the weights of its parent; a dash: it started from scratch.",
    ]
    if report.search != "off":
        notes.append(f'Hyperparameters differ from the config because of its search = "{report.search}".')
    return section("Leaderboard", note(" ".join(notes)) + leaderboard_table(report.leaderboard, champion))


def _data(report: RunReport) -> str:
    data = report.data
    spans = {
        report.tested_split if name == "test" else name: " to ".join(span)
        for name, span in report.splits.spans().items()
    }
    if report.detectable is not None:
        spans["test"] = f"{report.detectable.start} to {report.detectable.end}, unseen"
    facts = {
        "dataset": f"{data.name}, {data.source}" if data.source else data.name,
        "period": f"{data.start} to {data.end}, {data.bars:,} bars",
        "columns": ", ".join(data.columns) + (ADJUSTED[taken_as(adjusted=True) in data.flaws] if data.adjusted else ""),
        count_text(len(data.symbols), "symbol"): ", ".join(data.symbols),
        **({"chosen": data.chosen} if data.chosen else {}),
        **{
            f"table {table.name}": (
                f"{', '.join(table.columns)}; {count_text(table.rows, 'row')}, {table.start} to {table.end}"
            )
            for table in data.tables
        },
        **spans,
        "embargo": f"{count_text(report.splits.embargo, 'bar')} dropped from the end of train and validation",
    }
    heading = "<p>Known data issues:</p>" if data.flaws else "<p>No known data issues.</p>"
    tail = data.flaws[FLAWS_SHOWN:]
    details = f"<details><summary>{len(tail)} more</summary>{bullet_list(tail)}</details>" if tail else ""
    return heading + bullet_list(data.flaws[:FLAWS_SHOWN]) + details + fact_list(facts)


def _provenance(report: RunReport) -> str:
    facts = {
        "seed": str(report.seed),
        "config, SHA-256": report.config_sha256,
        "prices, SHA-256": report.data.sha256,
        **{f"table {table.name}, SHA-256": table.sha256 for table in report.data.tables},
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    }
    if timing := report.timing:
        facts["training"] = (
            f"{timing.samples:,} samples (environment steps) in {timing.training_seconds:,.0f} s "
            f"({timing.samples_per_second:,.0f} samples/s); {timing.total_seconds:,.0f} s in all, "
            f"{timing.scoring_seconds:,.0f} s of them for scores and {timing.audit_seconds:,.0f} s for the audit"
        )
    return fact_list(facts)


def _asset(name: str) -> str:
    return resources.files("finrl_pod_app.report").joinpath(name).read_text(encoding="utf-8")
