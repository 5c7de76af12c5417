"""Contrast of colours and text in the light and the dark theme (WCAG 2.2)."""

from __future__ import annotations

import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import accounts
from finrl_pod_app.dashboard.serving import server

PAGES = {"light": "#ffffff", "light sidebar": "#f8f8f6", "dark": "#0e1117", "dark sidebar": "#262730"}


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_pairs() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)  # the lightest grey that passes AA


@pytest.mark.parametrize("page", ["light", "dark"])
@pytest.mark.parametrize("colour", sorted({*theme.COLOURS, theme.GOOD, theme.BAD, theme.NEUTRAL}))
def test_curves_contrast_with_the_page(colour: str, page: str) -> None:
    assert contrast(colour, PAGES[page]) >= 3.0  # WCAG 1.4.11, for graphics


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_contrast_with_text_and_page(scheme: str) -> None:
    options = server.streamlit_options("127.0.0.1", 1)
    page, colour = (str(options[f"theme.{scheme}.{part}Color"]) for part in ("background", "primary"))
    assert page == PAGES[scheme]
    assert contrast(colour, "#ffffff") >= 4.5  # the text on it, WCAG 1.4.3
    assert contrast(colour, page) >= 3.0  # WCAG 1.4.11


@pytest.mark.parametrize("dark", [False, True])
def test_text_in_figures_has_contrast(dark: bool) -> None:
    layout = theme.template(dark=dark).layout
    assert contrast(layout.font.color, PAGES["dark" if dark else "light"]) >= 7.0  # WCAG 1.4.6
    assert contrast(layout.hoverlabel.font.color, layout.hoverlabel.bgcolor) >= 7.0


@pytest.mark.parametrize("dark", [False, True])
def test_text_in_heatmap_cells_has_contrast(dark: bool) -> None:
    template, page = theme.template(dark=dark), PAGES["dark" if dark else "light"]
    ink = template.data.heatmap[0].textfont.color
    for _, colour in accounts.DIVERGING:
        *parts, alpha = (float(part) for part in colour.removeprefix("rgba(").removesuffix(")").split(","))
        under = [int(page[at : at + 2], 16) for at in (1, 3, 5)]
        mixed = (round(alpha * over + (1 - alpha) * below) for over, below in zip(parts, under, strict=True))
        assert contrast("#" + "".join(f"{part:02x}" for part in mixed), ink) >= 4.5  # WCAG 1.4.3
