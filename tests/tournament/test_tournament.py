"""The tournament: it repeats, it survives a kill, it copes with agents that break, it keeps to its limits."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.evaluate.metrics import METRICS
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.settings.run import TournamentConfig, validate_tournament
from finrl_pod.tournament.progress import Progress
from finrl_pod.tournament.scoring import run_members, score_members
from finrl_pod.tournament.tournament import Tournament
from tests.tournament.tiny import SAMPLES, VALIDATION, tiny_config, tiny_market, tournament

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    threads = torch.get_num_threads()
    tournament(tiny_config(), folder).run()
    torch.set_num_threads(threads)
    return folder


def state(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "state.json").read_text())
    values.pop("train_seconds")
    return values


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run, but for the clock's."""
    files = (file for file in folder.rglob("*") if file.is_file() and "tensorboard" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name != "state.json"}


def test_the_same_seed_gives_the_same_run_to_the_last_bit(finished: Path, tmp_path: Path) -> None:
    tournament(tiny_config(), tmp_path / "again").run()
    assert state(tmp_path / "again") == state(finished)
    assert contents(tmp_path / "again") == contents(finished)


def test_another_seed_gives_another_run(finished: Path, tmp_path: Path) -> None:
    tournament(tiny_config(seed=6), tmp_path / "other").run()
    assert state(tmp_path / "other")["leaderboard"] != state(finished)["leaderboard"]


def test_contents_of_a_finished_run(finished: Path) -> None:
    values = state(finished)
    scores = [row["score"] for row in values["leaderboard"]]
    assert scores == sorted(scores, reverse=True)
    assert values["generation"] == 2
    assert values["samples"] == 3 * 2 * 2 * SAMPLES
    assert set(values["parents"]) == {f"g{g:02d}s{s:02d}" for g in range(3) for s in range(2)}
    kept = {row["id"] for row in (*values["leaderboard"], *values["current"])}
    assert {file.stem for file in (finished / "snapshots").iterdir()} == kept
    assert sorted(file.name for file in (finished / "metrics").iterdir()) == ["0000.json", "0001.json", "0002.json"]


def test_going_on_with_a_finished_run_changes_nothing(finished: Path) -> None:
    before = (finished / "state.json").read_bytes(), contents(finished)
    outcome = tournament(tiny_config(), finished, resume=True).run()
    assert ((finished / "state.json").read_bytes(), contents(finished)) == before
    assert [score.id for score in outcome.leaderboard.scores] == [row["id"] for row in state(finished)["leaderboard"]]


def test_the_saved_score_is_that_of_the_saved_agent(finished: Path) -> None:
    """Scores recomputed from disk by the float64 engine."""
    market = tiny_market()
    run = tournament(tiny_config(), finished, resume=True, market=market).run_directory
    best = state(finished)["leaderboard"][0]
    agent = run.snapshot(best["id"])
    from finrl_pod_strategies.policy import PolicyStrategy

    (family,) = PolicyStrategy([agent]).groups
    (metrics,) = score_members(family.actor, family.params, market, tiny_config().environment, *VALIDATION)
    assert metrics["sharpe"] == pytest.approx(best["score"], rel=1e-6)
    assert agent.samples == best["samples"]
    assert agent.parent == best["parent"]


