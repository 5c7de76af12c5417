"""The tournament: reproducibility, recovery from kills, diverging agents, limits and settings."""

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
from finrl_pod.evaluate.metrics import METRIC_NAMES
from finrl_pod.rl.acting import metrics_of, run_members
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.settings.run import TournamentConfig, validate_tournament
from finrl_pod.tournament.assignment import AssignmentResult
from finrl_pod.tournament.event_log import EventLog, read_events
from finrl_pod.tournament.progress import Progress
from finrl_pod.tournament.tournament import Tournament
from tests.tournament.small_tournament import SAMPLES, VALIDATION, small_config, small_market, tournament

ROOT = Path(__file__).parents[2]
CLOCKED = ("state.json", "events.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    threads = torch.get_num_threads()
    tournament(small_config(), folder).run()
    torch.set_num_threads(threads)
    return folder


def state(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "state.json").read_text())
    for name in ("seconds", "scoring_seconds"):
        values.pop(name)
    return values


def file_contents(folder: Path) -> dict[str, bytes]:
    """Contents of all files that do not depend on the clock."""
    files = (file for file in folder.rglob("*") if file.is_file() and "tensorboard" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name not in CLOCKED}


def test_equal_seeds_give_bit_identical_runs(finished: Path, tmp_path: Path) -> None:
    tournament(small_config(), tmp_path / "again").run()
    assert state(tmp_path / "again") == state(finished)
    assert file_contents(tmp_path / "again") == file_contents(finished)


@pytest.mark.slow
def test_other_seed_gives_other_results(finished: Path, tmp_path: Path) -> None:
    tournament(small_config(seed=6), tmp_path / "other").run()
    assert state(tmp_path / "other")["leaderboard"] != state(finished)["leaderboard"]


def test_files_of_a_finished_run(finished: Path) -> None:
    values = state(finished)
    scores = [row["score"] for row in values["leaderboard"]]
    assert scores == sorted(scores, reverse=True)
    assert values["generation"] == 2
    assert values["samples"] == 3 * 2 * 2 * SAMPLES
    assert set(values["parents"]) == {f"g{g:02d}s{s:02d}" for g in range(3) for s in range(2)}
    kept = {row["id"] for row in (*values["leaderboard"], *values["current"])}
    assert {file.stem for file in (finished / "snapshots").iterdir()} == kept
    assert sorted(file.name for file in (finished / "metrics").iterdir()) == ["0000.json", "0001.json", "0002.json"]


def test_resuming_a_finished_run_changes_nothing(finished: Path) -> None:
    before = (finished / "state.json").read_bytes(), file_contents(finished)
    outcome = tournament(small_config(), finished, resume=True).run()
    assert ((finished / "state.json").read_bytes(), file_contents(finished)) == before
    assert [score.id for score in outcome.leaderboard.scores] == [row["id"] for row in state(finished)["leaderboard"]]


def test_saved_scores_match_the_saved_agents(finished: Path) -> None:
    """Recompute the score from the saved agent in float64."""
    market = small_market()
    run = tournament(small_config(), finished, resume=True, market=market).run_directory
    best = state(finished)["leaderboard"][0]
    agent = run.snapshot(best["id"])
    from finrl_pod_strategies.policy import PolicyStrategy

    (family,) = PolicyStrategy([agent]).groups
    ledger = run_members(
        family.actor, family.params, market, small_config().environment, *VALIDATION, small_config().mandate
    )
    (metrics,) = metrics_of(ledger, market)
    assert metrics["sharpe"] == pytest.approx(best["score"], rel=1e-6)
    assert agent.samples == best["samples"]
    assert agent.parent == best["parent"]


