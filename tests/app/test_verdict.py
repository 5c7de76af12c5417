"""The verdict as it is kept: written once, read by `promote`, and never changed by a later look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from finrl_pod_app.services.verdict import Judged, read_verdict, verdict, write_verdict

from finrl_pod.errors import RunError
from finrl_pod.promotion.gate import judge
from tests.promotion.test_gate import GATE, evidence


@pytest.fixture(scope="module")
def judged() -> Judged:
    return verdict(evidence(), GATE)


def test_it_says_what_the_gate_says(judged: Judged) -> None:
    judgement = judge(evidence(), GATE)
    assert judged.promoted == judgement.promoted
    assert judged.reasons == tuple(rule.sentence for rule in judgement.rules)
    refused = verdict(evidence(faults=("it sees the future.",)), GATE)
    assert refused.reasons == ("the audit finds a fault: it sees the future.",)  # not what it does meet
    assert [rule["name"] for rule in judged.rules] == [rule.name for rule in judgement.rules]
    assert judged.trials == {"raw": 40, "clustered": 6, "runs": 2}
    assert judged.looks == 1


def test_it_comes_back_from_disk_as_it_was(judged: Judged, tmp_path: Path) -> None:
    write_verdict(tmp_path, judged)
    assert read_verdict(tmp_path).plain() == judged.plain()
    assert json.loads((tmp_path / "verdict.json").read_text()) == judged.plain()


def test_what_is_no_verdict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no verdict"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text('{"promoted": true}')
    with pytest.raises(RunError, match="verdict is damaged"):
        read_verdict(tmp_path)
