"""Colours, line styles, logo, the Plotly template, escaping of text, and formats of numbers and times."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from finrl_pod.display import COLOURS as COLOURS
from finrl_pod.display import DASHES as DASHES
from finrl_pod_app.report.palette import BASELINE_STYLES, Style

PRODUCT = "finrl_pod"
ThemeOption = str | int | bool | list[str] | list[int]
EXCHANGE_ZONE = ZoneInfo("America/New_York")
MISSING = "–"
FONT = "'Source Sans', 'Source Sans Pro', system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

_BASELINE_COLOURS = {style.colour for style in BASELINE_STYLES.values()}
# Colours that no baseline has come first, each with every dash.
_RUN_LINES = [
    (colour, dash)
    for shared in (False, True)
    for dash in DASHES
    for colour in COLOURS
    if (colour in _BASELINE_COLOURS) == shared
]
GOOD, BAD, NEUTRAL = "#148acd", "#d55e00", "#7f7f7f"
# The primary colour carries white text and lies on the background: both need contrast, as has every text colour.
_SCHEMES = {
    "light": {
        "primaryColor": "#0b6bcb",
        "backgroundColor": "#ffffff",
        "secondaryBackgroundColor": "#f4f6f8",
        "textColor": "#101418",
        "borderColor": "#d5d9de",
        "linkColor": "#0a5cb0",
        "codeTextColor": "#101418",
        "grayTextColor": "#4d565f",
        "greenTextColor": "#0a5a35",
        "orangeTextColor": "#8a4200",
        "redTextColor": "#a1242c",
        "blueTextColor": "#0a4f97",
        "sidebar.backgroundColor": "#f4f6f8",
    },
    "dark": {
        "primaryColor": "#1f77d0",
        "backgroundColor": "#0e1117",
        "secondaryBackgroundColor": "#1a1f27",
        "textColor": "#e8eaed",
        "borderColor": "#343a41",
        "linkColor": "#7cb7f2",
        "codeTextColor": "#e8eaed",
        "grayTextColor": "#b3bac2",
        "greenTextColor": "#5fd3a0",
        "orangeTextColor": "#f3ad6a",
        "redTextColor": "#ff9a93",
        "blueTextColor": "#8cc0f5",
        "sidebar.backgroundColor": "#141920",
    },
}


def style_of(name: str, runs: Sequence[str] = ()) -> Style:
    """The style of a strategy, by its name for baselines and by its place in `runs` for champions of runs.

    runs: names of all runs, oldest first, so that a new run changes no other style. No baseline has
    the colours of the first 16. Styles repeat after 28 names.
    """
    if (style := BASELINE_STYLES.get(name)) is not None:
        return style
    index = runs.index(name) if name in runs else sum(name.encode())
    return Style(*_RUN_LINES[index % len(_RUN_LINES)], 2.4)


# The selected option has the accent colour on a tint of it. That is too little contrast in dark: it gets
# the colour of text instead. Parts that refresh themselves would fade at every refresh, below the contrast of text.
CONTROL_CSS = """<style>
button[data-selected="true"] p, button[data-selected="true"] span, [data-testid="stSliderThumbValue"] p,
[data-testid="stTab"][aria-selected="true"] p { color: %s; }
button[data-selected="true"] p { font-weight: 600; }
[data-stale="true"] { opacity: 1 !important; transition: none !important; }
@media (min-width: 768px) { [data-testid="stMainBlockContainer"] { padding-left: 3rem; padding-right: 3rem; } }
[data-testid="stTable"] td:last-child, [data-testid="stTable"] td:last-child * { overflow-wrap: anywhere; }
[data-testid="stMetricLabel"] * { white-space: normal !important; overflow: visible !important; }
.static-table { overflow-x: auto; font-variant-numeric: tabular-nums; }
.static-table table { border-collapse: collapse; min-width: 100%%; }
.static-table :is(th, td) { padding: 6px 10px; border-bottom: 1px solid rgba(128, 128, 128, 0.3); text-align: right; }
.static-table th { font-weight: 400; }
.static-table :is(th, td):first-child { text-align: left; }
.st-key-key-figures { display: grid; grid-template-columns: repeat(7, minmax(0, 1fr)); }
@media (max-width: 1500px) { .st-key-key-figures { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
@media (max-width: 640px) { .st-key-key-figures { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (hover: none) { .js-plotly-plot .modebar { display: none; } }
.js-plotly-plot .legend .traces[style*="opacity: 0.5"] { opacity: 1 !important; }
.js-plotly-plot .legend .traces[style*="opacity: 0.5"] text { text-decoration: line-through; }
[class*="st-key-danger-"] button { background-color: #b3261e; border-color: #b3261e; }
[class*="st-key-danger-"] button:hover { background-color: #8c1d18; border-color: #8c1d18; }
</style>"""


def control_css(*, dark: bool) -> str:
    """A style element: colours of selected and of dangerous controls, margins, and long words of tables wrapped."""
    return CONTROL_CSS % _SCHEMES["dark" if dark else "light"]["textColor"]


LOGIN_CSS = """body { margin: 0; font: 15px %s; } main { max-width: 20rem; margin: 18vh auto 0; padding: 0 1rem; }
label, input, button { display: block; width: 100%%; box-sizing: border-box; font: inherit; margin-top: 0.5rem; }
input, button { padding: 0.5rem 0.75rem; border-radius: 0.5rem; border: 1px solid; }
button { border-color: transparent; color: #fff; cursor: pointer; }
"""
_LOGIN_COLOURS = """body { color-scheme: %(scheme)s; background: %(backgroundColor)s; color: %(textColor)s; }
input { background: %(secondaryBackgroundColor)s; color: %(textColor)s; border-color: %(grayTextColor)s; }
button { background: %(primaryColor)s; } [role=alert] { color: %(redTextColor)s; }
"""


def login_css() -> str:
    """Style sheet of the login page, in light and in dark."""
    light, dark = (_LOGIN_COLOURS % {**colours, "scheme": scheme} for scheme, colours in _SCHEMES.items())
    return f"{LOGIN_CSS % FONT}{light}@media (prefers-color-scheme: dark) {{ {dark} }}"


def streamlit_theme() -> dict[str, ThemeOption]:
    """Theme options of Streamlit: quiet greys and one accent, in light and in dark."""
    options: dict[str, ThemeOption] = {
        "theme.baseRadius": "0.5rem",
        "theme.baseFontSize": 15,
        "theme.headingFontSizes": ["1.75rem", "1.25rem", "1.05rem", "1rem", "1rem", "1rem"],
        "theme.headingFontWeights": [650, 620, 620, 600, 600, 600],
        "theme.metricValueFontSize": "1.5rem",
        "theme.metricValueFontWeight": 600,
        "theme.paddingTop": "0.5rem",
        "theme.paddingBottom": "3rem",
        "theme.showSidebarBorder": True,
    }
    by_scheme = {f"theme.{scheme}.{key}": value for scheme, keys in _SCHEMES.items() for key, value in keys.items()}
    return {**options, **by_scheme}


def template(*, dark: bool) -> Any:
    """The Plotly template of every figure: transparent background, light grid, legend above."""
    import plotly.graph_objects as go

    ink, line, page = ("#e8eaed", "#3a4048", "#1d2126") if dark else ("#1b1f24", "#d0d4d9", "#ffffff")
    axis = {"gridcolor": line, "linecolor": line, "zerolinecolor": line, "tickfont": {"color": ink}, "automargin": True}
    return go.layout.Template(
        data={"heatmap": [{"textfont": {"color": ink}}]},
        layout={
            "font": {"family": FONT, "size": 13, "color": ink},
            "colorway": list(COLOURS),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 12, "t": 28, "b": 36},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": page, "bordercolor": line, "font": {"color": ink, "size": 12}},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "xaxis": {**axis, "showgrid": False},
            "yaxis": {**axis, "zeroline": False},
        },
    )


def escape_html(text: object) -> str:
    """Text for figures; Plotly reads it as HTML."""
    return html.escape(str(text))


def escape_markdown(text: object) -> str:
    """Text for the Markdown of Streamlit, with every character that Markdown or HTML would interpret escaped."""
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]()<>#+-.!|$~:&" else sign for sign in str(text).replace("\n", " "))


def percent(value: float | None, digits: int = 1) -> str:
    """0.0123 -> 1.2%."""
    return _format(value, lambda number: f"{100 * number:z.{digits}f}%")


def signed_percent(value: float | None) -> str:
    """A return with its sign: 0.0123 -> +1.23%."""
    return _format(value, lambda number: f"{100 * number:+z.2f}%")


def ratio(value: float | None, digits: int = 2) -> str:
    """1.234 -> 1.23."""
    return _format(value, lambda number: f"{number:z.{digits}f}")


def money(value: float | None, digits: int = 0) -> str:
    """12345.6 -> $12,346."""
    return signed_money(value, digits).removeprefix("+")


def signed_money(value: float | None, digits: int = 0) -> str:
    """Money with its sign: 1234.5 -> +$1,234."""
    text = _format(value, lambda number: f"{number:+z,.{digits}f}")
    return text if text == MISSING else f"{text[0]}${text[1:]}"


def signed_bp(value: float | None, digits: int = 1) -> str:
    """Basis points with their sign: 5 -> +5.0 bp."""
    return _format(value, lambda number: f"{number:+z.{digits}f} bp")


def count(value: float | None) -> str:
    """1234567 -> 1,234,567."""
    return _format(value, lambda number: f"{number:,.0f}")


def exchange_time(value: datetime | None) -> str:
    """An aware time in the time zone of the exchange: 2026-11-20 16:00:00 EST."""
    return MISSING if value is None else zoned_time(value, EXCHANGE_ZONE)


def zoned_time(value: datetime, zone: ZoneInfo) -> str:
    """An aware time in a zone, named by its letters or else its offset: 2026-11-20 18:00:00 UTC-0300."""
    local = value.astimezone(zone)
    letters = local.strftime("%Z")
    return local.strftime("%Y-%m-%d %H:%M:%S %Z" if letters.isalpha() else "%Y-%m-%d %H:%M:%S UTC%z")


def age(seconds: float) -> str:
    """A rounded length of time in its largest unit: 42 s, 5 min, 3 h, 2 days."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and unit != "days"):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def duration(seconds: float | None) -> str:
    """75 -> 1 min 15 s."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def _format(value: float | None, write: Any) -> str:
    return MISSING if value is None or not math.isfinite(value) else str(write(value))


ACCENT, INK = "#1f77d0", "#76818d"
_SHAPES = (
    f'<rect width="32" height="32" rx="7" fill="{ACCENT}"/>'
    '<path d="M6 23 13 15l5 4 8-11" fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round" '
    'stroke-linejoin="round"/>'
    '<circle cx="13" cy="15" r="2.6" fill="#fff"/><circle cx="18" cy="19" r="2.6" fill="#fff"/>'
    '<circle cx="26" cy="8" r="2.6" fill="#fff"/>'
)
ICON = f'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32" viewBox="0 0 32 32">{_SHAPES}</svg>'
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="132" height="32" viewBox="0 0 132 32" role="img" '
    f'aria-label="finrl_pod">{_SHAPES}<text x="42" y="22" font-family="system-ui, sans-serif" font-size="18" '
    f'font-weight="600" fill="{INK}">finrl_pod</text></svg>'
)
