"""Every file of `planted/` is audited as `finrl-pod audit` does: faults are found and named, honest parts are clean."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
from finrl_pod_app.evaluation.audit import AuditScope, run_checks

from finrl_pod import opened_files
from finrl_pod.evaluate.audit.data_checks import opened_file_findings
from tests.evaluate.audit import planted
from tests.evaluate.audit.pipelines import registered_feature, sound_pipeline

FOLDER = Path(planted.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "events"))
PROBES, WARM_UP = 60, 300


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_plant(name: str) -> None:
    module = importlib.import_module(f"{planted.__name__}.{name}")
    functions = getattr(module, "FEATURES", {})
    with contextlib.ExitStack() as stack:
        for feature, function in functions.items():
            stack.enter_context(registered_feature(feature, function))
        names = (*functions, "return_1")
        subject = sound_pipeline(getattr(module, "PANEL", None), names)
        if hasattr(module, "plant"):
            subject = module.plant(subject)
        opened_files.watch()
        begin = opened_files.number()
        found, _ = run_checks(subject, None, 10.0, AuditScope(PROBES, WARM_UP), lambda _: None)
    found += opened_file_findings(opened_files.opened_files(begin))
    judged = {f.check for f in found if f.status == "fail"}
    if module.EXPECTED is None:
        assert not judged, [f.message for f in found if f.status == "fail"]
        return
    check, word = module.EXPECTED
    status = getattr(module, "STATUS", "fail")
    assert any(f.check == check and f.status == status and word in f.part + f.message for f in found), found
    if check == "determinism":
        assert "look-ahead" not in judged
