"""Colour and line style of each strategy in a report.

All colours have a contrast of at least 3:1 on the light and the dark page. The first eight differ by at least 18 in
CIELAB under simulated protanopia and deuteranopia (Machado, Oliveira and Fernandes 2009); line styles are a second cue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


_CHAMPION = Style("#d55e00", width=3.0)
_OTHERS = (
    Style("#148acd"),
    Style("#614cf3", "dash"),
    Style("#7f7f7f", "dot"),
    Style("#078b4d"),
    Style("#f90149", "dash"),
    Style("#9d4c93"),
    Style("#fa0ad0", "dashdot"),
    Style("#148acd", "dot"),
    Style("#078b4d", "dashdot"),
    Style("#9d4c93", "dot"),
)


# Each baseline has the same style in every report and on every page.
BASELINES = (
    "index",
    "equal_weight_buy_and_hold",
    "equal_weight",
    "minimum_variance",
    "mean_variance",
    "hierarchical_risk_parity",
    "momentum_12_1",
    "mandate_at_tilt_zero",
    "inverse_volatility",
    "random_weights",
)
_BASELINE_STYLES = dict(zip(BASELINES, _OTHERS, strict=True))


def baseline_style(name: str) -> Style | None:
    """The style of a baseline; None for other strategies."""
    return _BASELINE_STYLES.get(name)


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style per name: those of the champion and the baselines, and the unused ones for others, in order.

    Styles repeat after ten others.
    """
    ordered = champion_first(names)
    used = {_BASELINE_STYLES[name] for name in ordered if name in _BASELINE_STYLES}
    free = [style for style in _OTHERS if style not in used] or list(_OTHERS)
    others = [name for name in ordered if name != CHAMPION and name not in _BASELINE_STYLES]
    chosen = {name: free[i % len(free)] for i, name in enumerate(others)} | {CHAMPION: _CHAMPION}
    return {name: _BASELINE_STYLES.get(name) or chosen[name] for name in ordered}


def ramp(count: int) -> list[str]:
    """`count` colours from dark to light (cividis, safe for colour blindness), for the assets of a stacked area."""
    from plotly.colors import sample_colorscale

    # The darkest tenth is not visible on a dark page.
    places = [0.1 + 0.9 * i / max(count - 1, 1) for i in range(count)]
    return list(sample_colorscale("cividis", places)) if count else []
