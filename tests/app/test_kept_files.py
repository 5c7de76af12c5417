"""Runs with several parts of one's own: they keep what they need, and say early what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.report.records import make_report
from finrl_pod_app.report.verdict_text import verdict_paragraph

from finrl_pod import user_files
from finrl_pod.settings.run import FeatureConfig, MandateConfig
from tests.app.small_run import isolated_folders, run_backtest, run_tournament, small_config

PARTS = """
import numpy as np
from scaled_neighbour import scaled

class Inverse:
    lookback = 30
    def target_weights(self, window, positions):
        weights = 1 / np.diff(np.log(window.close), axis=0).std(0)
        return weights / weights.sum()

def reversal(panel):
    return scaled(panel.close)

def overwrites(panel):
    panel.close[:] = 1.0
    return panel.close
"""
MORE_PARTS = """
from pathlib import Path
import torch
from finrl_pod.rl.networks.policies import BasePolicy

TABLE = Path("import.csv").read_text()

def growth(interval):
    Path("reward.csv").read_text()
    return (interval.after / interval.before).log()

class Free:
    name, needs_volume = "free", False
    def __init__(self):
        Path("cost.csv").read_text()
    def cost(self, amount, prices, liquidity):
        return 0.0 * amount * prices
    def slope(self, amount, prices, liquidity):
        return (0.0 * prices).expand_as(amount)

class Constant(BasePolicy):
    def weights(self, generator):
        return {"actor_w": torch.zeros(1), "critic_w": torch.zeros(1)}
    def mean(self, params, features, account, tradable):
        Path("policy.csv").read_text()
        scores = features[..., 0] + params["actor_w"][:, None, :]
        if self.spec.has_cash_score:
            scores = torch.cat([scores.mean(-1, keepdim=True), scores], -1)
        return scores.unsqueeze(2).expand(*account.shape[:3], -1)
    def value(self, params, features, account, tradable):
        return params["critic_w"][:, :, None].expand(account.shape[:3])
"""
NEIGHBOUR = """
from pathlib import Path
import numpy as np

Path("neighbour.csv").read_text()

def scaled(close):
    out = np.zeros_like(close)
    out[3:] = close[:-3] / close[3:] - 1
    return out
"""
ALGORITHM = """
from dataclasses import dataclass
from typing import ClassVar

from finrl_pod.rl.algorithms.a2c import LossAlgorithm
from finrl_pod.settings.algorithm_configs import OnPolicyConfig


@dataclass(frozen=True)
class Settings(OnPolicyConfig):
    learning_rate: float = 3e-3
    gae_lambda: float = 0.95
    scale: float = 1.0


class Mine(LossAlgorithm):
    Config: ClassVar[type[OnPolicyConfig]] = Settings

    def loss(self, batch):
        log_probability, value, _ = self.evaluate(batch)
        error = (batch.returns - value).square().mean((1, 2))
        return self.settings["scale"] * error - (log_probability * batch.advantage.detach()).mean((1, 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with parts of one's own, which is the current one."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "parts.py").write_text(PARTS)
    (own / "scaled_neighbour.py").write_text(NEIGHBOUR)
    (own / "mine.py").write_text(ALGORITHM)
    (own / "more.py").write_text(MORE_PARTS)
    for name in OPENED:
        (own / name).write_text("2099-12-31,1\n")
    monkeypatch.chdir(own)
    return own


OPENED = ("import.csv", "reward.csv", "cost.csv", "policy.csv", "neighbour.csv")


def forget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the files, as if another process opened the run."""
    for path in folder.glob("*.py"):
        path.unlink()
    for name in ("_KEPT", "_FOLDERS", "_MODULES"):
        monkeypatch.setattr(user_files, name, {})
    monkeypatch.delitem(sys.modules, "scaled_neighbour", raising=False)


@pytest.mark.slow
def test_a_base_and_a_neighbour_of_ones_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated_folders(tmp_path):
        config = small_config()
        config = dataclasses.replace(
            config,
            features=FeatureConfig(("parts.py:reversal", "return_5")),
            mandate=MandateConfig(base="parts.py:Inverse"),
            environment=dataclasses.replace(config.environment, reward="more.py:growth", cost_model="more.py:Free"),
            agent=dataclasses.replace(config.agent, policy="more.py:Constant"),
        )
        document = run_tournament(config, tmp_path / "run", device="cpu")
        assert document["verdict"]["edge"]["portfolio"].endswith(".py:Inverse")
        sentences = [verdict_paragraph(make_report(document))[0], document["verdict"]["rules"][0]["sentence"]]
        assert all("its base (parts.py:Inverse, under the same trading rules" in sentence for sentence in sentences)
        warnings = document["verdict"]["statistics"]["audit_warnings"]
        for name in OPENED:  # by features, rewards, costs, policies and their neighbours, on import too
            assert len([text for text in warnings if f"{folder / name}, which may hold" in text]) == 1
        assert (tmp_path / "run" / user_files.FOLDER / "scaled_neighbour.py").read_text() == NEIGHBOUR
        before = run_backtest(tmp_path / "run")["test"]["strategies"]["champion"]
        forget(folder, monkeypatch)
        assert run_backtest(tmp_path / "run")["test"]["strategies"]["champion"] == before


@pytest.mark.slow
def test_runs_of_train_env_keep_their_files_and_settings(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    assert run(["new", "environment", "bandit", "--json"]) == 0
    target = json.loads(capsys.readouterr().out)["target"]
    command = ["train", "--env", target, "--algorithm", "mine.py:Mine", "--steps", "200", "--evaluate", "1"]
    assert run([*command, "--set", "scale=2", "--out", str(tmp_path / "run"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["env"], result["algorithm"]) == (target, "mine.py:Mine")
    agent = json.loads((tmp_path / "run" / "config.json").read_text())["agent"]
    assert (agent["learning_rate"], agent["gae_lambda"], agent["scale"]) == (3e-3, 0.95, 2.0)
    forget(folder, monkeypatch)
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "mine.py:Mine"
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('mandate.base="parts.py:Gone"', "parts.py has no Gone"),
        ('environment.reward="parts.py:gone"', "parts.py has no gone"),
        ('features.names=["parts.py:overwrites"]', "prices cannot be changed, work on a copy"),
        ('agent.policy="mine.py:Mine"', "mine.py:Mine"),
    ],
)
def test_dry_run_tries_parts_of_ones_own(
    folder: Path, tmp_path: Path, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    with isolated_folders(tmp_path):
        assert run(["init", "--preset", "quick", "sample.toml", "--json"]) == 0
        assert run(["tournament", "sample.toml", "--set", setting, "--dry-run"]) == 2
        assert message in capsys.readouterr().err