def test_an_agent_that_starts_late_learns_at_the_rate_of_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of six iterations are over when the last generation begins; its new agent starts at the full rate."""
    seen: list[list[float]] = []
    update = PPO.update

    def watched(self: PPO, rollout: Any, factor: Any) -> Any:
        seen.append(factor.tolist())
        return update(self, rollout, factor)

    monkeypatch.setattr(PPO, "update", watched)
    config = small_config(exploit_fraction=0.0, reinit_fraction=0.5)
    outcome = tournament(config, tmp_path / "run").run()
    (new,) = (slot for slot in (0, 1) if outcome.parents[f"g02s{slot:02d}"] is None)
    assert seen[0] == [1.0, 1.0]
    assert seen[4][new] == 1.0
    assert seen[4][1 - new] < 1.0
    assert seen[5][new] == pytest.approx(1 - 1 / 6)


@pytest.mark.slow
def test_resuming_after_a_kill_between_any_two_files_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    # 1 + 3 * 10 renames with one point before and one after each; generation 1 has points 22 to 41.
    points = [0, 2, 3, 22, 33, 38, 40, 41, 62]
    process = subprocess.run(
        [sys.executable, "-m", "tests.tournament.kill_and_resume", str(tmp_path), *map(str, points)],
        capture_output=True, text=True, cwd=ROOT, timeout=200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    done = [json.loads(line) for line in process.stdout.splitlines()]
    assert [run["point"] for run in done] == points
    for run in done:
        assert run["signal"] == (signal.SIGKILL if run["point"] < 62 else 0), run["point"]
        assert run["state"] == state(finished), run["point"]
        assert file_contents(tmp_path / f"{run['point']}").keys() >= file_contents(finished).keys()
        for name, data in file_contents(finished).items():
            assert (tmp_path / f"{run['point']}" / name).read_bytes() == data, (run["point"], name)


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["generational", "asynchronous"])
def test_a_killed_run_trains_no_finished_assignment_again(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(pods=4, batch_pods=1, generations=2, scheduler=scheduler)
    tournament(config, tmp_path / "whole").run()
    log_result = EventLog.result

    def kill_after_the_second(self: EventLog, result: AssignmentResult, node: str) -> None:
        log_result(self, result, node)
        if len([e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "result"]) == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "result", kill_after_the_second)
        with pytest.raises(Killed):
            tournament(config, tmp_path / "run").run()
    saved_results = [file.name for file in (tmp_path / "run" / "results").iterdir()]
    assert sorted(saved_results)[-1] == "0000-1.safetensors"
    tournament(config, tmp_path / "run", resume=True).run()
    events = [e["event"] for e in read_events(tmp_path / "run" / "events.jsonl")]
    assert (events.count("assigned"), events.count("result"), events.count("restarted")) == (8, 8, 0)
    assert not list((tmp_path / "run" / "results").iterdir())
    assert state(tmp_path / "run") == state(tmp_path / "whole")
    for name, data in file_contents(tmp_path / "whole").items():
        assert (tmp_path / "run" / name).read_bytes() == data, name


def inject_nan_weights(monkeypatch: pytest.MonkeyPatch, slots: set[int], generations: set[int]) -> None:
    """Set the weights of these slots to NaN in the middle of these generations."""
    update, calls = PPO.update, 0

    def update_with_nan(self: PPO, *arguments: Any) -> Any:
        nonlocal calls
        if calls // 2 in generations and calls % 2 == 0:  # two updates per generation
            for p, slot in enumerate(self.member_ids):
                if slot in slots:
                    self.parameters.flat[p] = math.nan
        calls += 1
        return update(self, *arguments)

    monkeypatch.setattr(PPO, "update", update_with_nan)


@pytest.mark.slow
def test_diverged_agent_has_no_score_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inject_nan_weights(monkeypatch, slots={1}, generations={0})
    config = small_config(exploit_fraction=0.0, reinit_fraction=0.0, generations=1)
    outcome = tournament(config, tmp_path / "a").run()
    assert ("g00s01",) in [record.args for record in caplog.records]
    saved = state(tmp_path / "a")
    assert [row["score"] is None for row in saved["current"]] == [False, True]
    assert set(saved["current"][1]["metrics"].values()) == {None}
    assert [score.id for score in outcome.leaderboard.scores] == ["g00s00"]

    inject_nan_weights(monkeypatch, slots={1}, generations={0})
    outcome = tournament(small_config(exploit_fraction=0.0, reinit_fraction=0.0), tmp_path / "b").run()
    assert outcome.parents["g01s01"] == "g00s00"  # replaced by a copy of the agent in slot 0
    assert outcome.parents["g02s01"] == "g01s01"  # slot 1 continues
    assert "g00s01" not in {score.id for score in outcome.leaderboard.scores}
    assert all(math.isfinite(score.score) for score in outcome.leaderboard.scores)


def test_diverged_agent_does_not_affect_other_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(generations=1)
    without_nan = tournament(config, tmp_path / "sound").run()
    inject_nan_weights(monkeypatch, slots={1}, generations={0})
    with_nan = tournament(config, tmp_path / "broken").run()
    score_of_slot_0 = next(score for score in without_nan.leaderboard.scores if score.slot == 0)
    assert with_nan.leaderboard.scores == (score_of_slot_0,)


def test_divergence_of_all_agents_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_nan_weights(monkeypatch, slots={0, 1}, generations={0, 1, 2})
    with pytest.raises(RunError, match=r"no validation score is a number; lower agent\.learning_rate"):
        tournament(small_config(), tmp_path / "run").run()


@pytest.mark.slow
def test_run_with_a_diverged_agent_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_nan_weights(monkeypatch, slots={1}, generations={0})
    uninterrupted = tournament(small_config(), tmp_path / "whole").run()
    inject_nan_weights(monkeypatch, slots={1}, generations={0})
    stop_after(tournament(small_config(), tmp_path / "cut"), 1)
    monkeypatch.undo()
    cut = tournament(small_config(), tmp_path / "cut", resume=True).run()
    assert cut.leaderboard == uninterrupted.leaderboard
    assert cut.parents == uninterrupted.parents


def stop_after(run: Tournament, generations: int) -> None:
    """Raise KeyboardInterrupt at the first progress report after `generations` generations."""

    def report(progress: Progress) -> None:
        if progress.stage.startswith(f"training generation {generations + 1} "):
            raise KeyboardInterrupt

    run.report = report
    with pytest.raises(KeyboardInterrupt):
        run.run()


def test_nan_weights_have_nan_scores() -> None:
    """A member may also overflow on validation days only, after training with finite losses."""
    from finrl_pod.rl.acting import MeanActor
    from finrl_pod.rl.networks.policies import PolicySpec, make_policy

    market, rules = small_market(), small_config().environment
    spec = PolicySpec("equivariant", 3, 2, 4, (4, 4))
    policy, actor = make_policy(spec), MeanActor(spec)
    each = [policy.init(torch.Generator().manual_seed(i), torch.float32) for i in range(3)]
    each[1]["encode_b"] += math.nan
    params = {name: torch.stack([member[name] for member in each]) for name in each[0]}
    scores = metrics_of(run_members(actor, params, market, rules, *VALIDATION), market)
    assert set(map(math.isnan, scores[1].values())) == {True}
    assert set(scores[1]) == set(METRIC_NAMES)
    ledger = run_members(actor, params, market, rules, *VALIDATION)
    assert ledger.equity[:, 1].isnan().all()
    for p in (0, 2):
        alone = {name: value[p : p + 1] for name, value in params.items()}
        ledger = run_members(actor, alone, market, rules, *VALIDATION)
        assert scores[p] == pytest.approx(metrics_of(ledger, market)[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("generations", [1, 50])
def test_time_limit_also_stops_within_a_generation(generations: int, tmp_path: Path) -> None:
    config = small_config(generations=generations, samples_per_generation=400 * SAMPLES, seconds=0.3)
    outcome = tournament(config, tmp_path / "run").run()
    assert outcome.leaderboard.scores
    assert 0 < outcome.samples < 2 * 400 * SAMPLES
    assert outcome.training_seconds + outcome.scoring_seconds >= 0.3
    again = tournament(config, tmp_path / "run", resume=True).run()
    assert (again.leaderboard, again.samples) == (outcome.leaderboard, outcome.samples)


@pytest.mark.slow
def test_progress_counts_samples_up_to_the_budget(tmp_path: Path) -> None:
    reports: list[Progress] = []
    tournament(small_config(), tmp_path / "run", report=reports.append).run()
    assert [progress.samples for progress in reports] == [2 * SAMPLES * (i + 1) for i in range(6)]
    assert {progress.total_samples for progress in reports} == {12 * SAMPLES}
    assert reports[0].best is None
    assert reports[-1].best is not None
    assert reports[-1].seconds_left == 0
    first, *later = reports  # the first iteration compiles kernels: no rate is known yet
    assert (first.samples_per_second, first.seconds_left) == (0, None)
    assert all(progress.samples_per_second > 0 and progress.seconds_left is not None for progress in later)


def test_learning_curves_are_in_the_tensorboard_log(finished: Path) -> None:
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
        ("champion", 0),
        ("champion", 17),
        ("seconds", -1.0),
    ],
)
def test_settings_out_of_range_are_reported_with_name_and_value(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"tournament\.{setting} is out of its range, got {value}"):
        validate_tournament(TournamentConfig(**{setting: value}))


def test_fractions_above_one_in_total_are_rejected() -> None:
    validate_tournament(TournamentConfig(exploit_fraction=0.875, reinit_fraction=0.125))
    with pytest.raises(ConfigError, match=r"may add up to 1 at most, got 0\.9 and 0\.2"):
        validate_tournament(TournamentConfig(exploit_fraction=0.9, reinit_fraction=0.2))
