"""The caches of figures: when a figure is made again, and that showing one does not change it."""

from __future__ import annotations

from typing import Any

import pytest
from finrl_pod_app.dashboard.pages import widgets as figure_cache
from finrl_pod_app.dashboard.pages.widgets import FigureCache
from finrl_pod_app.dashboard.queries.runs import RunFiles


def run(name: str, modified: int, root: Any) -> RunFiles:
    return RunFiles(root / name, name, (modified,))


class Page:
    """What a page would show, instead of Streamlit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.shown: list[Any] = []
        self.dark = False
        monkeypatch.setattr(figure_cache, "draw_figure", lambda figure, *_, **__: self.shown.append(figure))
        monkeypatch.setattr(figure_cache, "is_dark", lambda: self.dark)

    def line(self, run: RunFiles) -> Any:
        """A figure of a run."""
        import plotly.graph_objects as go

        self.made.append(run.name)
        return go.Figure(go.Scatter(y=[1.0, 2.0], name=run.name))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


def test_a_figure_is_made_once_per_content_height_and_scheme(page: Page, tmp_path: Any) -> None:
    cache, line = FigureCache(8), page.line
    for modified, height, dark in ((1, 300, False), (1, 300, False), (2, 300, False), (2, 400, False), (2, 400, True)):
        page.dark = dark
        cache.show(line, (run("a", modified, tmp_path),), "key", alt="alt", height=height)
    assert len(page.made) == 4
    assert page.shown[0] is page.shown[1]
    assert [figure.layout.height for figure in page.shown] == [300, 300, 300, 400, 400]
    light, dark = (figure.layout.template.layout.font.color for figure in page.shown[-2:])
    assert light != dark


def test_runs_and_figures_are_told_apart(page: Page, tmp_path: Any) -> None:
    cache, line = FigureCache(8), page.line
    for root in (tmp_path / "here", tmp_path / "there"):  # the same name and times in two folders
        cache.show(line, (run("a", 1, root),), "key", alt="alt")
    cache.show(line, (run("b", 1, tmp_path),), "key", alt="alt")
    assert page.made == ["a", "a", "b"]
    assert [figure.data[0].name for figure in page.shown] == ["a", "a", "b"]

    def other(found: RunFiles) -> Any:
        return page.line(found).update_layout(title=found.name)

    cache.show(other, (run("b", 1, tmp_path),), "key", alt="alt")
    assert page.shown[-1].layout.title.text == "b"


def test_the_cache_is_bounded(page: Page, tmp_path: Any) -> None:
    cache, line = FigureCache(2), page.line
    for name in ("a", "b", "c", "a"):
        cache.show(line, (run(name, 1, tmp_path),), "key", alt="alt")
    assert page.made == ["a", "b", "c", "a"]


def test_horizontal_bars_may_decide_about_the_height(page: Page, tmp_path: Any) -> None:
    def bars(found: RunFiles) -> Any:
        figure = page.line(found)
        return figure.add_bar(x=[1.0] * found.stamp[0], y=list(range(found.stamp[0])), orientation="h")

    cache = FigureCache(2)
    for count in (10, 30):
        cache.show(bars, (run("a", count, tmp_path),), "key", alt="alt", height=None)
    low, high = (figure.layout.height for figure in page.shown)
    assert high - low == 20 * figure_cache.BAR_HEIGHT


@pytest.mark.slow
def test_showing_a_figure_does_not_change_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import plotly.graph_objects as go
    from streamlit.testing.v1 import AppTest

    figures = [go.Figure(go.Scatter(x=[1, 2], y=[0.5, 0.7]))]
    before = figures[0].to_json()
    monkeypatch.setattr(figure_cache, "SHOWN", figures, raising=False)
    app = AppTest.from_string(
        "from finrl_pod_app.dashboard.pages import widgets\n"
        "from finrl_pod_app.dashboard.pages.widgets import draw_figure\n"
        "draw_figure(widgets.SHOWN[0], 'line', alt='A line')\n"
    ).run()
    assert not app.exception
    assert figures[0].to_json() == before
