"""docs/configuration.md matches the declarations of settings."""

from __future__ import annotations

from pathlib import Path

from finrl_pod_app.setup.configuration_reference import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run: python -m finrl_pod_app.setup.configuration_reference > docs/configuration.md"
    )
