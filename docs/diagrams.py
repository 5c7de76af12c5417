"""Draws docs/images/pipeline.svg and docs/images/tournament.svg: python docs/diagrams.py."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
INK, LINE, FILL, ACCENT = "#1f2933", "#607d8b", "#eceff1", "#fff3e0"
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
    'font-family="system-ui, sans-serif" font-size="13">\n<title>{title}</title>\n'
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
)


def box(x: int, y: int, w: int, h: int, title: str, lines: Sequence[str], fill: str = FILL) -> str:
    """A rounded rectangle with a bold title and lines below it."""
    middle = x + w // 2
    parts = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{LINE}"/>']
    top = y + h // 2 - 8 * len(lines) + 5
    parts.append(
        f'<text x="{middle}" y="{top}" text-anchor="middle" font-weight="600" fill="{INK}">{escape(title)}</text>'
    )
    for i, line in enumerate(lines):
        parts.append(
            f'<text x="{middle}" y="{top + 17 * (i + 1)}" text-anchor="middle" font-size="11.5" fill="{INK}">'
            f"{escape(line)}</text>"
        )
    return "\n".join(parts)


def arrow(*points: tuple[int, int], label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """A line through points with a tip at the last one, and a label."""
    path = " ".join(f"{x},{y}" for x, y in points)
    line = f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#tip)"/>'
    if not label:
        return line
    text = f'<text x="{at[0]}" y="{at[1]}" text-anchor="middle" font-size="11.5" fill="{INK}">{escape(label)}</text>'
    return f"{line}\n{text}"


def picture(w: int, h: int, title: str, *parts: str) -> str:
    """The parts as one SVG document."""
    return HEAD.format(w=w, h=h, title=escape(title)) + "\n".join(parts) + "\n</svg>\n"


def pipeline() -> str:
    """From prices to orders."""
    return picture(
        920,
        300,
        "From prices to orders",
        box(20, 30, 150, 90, "Prices", ["CSV, Parquet, Yahoo,", "Alpaca, built-in", "panel [T, N]"]),
        box(205, 30, 150, 90, "Features", ["known at the close", "of the decision bar", "[T, N, F]"]),
        box(390, 30, 150, 90, "Market", ["accounts × assets", "fills at the next bar,", "every trade pays costs"]),
        box(575, 30, 150, 90, "Training", ["tournament on the", "train years, ranked on", "validation"]),
        box(760, 30, 140, 90, "Champion", ["ensemble of agents,", "saved without", "pickles"], ACCENT),
        box(760, 190, 140, 90, "Backtest", ["test years, once,", "against baselines"]),
        box(575, 190, 150, 90, "Gate", ["does it add anything?", "every look counts"], ACCENT),
        box(390, 190, 150, 90, "Registry", ["versions, hand-over,", "rollback"]),
        box(205, 190, 150, 90, "Daemon", ["write-ahead journal,", "limits, recovery"]),
        box(20, 190, 150, 90, "Orders", ["paper account, or a", "fake Alpaca server"]),
        arrow((170, 75), (203, 75)),
        arrow((355, 75), (388, 75)),
        arrow((540, 75), (573, 75)),
        arrow((725, 75), (758, 75)),
        arrow((830, 120), (830, 188)),
        arrow((760, 235), (727, 235)),
        arrow((575, 235), (542, 235), label="promoted", at=(558, 182)),
        arrow((390, 235), (357, 235)),
        arrow((205, 235), (172, 235)),
    )


def tournament() -> str:
    """One generation of a tournament, and its end."""
    pods = [
        box(30 + 110 * i, 50, 95, 60, f"pod {i + 1}", [text])
        for i, text in enumerate(("continues", "continues", "copies a leader", "new weights"))
    ]
    return picture(
        760,
        400,
        "A tournament",
        '<text x="30" y="32" font-weight="600" fill="#1f2933">Generation: all pods train as one batch</text>',
        *pods,
        box(30, 160, 425, 50, "Score on the validation years", ["Sharpe ratio, by backtest, with costs"]),
        box(30, 260, 425, 50, "Leaderboard", ["the best agents so far; a limit on agents of one root"]),
        *(arrow((78 + 110 * i, 110), (78 + 110 * i, 158)) for i in range(4)),
        arrow((242, 210), (242, 258)),
        arrow((530, 65), (457, 65)),
        box(
            530,
            50,
            200,
            90,
            "Next generation",
            ["worst pods copy leaders and", "perturb hyperparameters,", "some start again"],
        ),
        arrow((455, 285), (490, 285), (490, 95), (528, 95)),
        box(530, 190, 200, 60, "Champion", ["ensemble selected on", "validation"], ACCENT),
        arrow((455, 272), (500, 272), (500, 220), (528, 220), label="after the last", at=(560, 272)),
        box(530, 310, 200, 60, "Gate", ["one test, discounted by", "trials and looks"], ACCENT),
        arrow((630, 250), (630, 308)),
    )


PICTURES = {"pipeline.svg": pipeline, "tournament.svg": tournament}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
