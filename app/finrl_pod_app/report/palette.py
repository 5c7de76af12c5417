"""One colour and one line style for each strategy, everywhere in a report.

The colours keep a contrast of 3 to 1 on the page in light and in dark. The first eight were searched for to differ by
at least 18 in CIELAB to people without red or green cones (Machado, Oliveira and Fernandes 2009); the line styles are
a second sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finrl_pod_app.report.columns import CHAMPION, in_order


@dataclass(frozen=True)
class Style:
    """colour: #rrggbb. dash: a Plotly dash name; dashes: the same for SVG. width: pixels."""

    colour: str
    dash: str = "solid"
    width: float = 1.6

    @property
    def dashes(self) -> str:
        """stroke-dasharray of the line in SVG."""
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


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name: the champion's own, the others in turn; beyond ten others they repeat."""
    ordered = in_order(names)
    others = [name for name in ordered if name != CHAMPION]
    chosen = {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(others)}
    return {name: _CHAMPION if name == CHAMPION else chosen[name] for name in ordered}


def ramp(count: int) -> list[str]:
    """`count` colours from dark to light (cividis, made for colour blindness), for the assets of a stacked area."""
    from plotly.colors import sample_colorscale

    # The darkest tenth would drown in a dark page.
    places = [0.1 + 0.9 * i / max(count - 1, 1) for i in range(count)]
    return list(sample_colorscale("cividis", places)) if count else []
