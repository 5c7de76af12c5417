"""A tiny trained run whose verdict a test can write itself, and what may befall its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from finrl_pod_app.services.training import run_tournament

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


def train(folder: Path) -> None:
    """Some seconds."""
    run_tournament(TINY, folder, device="cpu")


def judged(run: Path, **changes: Any) -> None:
    """Change the report's words, and those of the verdict with them."""
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**report, **changes}))
    if "verdict" in changes:
        verdict = json.loads((run / "verdict.json").read_text())
        rules = [{**rule, "passed": changes["verdict"]["promoted"]} for rule in verdict["rules"]]
        (run / "verdict.json").write_text(json.dumps({**verdict, **changes["verdict"], "rules": rules}))


def damage(file: Path) -> None:
    """Its last byte is another one."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    os.utime(file, ns=LATER)
