"""Tournaments on an environment of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.training import custom_tournament
from finrl_pod_envs.custom import template
from finrl_pod_envs.custom.loader import load_env

from finrl_pod.random import key
from finrl_pod.rl.experience import episode_returns
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import load
from finrl_pod.tournament.progress import Progress
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import EpisodeScorer

SOURCE = f"{template.__file__}:Drift"
ON_POLICY = "horizon = 8\n"
OFF_POLICY = "batch_size = 8\nlearning_starts = 8\nbuffer_size = 512\n"


def agent_table(algorithm: str) -> str:
    own = OFF_POLICY if ALGORITHMS[algorithm].kind == "off-policy" else ON_POLICY
    return f'algorithm = "{algorithm}"\npolicy = "mlp"\nhidden = [8]\n{own}'


def config_file(folder: Path, *algorithms: str, source: str = SOURCE, generations: int = 2) -> Path:
    tables = [f"{'[agent]' if i == 0 else '[[cohorts]]'}\n{agent_table(name)}" for i, name in enumerate(algorithms)]
    path = folder / "mine.toml"
    path.write_text(
        f"seed = 3\nthreads = 1\n"
        f'[environment]\nkind = "custom"\nsource = "{source}"\nenvs = 4\nevaluation_episodes = 4\n'
        f"[tournament]\npods = 4\ngenerations = {generations}\nsamples_per_generation = 64\n" + "\n".join(tables)
    )
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    return tmp_path


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    code = run(["tournament", *arguments, "--json"])
    output = capsys.readouterr()
    assert code == 0, output.err
    document: dict[str, Any] = json.loads(output.out)
    return document


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("observation_size = 3", "the observation of reset() has the shape (2, 4, 2), the contract asks for (2, 4, 3)"),
        ("def observe(self, s): return super().observe(s).long()", "has the dtype torch.int64"),
        ("def observe(self, s): return super().observe(s) / 0", "the observation of environment 0 of member 0"),
        (
            "def step(self, a): o = super().step(a); return o._replace(reward=o.reward[0])",
            "reward of step 1 has the shape (4,), the contract asks for (2, 4)",
        ),
    ],
)
def test_an_environment_that_cannot_be_trained_on_is_refused_in_one_sentence(
    body: str, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = home / "wrong.py"
    source.write_text(f"from finrl_pod_envs.custom.template import Drift\n\nclass Wrong(Drift):\n    {body}\n")
    path = config_file(home, "ppo", source=f"{source}:Wrong")
    assert run(["tournament", str(path), "--out", str(home / "run")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("finrl-pod: the environment Wrong cannot be trained on: ")
    assert message in told
    assert not (home / "run").exists()


@pytest.mark.slow
def test_result_is_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(home, "ppo", source=SOURCE)
    assert run(["tournament", str(path), "--out", str(home / "run")]) == 0
    champion = json.loads((home / "run" / "result.json").read_text())["champion"]
    assert f"Champion: {champion['id']} (ppo), mean episode return" in capsys.readouterr().out


def choices(folder: Path) -> str:
    """An environment with discrete actions."""
    path = folder / "choices.py"
    path.write_text(
        "from finrl_pod_envs.custom.template import Drift\n\nclass Choices(Drift):\n    action_kind = 'discrete'\n"
        "    actions = 3\n\n    def step(self, action):\n        return super().step(action.float() - 1)\n"
    )
    return f"{path}:Choices"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name, info in ALGORITHMS.items() if not info.needs_market])
def test_every_algorithm_competes(home: Path, capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    source = choices(home) if ALGORITHMS[algorithm].actions == "discrete" else SOURCE
    file = config_file(home, algorithm, source=source)
    document = result(capsys, str(file), "--out", str(home / "run"))
    assert document["champion"]["algorithm"] == algorithm
    assert document["test"]["episodes"] == 4
    scores = [row["score"] for row in document["leaderboard"]]
    assert scores == sorted(scores, reverse=True)
    assert document["champion"]["score"] == scores[0] == document["leaderboard"][0]["metrics"]["mean_return"]
    assert json.loads((home / "run" / "result.json").read_text()) == document


def test_result_is_shown_as_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tournament", str(config_file(home, "ppo")), "--out", str(home / "run"), "--device", "cpu"]) == 0
    champion = json.loads((home / "run" / "result.json").read_text())["champion"]["id"]
    assert f"Champion: {champion} (ppo)" in capsys.readouterr().out


@pytest.mark.slow
def test_cohorts_share_a_leaderboard_and_a_resumed_run_equals_a_whole_one(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config_file(home, "ppo", "sac", generations=3)
    whole = result(capsys, str(file), "--out", str(home / "whole"))
    assert {row["slot"] % 2 for row in whole["leaderboard"]} == {0, 1}

    class Stopping(EpisodeScorer):
        scored = 0

        def __call__(self, learner: Learner) -> Any:
            Stopping.scored += 1
            if Stopping.scored == 4:  # the second cohort of the second generation
                raise KeyboardInterrupt
            return super().__call__(learner)

    with monkeypatch.context() as patch:
        patch.setattr(custom_tournament, "EpisodeScorer", Stopping)
        assert run(["tournament", str(file), "--out", str(home / "part")]) == 130
    again = result(capsys, str(file), "--out", str(home / "part"), "--resume")
    assert again["leaderboard"] == whole["leaderboard"]
    assert again["test"] == whole["test"]


def test_progress_tells_the_mean_return_not_a_sharpe_ratio(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []
    config = load(config_file(home, "ppo"))
    custom_tournament.run_custom_tournament(config, home / "run", resume=False, device="cpu", progress=seen.append)
    assert all(progress.best is None for progress in seen)
    assert seen[-1].detail.startswith("best mean return -")


@pytest.mark.slow
def test_score_is_the_mean_return_of_the_same_episodes_for_all(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A saved champion, played again on the scorer's seed, has its score."""
    file = config_file(home, "ppo")
    document = result(capsys, str(file), "--out", str(home / "run"))
    config = load(file)
    snapshot = RunDirectory.open(home / "run").snapshot(document["champion"]["id"])
    env = load_env(SOURCE, envs=4)
    learner = Learner(env, config.agent)
    learner.restore(snapshot)
    returns, _ = episode_returns(env, learner.act, key(config.seed, 0, "evaluation"))
    assert float(returns.mean()) == pytest.approx(document["champion"]["score"], rel=1e-6)
    env = load_env(SOURCE, envs=4, members=(0, 0))
    first, _ = episode_returns(env, lambda obs: torch.zeros(*obs.shape[:2], 1), 5)
    assert torch.equal(first[0], first[1])


