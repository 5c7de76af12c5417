"""Definitions of statistics, formats of numbers and text, and styles of lines."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages.columns import DEFINITIONS, definition
from finrl_pod_app.report import palette
from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES

from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import METRIC_NAMES


def test_every_metric_has_a_definition() -> None:
    for name in METRIC_NAMES:
        assert definition(name).endswith(".")
    assert all(text[0].isupper() and text.endswith(".") for text in DEFINITIONS.values())
    with pytest.raises(KeyError):
        definition("unknown")


def test_number_formats() -> None:
    assert theme.percent(0.01234) == "1.2%"
    assert [theme.signed_percent(value) for value in (0.01234, -1e-9)] == ["+1.23%", "+0.00%"]
    assert theme.ratio(1.239) == "1.24"
    assert theme.money(-1234.5) == "-$1,234"
    assert theme.count(1234567) == "1,234,567"
    assert theme.duration(75) == "1 min 15 s"
    assert theme.duration(3725) == "1 h 2 min"
    assert [theme.age(s) for s in (3, 90, 300, 7300, 200_000)] == [
        "3 s",
        "2 min",
        "5 min",
        "2 h",
        "2 days",
    ]
    for write in (theme.percent, theme.ratio, theme.money, theme.count, theme.duration):
        assert write(None) == write(float("nan")) == theme.MISSING


def test_counts_have_a_singular() -> None:
    assert [count_text(count, "bar") for count in (0, 1, 2, 1234)] == ["0 bars", "1 bar", "2 bars", "1,234 bars"]


def test_exchange_time() -> None:
    assert theme.exchange_time(datetime(2026, 1, 5, 21, 0, tzinfo=UTC)) == "2026-01-05 16:00:00 EST"
    assert theme.exchange_time(datetime(2026, 7, 6, 20, 0, tzinfo=UTC)) == "2026-07-06 16:00:00 EDT"
    assert theme.exchange_time(None) == theme.MISSING


def test_styles_are_distinct_and_stable() -> None:
    names = [*BASELINES, *SEEDED_BASELINES]
    assert set(names) < set(palette.BASELINE_STYLES)
    styles = {theme.style_of(name) for name in names}
    assert len({(style.colour, style.dash) for style in styles}) == len(names)
    runs = [f"run {i}" for i in range(28)]
    champions = [theme.style_of(name, runs) for name in runs]
    assert len({(style.colour, style.dash) for style in champions}) == 28
    assert not {style.colour for style in champions[:16]} & {style.colour for style in styles}
    assert champions[:5] == [theme.style_of(name, [*runs, "a newer run"]) for name in runs[:5]]
    assert theme.style_of("equal_weight", runs) == theme.style_of("equal_weight")


def luminance(colour: str) -> float:
    """Relative luminance of sRGB (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#191817"])  # Streamlit's default pages, light and dark
def test_lines_contrast_with_the_page(page: str) -> None:
    for colour in theme.COLOURS:
        low, high = sorted((luminance(colour), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 3.0, colour


@pytest.mark.parametrize("text", ["<b>", "[a](b)", "*x*", "`y`", "$z$", ":red[x]", "a|b", "# h", "line\nline"])
def test_escape_markdown(text: str) -> None:
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark", {"html": True}).render(theme.escape_markdown(text))
    assert html == f"<p>{theme.escape_html(text).replace(chr(10), ' ')}</p>\n"


def test_template_is_transparent() -> None:
    for dark in (False, True):
        layout = theme.template(dark=dark).layout
        assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert theme.template(dark=True).layout.font.color != theme.template(dark=False).layout.font.color


def test_zoned_time_names_the_zone() -> None:
    moment = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
    assert theme.zoned_time(moment, ZoneInfo("Asia/Kolkata")) == "2026-11-21 02:30:00 IST"
    assert theme.zoned_time(moment, ZoneInfo("America/Sao_Paulo")) == "2026-11-20 18:00:00 UTC-0300"