@pytest.mark.slow
def test_a_kill_between_any_two_files_changes_nothing(finished: Path, tmp_path: Path) -> None:
    # 1 + 3 x 8 renames, each with a point before and one after; generation 1 has the points 18 to 33.
    points = [0, 2, 18, 27, 30, 32, 33, 50]
    child = subprocess.run(
        [sys.executable, "-m", "tests.tournament.killing", str(tmp_path), *map(str, points)],
        capture_output=True, text=True, cwd=ROOT, timeout=200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    done = [json.loads(line) for line in child.stdout.splitlines()]
    assert [run["point"] for run in done] == points
    for run in done:
        assert run["signal"] == (signal.SIGKILL if run["point"] < 50 else 0), run["point"]
        assert run["state"] == state(finished), run["point"]
        assert contents(tmp_path / f"{run['point']}").keys() >= contents(finished).keys()
        for name, data in contents(finished).items():
            assert (tmp_path / f"{run['point']}" / name).read_bytes() == data, (run["point"], name)


def broken_at(monkeypatch: pytest.MonkeyPatch, slots: set[int], generations: set[int]) -> None:
    """Agents in these slots see their weights become NaN in the middle of these generations."""
    update, calls = PPO.update, 0

    def poisoned(self: PPO, *arguments: Any) -> Any:
        nonlocal calls
        if calls // 2 in generations and calls % 2 == 0:  # two updates a generation
            for p, slot in enumerate(self.member_ids):
                if slot in slots:
                    self.parameters.flat[p] = math.nan
        calls += 1
        return update(self, *arguments)

    monkeypatch.setattr(PPO, "update", poisoned)


def test_an_agent_that_breaks_is_marked_kept_off_the_board_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_at(monkeypatch, slots={1}, generations={0})
    config = tiny_config(exploit_fraction=0.0, reinit_fraction=0.0, generations=1)
    outcome = tournament(config, tmp_path / "a").run()
    saved = state(tmp_path / "a")
    assert [row["score"] is None for row in saved["current"]] == [False, True]
    assert set(saved["current"][1]["metrics"].values()) == {None}
    assert [score.id for score in outcome.leaderboard.scores] == ["g00s00"]

    broken_at(monkeypatch, slots={1}, generations={0})
    outcome = tournament(tiny_config(exploit_fraction=0.0, reinit_fraction=0.0), tmp_path / "b").run()
    assert outcome.parents["g01s01"] == "g00s00"  # replaced by an heir of the sound one
    assert outcome.parents["g02s01"] == "g01s01"  # a slot that continues
    assert "g00s01" not in {score.id for score in outcome.leaderboard.scores}
    assert all(math.isfinite(score.score) for score in outcome.leaderboard.scores)


def test_an_agent_that_breaks_does_not_touch_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(generations=1)
    sound = tournament(config, tmp_path / "sound").run()
    broken_at(monkeypatch, slots={1}, generations={0})
    broken = tournament(config, tmp_path / "broken").run()
    of_slot_0 = next(score for score in sound.leaderboard.scores if score.slot == 0)
    assert broken.leaderboard.scores == (of_slot_0,)


def test_divergence_of_all_agents_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_at(monkeypatch, slots={0, 1}, generations={0, 1, 2})
    with pytest.raises(RunError, match=r"no validation score is a number; lower agent\.learning_rate"):
        tournament(tiny_config(), tmp_path / "run").run()


def test_a_broken_generation_comes_back_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_at(monkeypatch, slots={1}, generations={0})
    whole = tournament(tiny_config(), tmp_path / "whole").run()
    broken_at(monkeypatch, slots={1}, generations={0})
    stop_after(tournament(tiny_config(), tmp_path / "cut"), 1)
    monkeypatch.undo()
    cut = tournament(tiny_config(), tmp_path / "cut", resume=True).run()
    assert cut.leaderboard == whole.leaderboard
    assert cut.parents == whole.parents


def stop_after(run: Tournament, generations: int) -> None:
    """Ctrl-C at the first progress report of the generation after."""

    def report(progress: Progress) -> None:
        if progress.stage.startswith(f"training generation {generations + 1} "):
            raise KeyboardInterrupt

    run.report = report
    with pytest.raises(KeyboardInterrupt):
        run.run()


def test_weights_that_are_no_numbers_make_no_score() -> None:
    """Also where the loss never was one: a member may overflow on validation days alone."""
    from finrl_pod.rl.algorithms.on_policy import MeanActor
    from finrl_pod.rl.networks.policies import PolicySpec, make_policy

    market, rules = tiny_market(), tiny_config().environment
    spec = PolicySpec("equivariant", 3, 2, 4, (4, 4))
    policy, actor = make_policy(spec), MeanActor(spec)
    each = [policy.init(torch.Generator().manual_seed(i), torch.float32) for i in range(3)]
    each[1]["encode_b"] += math.nan
    params = {name: torch.stack([member[name] for member in each]) for name in each[0]}
    scores = score_members(actor, params, market, rules, *VALIDATION)
    assert set(map(math.isnan, scores[1].values())) == {True}
    assert set(scores[1]) == set(METRICS)
    ledger = run_members(actor, params, market, rules, *VALIDATION)
    assert ledger.equity[:, 1].isnan().all()
    for p in (0, 2):
        alone = {name: value[p : p + 1] for name, value in params.items()}
        assert scores[p] == pytest.approx(score_members(actor, alone, market, rules, *VALIDATION)[0], rel=1e-9)


@pytest.mark.parametrize("generations", [1, 50])
def test_the_wall_clock_limit_stops_also_inside_a_generation(generations: int, tmp_path: Path) -> None:
    config = tiny_config(generations=generations, samples_per_generation=400 * SAMPLES, seconds=0.3)
    outcome = tournament(config, tmp_path / "run").run()
    assert outcome.leaderboard.scores
    assert 0 < outcome.samples < 2 * 400 * SAMPLES
    assert outcome.train_seconds >= 0.3
    again = tournament(config, tmp_path / "run", resume=True).run()
    assert (again.leaderboard, again.samples) == (outcome.leaderboard, outcome.samples)


def test_progress_counts_up_to_the_budget(tmp_path: Path) -> None:
    seen: list[Progress] = []
    tournament(tiny_config(), tmp_path / "run", report=seen.append).run()
    assert [progress.samples for progress in seen] == [2 * SAMPLES * (i + 1) for i in range(6)]
    assert {progress.total_samples for progress in seen} == {12 * SAMPLES}
    assert seen[0].best is None
    assert seen[-1].best is not None
    assert seen[-1].seconds_left == 0
    assert all(progress.samples_per_second > 0 for progress in seen)


def test_the_learning_curves_are_in_the_log(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [json.loads((finished / "metrics" / f"000{g}.json").read_text())["rows"] for g in range(3)]
    for slot in (0, 1):
        log = EventAccumulator(str(finished / "tensorboard" / f"slot-0{slot}"))
        log.Reload()
        assert {"reward", "approx_kl", "clip_fraction", "explained_variance", "entropy", "grad_norm"} <= set(
            log.Tags()["scalars"]
        )
        read = log.Scalars("entropy")
        written = [row for generation in rows for row in generation]
        assert [event.step for event in read] == [row["samples"][slot] for row in written]
        assert [event.value for event in read] == pytest.approx([row["entropy"][slot] for row in written])
        assert len(read) == 6


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pods", 0),
        ("generations", 0),
        ("samples_per_generation", 0),
        ("leaderboard", 0),
        ("exploit_fraction", 1.5),
        ("exploit_fraction", math.nan),
        ("reinit_fraction", -0.1),
        ("perturb_factor", 0.5),
        ("perturb_factor", math.inf),
        ("resample_probability", 2.0),
        ("champion", 0),
        ("champion", 17),
        ("seconds", -1.0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"tournament\.{setting} is out of its range, got {value}"):
        validate_tournament(TournamentConfig(**{setting: value}))


def test_shares_beyond_all_pods_are_refused() -> None:
    validate_tournament(TournamentConfig(exploit_fraction=0.875, reinit_fraction=0.125))
    with pytest.raises(ConfigError, match=r"may add up to 1 at most, got 0\.9 and 0\.2"):
        validate_tournament(TournamentConfig(exploit_fraction=0.9, reinit_fraction=0.2))
