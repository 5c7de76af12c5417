"""The pieces that sections of a page are made of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any


def chart(name: str, figure: Any, size: str = "") -> str:
    from plotly.io import to_html

    # A name of its own instead of a random one: equal runs give equal pages.
    drawn = to_html(figure, full_html=False, include_plotlyjs=False, div_id=name, config={"responsive": True})
    return f'<div class="{f"chart {size}".strip()}">{drawn}</div>'


def section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{body}</section>"


def fact_list(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items()) + "</dl>"


def listed(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(
        f"<li{' class=warning' if sentence.startswith('Warning') else ''}>{html.escape(sentence)}</li>"
        for sentence in sentences
    )
    return f"<ul>{items}</ul>"
