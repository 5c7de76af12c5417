"""The dashboard's mark as SVG: three pods on a rising line, alone as icon and with the name beside it.

Inline, because an icon by name would be fetched from another server. Both colours have a contrast of at least 3:1 on
the light and the dark page.
"""

from __future__ import annotations

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
