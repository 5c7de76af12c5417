"""Bounded caches of figures: Plotly takes some 50 ms to make one, and every rerun of a page shows it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from finrl_pod_app.dashboard.pages.widgets import DEFAULT_HEIGHT, draw_figure, finish_figure, is_dark


class FigureCache:
    """The figures shown last, at most `max_entries`. All sessions share them: do not modify them."""

    def __init__(self, max_entries: int) -> None:
        self._figure = lru_cache(maxsize=max_entries)(_make_figure)

    def show(
        self,
        make: Callable[..., Any],
        contents: tuple[Hashable, ...],
        key: str,
        *,
        alt: str,
        height: int | None = DEFAULT_HEIGHT,
    ) -> None:
        """Draw make(*contents), which is called once per contents, height and scheme of colours.

        make: a function of a module, since a new function has no entries. contents: all that the figure depends on, as
        records that are equal only if what they stand for is, such as `RunFiles`. key, alt: as in `show_figure`.
        height: None if the figure has one.
        """
        draw_figure(self._figure(make, contents, is_dark(), height), key, alt=alt)


def _make_figure(make: Callable[..., Any], contents: tuple[Hashable, ...], dark: bool, height: int | None) -> Any:
    return finish_figure(make(*contents), dark=dark, height=height)


RUN_FIGURES = FigureCache(48)
# Figures of an account keep its journal in memory: some MB for a year.
PAPER_FIGURES = FigureCache(16)
