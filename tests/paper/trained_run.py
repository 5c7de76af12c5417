"""A tiny training run, and helpers that change its verdict or damage its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


def train(folder: Path) -> None:
    """Train the tiny run into `folder`; takes a few seconds."""
    run_tournament(TINY, folder, device="cpu")


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
