"""One colour and one line style for each strategy, everywhere in a report.

The colours keep a contrast of 3 to 1 on the page in light and in dark, and differ for the common kinds of colour
blindness; the line styles tell apart what colours alone may not.
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
    Style("#0a7ac2"),
    Style("#5fa8dc", "dash"),
    Style("#7f7f7f", "dot"),
    Style("#009e73"),
    Style("#b8860b", "dash"),
    Style("#b0599a"),
    Style("#8b6fd0", "dashdot"),
    Style("#96643c", "dash"),
    Style("#3f8f8f", "dot"),
    Style("#c06070", "dashdot"),
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
