"""A tiny training run of the session, and helpers that change the verdict of a copy or damage its files."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.training.tournaments import run_tournament

from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, RunConfig, SplitConfig, TournamentConfig

TINY = RunConfig(
    splits=SplitConfig(("2015-01-02", "2017-12-29"), ("2018-01-02", "2018-12-31"), ("2019-01-02", "2019-12-31")),
    features=FeatureConfig(("return_1", "return_5")),
    environment=EnvironmentConfig(envs=8, group=4, window=20),
    agent=PPOConfig(horizon=8, minibatches=2, epochs=1),
    tournament=TournamentConfig(pods=2, generations=1, samples_per_generation=128, leaderboard=2, champion=2),
)
LATER = (2**62, 2**62)  # nanoseconds: newer than any other file


def trained_copy(factory: pytest.TempPathFactory, name: str = "one") -> Path:
    """A folder `name` with a copy of the tiny run, which the first worker that needs it trains for all of them."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    original = shared / "tiny run"
    with (shared / "tiny run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            run_tournament(TINY, shared / "unfinished run", device="cpu")
            (shared / "unfinished run").rename(original)
    return Path(shutil.copytree(original, factory.mktemp("runs") / name))


def update_report(run: Path, **changes: Any) -> None:
    """Change entries of report.json and, if the verdict changes, verdict.json to match."""
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**report, **changes}))
    if "verdict" in changes:
        verdict = json.loads((run / "verdict.json").read_text())
        rules = [{**rule, "passed": changes["verdict"]["promoted"]} for rule in verdict["rules"]]
        (run / "verdict.json").write_text(json.dumps({**verdict, **changes["verdict"], "rules": rules}))


def damage(file: Path) -> None:
    """Flip a bit in the last byte."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    os.utime(file, ns=LATER)
