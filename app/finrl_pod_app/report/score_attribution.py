"""Why a champion trades: the features in its scores as a sentence, figures and a section of the report."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from finrl_pod.errors import count_text
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name, in_sentence, percent
from finrl_pod_app.report.palette import area_colours
from finrl_pod_app.report.records import RunReport, ScoreAttribution, ScoredFeature
from finrl_pod_app.report.sections import block, chart, note, section

DOMINANT = 0.3  # smallest share of the largest feature that a sentence calls by a fraction
SMALL = 0.05  # share below which a feature is not mentioned
NEARLY_ALL = 0.95
FRACTIONS = {
    0.9: "nine tenths",
    0.8: "four fifths",
    0.75: "three quarters",
    2 / 3: "two thirds",
    0.6: "three fifths",
    0.5: "half",
    0.4: "two fifths",
    1 / 3: "a third",
}
SHARES_LABEL = "Share of each feature in the active weights of the champion by month"
SCORES_LABEL = "Contributions of the features to the scores of the last decision, by asset"
NAMED_FEATURES = 7  # have a colour; the others are one band
NAMED_ASSETS = 24  # half with the highest, half with the lowest scores


def score_sentence(report: RunReport) -> str:
    """What an agent mostly is, such as: Three quarters of the active weights of the champion are 5-day reversal.

    Empty without scores.
    """
    attribution = report.score_attribution
    if attribution is None:
        return ""
    quantity = "active weights" if attribution.of == "active weights" else "differences between the scores"
    subject = f"the {quantity} of {in_sentence(report.subject)}"
    bar = "bar" if report.bars else "day"
    first = max(attribution.features, key=lambda feature: feature.share)
    others = [feature for feature in attribution.features if feature != first and abs(feature.share) >= SMALL]
    terms = [f"{percent(feature.share, 0)}% {characteristic(feature, bar)}" for feature in others[:2]]
    if first.share < DOMINANT:
        largest = f"{percent(first.share, 0)}% {characteristic(first, bar)}"
        return f"No feature dominates {subject}: {', '.join([largest, *terms])}."
    rest = f"; next are {' and '.join(terms)}" if terms else ""
    return f"{_fraction(first.share)} of {subject} are {characteristic(first, bar)} ({percent(first.share, 0)}%){rest}."


def _fraction(share: float) -> str:
    """A share in words, with a capital."""
    if share >= NEARLY_ALL:
        return "All" if share <= 2 - NEARLY_ALL else "More than all"
    nearest = min(FRACTIONS, key=lambda fraction: abs(fraction - share))
    return FRACTIONS[nearest].capitalize()


def characteristic(feature: ScoredFeature, bar: str = "day") -> str:
    """What an agent that prefers the high or the low values of a feature trades on, as investors call it.

    Low values of return_5 are 5-day reversal, high ones of volatility_252 high 252-day volatility. bar: name of a bar.
    """
    if feature.prefers is None:
        return "holdings and constants"
    name = re.sub(r"_(zscore|rank|sector_neutral)$", "", feature.name)
    trend = "momentum" if feature.prefers == "high" else "reversal"
    if match := re.fullmatch(r"return_(\d+)", name):
        return f"{match[1]}-{bar} {trend}"
    if match := re.fullmatch(r"momentum_(\d+)_(\d+)", name):
        months = [int(bars) // 21 for bars in match.groups()]
        return f"{months[0]}-{months[1]} {trend}" if bar == "day" else f"{match[1]}-{match[2]} {trend}"
    if name == "residual_momentum":
        return f"residual {trend}"
    if match := re.fullmatch(r"([a-z_]+)_(\d+)", name):
        return f"{feature.prefers} {match[2]}-{bar} {display_name(match[1])}"
    return f"{feature.prefers} {display_name(name)}"


def reasons(report: RunReport) -> str:
    """The section of the report; empty without scores."""
    attribution = report.score_attribution
    if attribution is None:
        return ""
    active = (
        "desired active weights, before limits and slow trading, times contributions"
        if attribution.of == "active weights"
        else "contributions, compared between assets"
    )
    words = note(
        "A score is the sum of a contribution of each feature, for a linear policy weight times feature; the scores of "
        f"an ensemble are the mean of its members. Shares are {active}, at the first decision of each month; they add "
        "up to 100%. Below 0, a feature worked against the others."
    )
    last = note(
        f"Scores at the decision of {attribution.last_date}, the highest and the lowest, with their parts. Of another "
        "day: finrl-pod orders RUN --why --date DAY."
    )
    size = "tall" if len(attribution.assets) > NAMED_ASSETS // 2 else ""
    shares = chart("score-shares", shares_figure(attribution), SHARES_LABEL, side_legend=True)
    scores = chart("scores", scores_figure(attribution), SCORES_LABEL, size, side_legend=True)
    sentence = f"<p>{html.escape(score_sentence(report))}</p>"
    return section("Why it trades", block(last, scores), lead=sentence + words + shares)


def shares_figure(attribution: ScoreAttribution) -> Any:
    """Share of each feature at each recorded decision, stacked, without a template."""
    figure = charts.empty_figure()
    columns = [[share or 0.0 for share in feature.by_date] for feature in attribution.features]
    for name, colour, values in _bands(attribution, columns):
        figure.add_bar(x=attribution.dates, y=values, name=name, marker_color=colour, hovertemplate="%{y:.0%}")
    figure.update_layout(barmode="relative", bargap=0)
    figure.update_yaxes(title=f"share of the {attribution.of}", tickformat=".0%", zeroline=True)
    return figure


def scores_figure(attribution: ScoreAttribution) -> Any:
    """Contributions to the scores of the last decision by asset, stacked, without a template."""
    figure = charts.empty_figure()
    assets = attribution.assets
    if len(assets) > NAMED_ASSETS:
        assets = (*assets[: NAMED_ASSETS // 2], *assets[-NAMED_ASSETS // 2 :])
    symbols = [html.escape(asset.symbol) for asset in assets]
    columns = [list(values) for values in zip(*(asset.contributions for asset in assets), strict=True)]
    for name, colour, values in _bands(attribution, columns):
        hover = "%{y}: %{x:+.3f}"
        figure.add_bar(x=values, y=symbols, orientation="h", name=name, marker_color=colour, hovertemplate=hover)
    figure.add_scatter(
        x=[asset.score for asset in assets],
        y=symbols,
        name="score",
        mode="markers",
        marker={"color": charts.ZERO_LINE, "symbol": "diamond", "line": {"width": 1, "color": "#ffffff"}},
        hovertemplate="%{y}: %{x:+.3f}",
    )
    figure.update_layout(barmode="relative", hovermode="closest")
    charts.set_name_axis(figure)
    figure.update_xaxes(title="score", showgrid=True, zeroline=True)
    return figure


def _bands(attribution: ScoreAttribution, columns: Sequence[Sequence[float]]) -> list[tuple[str, str, list[float]]]:
    """Name, colour and values of the features with the largest shares, and of the others together."""
    names = [html.escape(display_name(feature.name)) for feature in attribution.features]
    bands = list(zip(names, area_colours(NAMED_FEATURES), map(list, columns), strict=False))
    if other_columns := columns[NAMED_FEATURES:]:
        values = [sum(row) for row in zip(*other_columns, strict=True)]
        bands.append((count_text(len(other_columns), "other"), charts.OTHERS_COLOUR, values))
    return bands
