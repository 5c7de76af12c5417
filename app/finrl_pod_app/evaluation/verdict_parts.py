"""Parts of a run's report that the first paragraph of its verdict needs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod_app.report.edge_text import PARAGRAPH_PARTS


def paragraph_parts(folder: Path) -> dict[str, Any]:
    """`PARAGRAPH_PARTS` of the report in a run's folder, None where they or the report are missing or damaged."""
    report: dict[str, Any] = {}
    with contextlib.suppress(RunError):
        report = dict(read_json(folder / "report.json"))
    return {name: report.get(name) for name in PARAGRAPH_PARTS}
