"""`finrl-pod train --market`: folders, scores, settings and refused input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.cli.main import run

SMALL = ["--envs", "16", "--steps", "320", "--json"]


def train(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["train", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "maddpg", "league"])
def test_every_algorithm_trains_traders(algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    result = train(capsys, "--market", "competition", "--algorithm", algorithm, "--out", str(out), *SMALL)
    assert len(result["holdings"]) == len(result["best_response_gain"]) == 2
    assert result["holdings"][0][0] == pytest.approx(1.0)
    assert result["holdings"][0][-1] == pytest.approx(0.0, abs=1e-6)
    assert json.loads((out / "result.json").read_text())["excess_cost"] == result["excess_cost"]
    assert result["alive"] == [True, True]
    kept = {"config.json", "result.json", "weights.safetensors", "checkpoint.json"}
    assert kept < {p.name for p in out.iterdir()}
    assert run(["train", "--market", "competition", "--out", str(out), *SMALL]) == 2


def test_makers_quotes_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--set", "market.steps=64", "--set", "max_inventory=2", "--set", "market.horizon=0.1"]
    result = train(capsys, "--market", "making", "--out", str(tmp_path / "run"), *sizes, *SMALL, "--steps", "2048")
    assert len(result["bid"]) == len(result["visited"]) == 5
    assert 0 < result["share_of_optimum"] <= 1


@pytest.mark.slow
def test_seeds_and_settings_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--market", "execution", "--set", "hidden=[8]", "--set", "risk_aversion=0.0", *SMALL, "--steps", "640"]
    results = [
        train(capsys, *common, "--seed", str(seed), "--out", str(tmp_path / str(i))) for i, seed in enumerate((1, 1, 2))
    ]
    for result in results:
        result.pop("seconds")
    assert results[0]["holdings"] == results[1]["holdings"] != results[2]["holdings"]
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    assert config["agent"]["hidden"] == [8]
    assert config["market"]["risk_aversion"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--market", "bonds"], "--market must be one of execution, competition, making, desk"),
        (["--market", "desk", "--algorithm", "sac"], "--algorithm must be one of ippo, mappo, maddpg, league"),
        (["--market", "desk", "--set", "colour=1"], "--set has no setting 'colour'"),
        (["--market", "desk", "--workers", "2"], "--workers is only valid with --env, got --market"),
        (["--market", "desk", "--resume"], "has no run to resume"),
        (["--market", "desk", "--env", "gym:CartPole-v1"], "one of a config file, --env and --market"),
        (["--market", "desk", "--steps", "0"], "--steps must be at least 1"),
        (["--market", "execution", "--set", "steps=1"], "market.steps"),
        (["--market", "desk", "--set", "hidden=5"], "agent.hidden must be a list, got 5"),
        (["--market", "desk", "--set", 'learning_rate="x"'], "agent.learning_rate must be a number, got 'x'"),
        (["--market", "desk", "--set", 'algorithm="a2c"'], "agent.algorithm must be one of 'ppo', got 'a2c'"),
        (["--market", "desk", "--set", "market.steps=2.5"], "market.steps must be a whole number, got 2.5"),
        (["--market", "desk", "--set", "lookback=5"], "agent.lookback is a setting of an encoder"),
        *(
            (["--market", "desk", "--algorithm", "maddpg", "--set", line], f"has no setting {line.split('=')[0]!r}")
            for line in ("l1_penalty=1.0", "dropout=0.5", "shared=false")
        ),
        (["--market", "desk", "--algorithm", "maddpg", "--set", 'encoder="gru"'], "agent.encoder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *arguments, "--out", "unused"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
