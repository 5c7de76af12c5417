"""Parts that load prices from the store: those that use its later prices look ahead, others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.evaluation.audit import AuditScope, audit_strategy

from finrl_pod.data.store import Store
from finrl_pod.evaluate.audit.lookahead import check_lookahead
from finrl_pod.types import Floats, Panel
from tests.evaluate.audit.pipelines import panel, registered_feature, sound_pipeline

LOADING = """from finrl_pod.data.store import Store
STORED = Store().load("audited")
"""
STRATEGY = """import numpy as np
class Mine:
    lookback, lag = 2, {lag}
    def target_weights(self, window, positions):
        t = int(np.searchsorted(STORED.times, window.times[-1]))
        rises = STORED.close[np.clip(t + self.lag, 0, len(STORED.times) - 1)] > STORED.close[t]
        return (1.0 + rises) / (1.0 + rises).sum()
"""


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    Store().save(panel())


@pytest.mark.slow
@pytest.mark.parametrize("in_neighbour", [False, True])
@pytest.mark.parametrize(("lag", "fails"), [(2, True), (-5, False)])
def test_strategies_that_load_later_prices_on_import_fail(
    tmp_path: Path, lag: int, fails: bool, in_neighbour: bool
) -> None:
    (tmp_path / "stored_neighbour.py").write_text(LOADING)
    head = "from stored_neighbour import STORED\n" if in_neighbour else LOADING
    (tmp_path / "own.py").write_text(head + STRATEGY.format(lag=lag))
    name = f"{tmp_path / 'own.py'}:Mine"
    findings = audit_strategy(name, "audited", AuditScope(probes=2, warm_up_bars=100)).findings
    failures = {(f.check, f.part) for f in findings if f.status == "fail"}
    assert failures == ({("look-ahead", f"strategy {name}")} if fails else set())
    assert any(f.check == "external data" and "own.py:Mine opens" in f.message for f in findings)


@pytest.mark.slow
@pytest.mark.parametrize(("lag", "fails"), [(1, True), (-1, False)])
def test_features_that_load_later_prices_fail(lag: int, fails: bool) -> None:
    def stored_close(prices: Panel) -> Floats:
        stored = Store().load("audited")
        rows = np.searchsorted(stored.times, prices.times) + lag
        return stored.close[np.clip(rows, 0, len(stored.times) - 1)]

    with registered_feature("stored_close", stored_close) as name:
        findings = check_lookahead(sound_pipeline(names=("return_1", name), strategies={}, make_env=None), 3)
    failures = [f.part for f in findings if f.status == "fail"]
    assert failures == (["feature stored_close"] if fails else [])
