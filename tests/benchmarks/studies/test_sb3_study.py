"""The comparison with Stable-Baselines3: the Zoo's settings on both sides, resumed results, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.harness.rows import Job, append, read, run_missing
from benchmarks.studies.sb3_study import OURS, THEIRS, key_of, rows_of
from benchmarks.studies.zoo_settings import STAGES, Cell, ours
from finrl_pod.rl.training.learner import Learner

# Keys of a Zoo entry that FinRL-Pod uses; any other key would be ignored silently.
TRANSLATED = {
    *("n_envs", "n_steps", "batch_size", "gae_lambda", "gamma", "n_epochs", "ent_coef", "learning_rate", "clip_range"),
    *("buffer_size", "learning_starts", "target_update_interval", "train_freq", "gradient_steps", "normalize"),
    *("exploration_fraction", "exploration_final_eps", "policy_kwargs", "use_sde", "sde_sample_freq", "max_grad_norm"),
    *("vf_coef", "use_rms_prop", "normalize_advantage", "noise_type", "noise_std"),
}


CELLS = [cell for stage in STAGES for cell in stage]


@pytest.mark.slow
def test_every_zoo_entry_configures_a_learner() -> None:
    for cell in CELLS:
        assert cell.zoo.keys() <= TRANSLATED, cell
        agent, envs = ours(cell)
        env = GymnasiumVecEnv(f"gym:{cell.env}", envs=envs)
        learner = Learner(env, agent)
        assert learner.algorithm.alive.all()
        steps = cell.zoo.get("n_steps", cell.zoo.get("train_freq", {"ppo": 2048, "a2c": 5}.get(cell.against, 1)))
        assert learner.iteration_samples == steps * envs
        env.close()


@pytest.mark.slow
def test_networks_equal_those_of_sb3_in_size_and_initial_spread() -> None:
    """PPO with ReLU, running statistics and a small spread, and with state-dependent noise in units of the bounds."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    for name in ("Hopper-v5", "Pendulum-v1"):
        cell = next(cell for cell in CELLS if (cell.algorithm, cell.env) == ("ppo", name))
        network = {**cell.zoo.get("policy_kwargs", {})}
        if network:
            network["activation_fn"] = torch.nn.ReLU
        make = stable_baselines3.PPO
        theirs = make(
            "MlpPolicy", make_vec_env(name), policy_kwargs=network, use_sde="use_sde" in cell.zoo, device="cpu"
        )
        half = 2.0 if name == "Pendulum-v1" else 1.0
        agent, envs = ours(cell, half_range=half)
        own = Learner(GymnasiumVecEnv(f"gym:{name}", envs=envs), agent).algorithm.member(0)[0]
        sizes = sum(x.numel() for key, x in own.items() if not key.startswith("seen_"))
        assert sizes == sum(x.numel() for x in theirs.policy.parameters())
        assert own["log_std"].shape == theirs.policy.log_std.shape
        torch.testing.assert_close(own["log_std"].exp() * half, theirs.policy.log_std.detach().exp())


def record(cell: Cell, side: str, seed: int, score: float) -> dict[str, Any]:
    return {
        **key_of(cell, seed, side),
        "steps": cell.steps,
        "score": score,
        "seconds": 20.0,
        "cpu_seconds": 10.0 + seed,
    }


def test_finished_trainings_are_skipped_and_truncated_lines_repeated(tmp_path: Path) -> None:
    cell = CELLS[0]
    results = tmp_path / "study.jsonl"
    append(results, record(cell, OURS, 0, 1.0), {**record(cell, THEIRS, 0, 2.0), "settings": "another entry"})
    with results.open("a") as file:
        file.write('{"algorithm": "ppo", "en\n')
    assert [r["score"] for r in read(results)] == [1.0, 2.0]
    run_missing(results, [Job(key_of(cell, 0, side), lambda: {"score": 3.0}) for side in (OURS, THEIRS)])
    assert [r["score"] for r in read(results)] == [1.0, 2.0, 3.0]
    assert read(results)[2]["side"] == THEIRS


def test_rows_mark_cells_whose_interval_lies_below_zero() -> None:
    good, bad, single_seed, unpaired = CELLS[:4]
    records = [record(good, side, s, 100.0 + s) for side in (OURS, THEIRS) for s in range(5)]
    records += [record(bad, OURS, s, 10.0 + s) for s in range(5)]
    records += [record(bad, THEIRS, s, 90.0 + s) for s in range(5)]
    records += [record(single_seed, OURS, 0, 5.0), record(single_seed, THEIRS, 0, 3.0)]
    records += [record(unpaired, OURS, 0, 7.0)]  # the other side is that of the previous cell
    rows = [*rows_of(records)]
    assert [(row.value, row.low, row.high) for row in rows[:2]] == [(102.0, 100.0, 104.0)] * 2
    assert rows[0].config["seeds"] == 5
    assert (rows[0].config["cpu_seconds"], rows[0].config["seconds"]) == (12.0, 20.0)
    assert rows[2].config["not_worse"]
    assert rows[5].value == pytest.approx(-80.0)
    assert not rows[5].config["not_worse"]
    assert (rows[8].value, "not_worse" in rows[8].config) == (2.0, False)
    assert [rows[9].config["algorithm"], rows[10].config["algorithm"]] == ["double_dqn", "dqn"]


def test_twenty_seeds_add_the_ratio_of_variances() -> None:
    cell, other = CELLS[:2]
    spread = {OURS: 1.0, THEIRS: 2.0}
    records = [record(cell, side, s, 100.0 + spread[side] * s) for side in spread for s in range(20)]
    records += [record(other, OURS, s, float(s)) for s in range(20)]
    records += [record(other, THEIRS, s, 500.0) for s in range(20)]  # no variance to divide by
    rows = [row for row in rows_of(records) if row.name.endswith("variance")]
    assert len(rows) == 1
    assert rows[0].value == pytest.approx(0.25)
    assert rows[0].low == pytest.approx(0.25) == rows[0].high  # both sides are resampled in pairs
    assert rows[0].config["seeds"] == 20
