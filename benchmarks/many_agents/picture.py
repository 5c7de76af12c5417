"""Picture of what agents learnt in markets with many agents beside the closed forms, from recorded results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.results import Record
from finrl_pod.market.execution_games import predatory_holdings
from finrl_pod.market.linear_impact import LinearImpact
from finrl_pod.market.optimal_execution import almgren_chriss_holdings, decay_rate
from finrl_pod.market.optimal_quotes import MakerProblem, glft_quotes

WIDTH = 300
HEIGHT = 210
MARGIN = 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b")
Points = Sequence[tuple[float, float]]


class Panel:
    """A panel at column `index`. x, y: ranges of the axes."""

    def __init__(
        self, index: int, title: str, labels: tuple[str, str], x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        self.left = index * (WIDTH + MARGIN) + MARGIN
        self.x = x
        self.y = y
        middle = self.left + WIDTH / 2
        self.elements = [
            f'<rect x="{self.left}" y="30" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
            f'<text x="{middle}" y="20" text-anchor="middle" font-weight="bold">{title}</text>',
            f'<text x="{middle}" y="{HEIGHT + 66}" text-anchor="middle">{labels[0]}</text>',
            f'<text transform="translate({self.left - 32},{30 + HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
            f"{labels[1]}</text>",
        ]
        for value in np.linspace(*x, 5):
            self.elements.append(
                f'<text x="{self.position(value, 0)[0]:.1f}" y="{HEIGHT + 46}" text-anchor="middle">{value:g}</text>'
            )
        for value in np.linspace(*y, 5):
            self.elements.append(
                f'<text x="{self.left - 4}" y="{self.position(0, value)[1] + 4:.1f}" text-anchor="end">{value:g}</text>'
            )

    def position(self, x: float, y: float) -> tuple[float, float]:
        """Position of a point in the picture."""
        x_share = (x - self.x[0]) / (self.x[1] - self.x[0])
        y_share = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + x_share * WIDTH, 30 + HEIGHT * (1 - y_share)

    def line(self, points: Points, colour: str) -> None:
        coordinates = " ".join("{:.1f},{:.1f}".format(*self.position(*p)) for p in points)
        self.elements.append(f'<polyline points="{coordinates}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def dots(self, points: Points, colour: str) -> None:
        for point in points:
            x, y = self.position(*point)
            self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')


def execution(rows: Sequence[Record]) -> Panel:
    """Holdings of seed 0 at each urgency."""
    panel = Panel(
        0, "One order: kappa T = 1.5, 3, 6", ("share of the horizon", "share of the order left"), (0, 1), (0, 1)
    )
    for colour, row in zip(
        COLOURS, (r for r in rows if r["name"].startswith("execution_") and r["seed"] == 0), strict=False
    ):
        n = len(row["holdings"]) - 1
        impact = LinearImpact(row["permanent"], row["temporary"], within_step=0.0)
        kappa = decay_rate(impact, row["volatility"], row["risk_aversion"], row["horizon"] / n)
        best = almgren_chriss_holdings(1.0, row["horizon"], n, kappa)
        panel.line([(j / n, best[j]) for j in range(n + 1)], colour)
        panel.dots([(j / n, x / row["order"]) for j, x in enumerate(row["holdings"])], colour)
    return panel


def competition(rows: Sequence[Record]) -> Panel:
    """Shares bought by five traders of whom the first must buy."""
    panel = Panel(1, "Five traders, one must buy", ("share of the horizon", "shares bought"), (0, 1), (0, 1))
    row = next(r for r in rows if r["name"] == "competition_5")
    orders = np.array([path[0] for path in row["holdings"]])
    times = np.linspace(0, 1, 101)
    for true, path, colour in zip(
        predatory_holdings(orders, 1.0, row["permanent"] / row["temporary"], times),
        row["holdings"],
        COLOURS,
        strict=True,
    ):
        n = len(path) - 1
        panel.line(list(zip(times, true, strict=True)), colour)
        panel.dots([(j / n, path[0] - x) for j, x in enumerate(path)], colour)
    return panel


def making(rows: Sequence[Record]) -> Panel:
    """Bid and ask distances by inventory at the start."""
    panel = Panel(
        2, "Market maker: bid (blue), ask (red)", ("inventory", "distance from the mid-price"), (-4, 4), (0, 1.6)
    )
    row = next(r for r in rows if r["name"] == "making_noise" and r["seed"] == 0)
    size = row["max_inventory"]
    problem = MakerProblem(
        row["intensity"], row["decay"], row["volatility"], row["horizon"], size, running_penalty=row["running_penalty"]
    )
    exact = glft_quotes(problem, row["horizon"])
    points_of: Callable[[Any], Points] = lambda side: [(q, side[q + size]) for q in range(1 - size, size)]  # noqa: E731
    for side, true, colour in ((row["bid"], exact.bid, COLOURS[0]), (row["ask"], exact.ask, COLOURS[1])):
        panel.line(points_of(true), colour)
        panel.dots(points_of(side), colour)
    return panel


def draw(rows: Sequence[Record], path: Path) -> None:
    """Draw the three panels as SVG."""
    panels = [execution(rows), competition(rows), making(rows)]
    width = 3 * (WIDTH + MARGIN) + 16
    height = HEIGHT + 80
    body = "\n".join(element for panel in panels for element in panel.elements)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )
