"""Stages of a training: their order, and a share of the run that never falls."""

from __future__ import annotations

import pytest
from finrl_pod_app.dashboard.queries.training import STAGES, position

from finrl_pod.tournament.progress import Progress


def progress(stage: str, samples: int, total: int = 100) -> Progress:
    return Progress(stage, samples, total, samples_per_second=0.0, best=None, seconds_left=None)


@pytest.mark.parametrize(
    ("text", "samples", "label"),
    [
        ("", 0, "Prices and features"),
        ("reading prices and features", 0, "Prices and features"),
        ("training generation 1 of 3", 0, "Compiling kernels"),
        ("training generation 1 of 3", 10, "Training"),
        ("validating the champion and the baselines", 100, "Validating"),
        ("auditing the champion: look-ahead", 100, "Auditing"),
        ("testing the champion and the baselines", 100, "Testing"),
        ("writing the report", 100, "Report"),
        ("something new", 10, "Training"),
    ],
)
def test_stage_of_a_progress_text(text: str, samples: int, label: str) -> None:
    assert STAGES[position(progress(text, samples)).stage].label == label


def test_share_never_falls() -> None:
    texts = ["reading", "training", "validating", "auditing", "testing", "writing"]
    steps = [("training", samples) for samples in (0, 1, 50, 100)]
    steps = [(texts[0], 0), *steps, *((text, 100) for text in texts[2:])]
    shares = [position(progress(text, n)).share for text, n in steps]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[4] == pytest.approx(0.75)
    assert position(progress("training", 900, total=0)).share < 1.0
