"""Colour and line style of each strategy, and the colours of stacked areas. Loads nothing that takes time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from finrl_pod_app.report.columns import CHAMPION, champion_first


@dataclass(frozen=True)
class Style:
    """A line style. colour: #rrggbb. dash: a Plotly dash name. width: pixels."""

    colour: str
    dash: str = "solid"
    width: float = 1.6

    @property
    def dash_array(self) -> str:
        """The dash as an SVG stroke-dasharray."""
        return {"solid": "none", "dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3"}[self.dash]


SUBJECT_WIDTH = 3.0  # of the line of the strategy that a report is about
_CHAMPION = Style("#d55e00", width=SUBJECT_WIDTH)
# Lines have a contrast of at least 3:1 on the light and the dark page. Their colours differ by at least 15 in CIELAB,
# also under simulated protanopia and deuteranopia (Machado, Oliveira and Fernandes 2009), and strategies that a report
# shows at first by at least 39. Each baseline has the same style in every report and on every page.
BASELINE_STYLES = {
    "index": Style("#148acd"),
    "equal_weight": Style("#7f7f7f", width=2.2),
    "mandate_at_tilt_zero": Style("#8c00ff", "dash", 2.0),
    "equal_weight_buy_and_hold": Style("#00a05a", "dash"),
    "inverse_volatility": Style("#e600be", "dashdot"),
    "minimum_variance": Style("#a05028"),
    "mean_variance": Style("#6e46dc", "dot"),
    "hierarchical_risk_parity": Style("#785a82", "dashdot"),
    "equal_risk_contribution": Style("#aa82aa", "dot"),
    "momentum_12_1": Style("#ff505a", "dash"),
    "savings_plan": Style("#8a5652", "dashdot"),
    "random_weights": Style("#648cff", "dashdot"),
}
# The qualitative scheme "muted" of Paul Tol, safe for colour blindness, in an order in which neighbours differ most.
_AREAS = ("#44aa99", "#999933", "#aa4499", "#ddcc77", "#882255", "#88ccee", "#117733", "#332288", "#cc6677")


def report_styles(names: Iterable[str]) -> dict[str, Style]:
    """`line_styles` with a wide, solid line for the strategy that a report is about: the champion, else the first."""
    style_by_name = line_styles(names)
    if style_by_name and CHAMPION not in style_by_name:
        subject = next(iter(style_by_name))
        style_by_name[subject] = replace(style_by_name[subject], dash="solid", width=SUBJECT_WIDTH)
    return style_by_name


def line_styles(names: Iterable[str]) -> dict[str, Style]:
    """A style per name: fixed for the champion and the baselines, unused ones for others, in order.

    Styles repeat after ten others.
    """
    sorted_names = champion_first(names)
    used_styles = {BASELINE_STYLES[name] for name in sorted_names if name in BASELINE_STYLES}
    free = [style for style in BASELINE_STYLES.values() if style not in used_styles] or list(BASELINE_STYLES.values())
    other_names = [name for name in sorted_names if name != CHAMPION and name not in BASELINE_STYLES]
    other_styles = {name: free[i % len(free)] for i, name in enumerate(other_names)} | {CHAMPION: _CHAMPION}
    return {name: BASELINE_STYLES.get(name) or other_styles[name] for name in sorted_names}


def area_colours(count: int) -> list[str]:
    """`count` colours for the areas of a stack, from the bottom up; they repeat after nine."""
    return [_AREAS[i % len(_AREAS)] for i in range(count)]