@pytest.mark.slow
def test_run_is_bound_to_the_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = home / "own.py"
    own.write_text(Path(template.__file__).read_text())
    file = config_file(home, "ppo", source=f"{own}:Drift")
    result(capsys, str(file), "--out", str(home / "run"))
    own.write_text(own.read_text() + "\n# changed\n")
    assert run(["tournament", str(file), "--out", str(home / "run"), "--resume"]) == 2
    assert "was made on other data" in capsys.readouterr().err


def test_config_that_init_writes_is_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "new.toml"
    assert run(["init", str(file), "--env", SOURCE, "--algorithm", "sac"]) == 0
    config = load(file)
    assert (config.environment.kind, config.environment.source) == ("custom", SOURCE)
    assert (config.agent.algorithm, config.agent.policy) == ("sac", "mlp")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'environment.kind "custom" needs environment.source, such as "drift.py:Drift"'),
        (f'source = "{SOURCE}"\nevaluation_episodes = 0', "environment.evaluation_episodes is out of its range, got 0"),
        (f'source = "{SOURCE}"', 'and this environment shows one flat row; set agent.policy = "mlp"'),
        ('source = "absent.py:Mine"', "there is no file absent.py"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = home / "mine.toml"
    file.write_text(f'[environment]\nkind = "custom"\n{text}\n')
    assert run(["tournament", str(file), "--out", str(home / "run")]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not (home / "run").exists()


def test_commands_of_markets_refuse_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = config_file(home, "ppo")
    assert run(["walkforward", str(file), "--folds", "2", "--seeds", "1", "--out", str(home / "walk")]) == 2
    assert 'environment.kind "custom" has no market' in capsys.readouterr().err
