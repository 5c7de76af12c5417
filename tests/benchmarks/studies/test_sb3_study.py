"""The comparison with Stable-Baselines3: the Zoo's settings on both sides, resumed results, and the table."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.studies import sb3_study
from finrl_pod.rl.training.learner import Learner

# Keys of a Zoo entry that FinRL-Pod uses; any other key would be ignored silently.
TRANSLATED = {
    *("n_envs", "n_steps", "batch_size", "gae_lambda", "gamma", "n_epochs", "ent_coef", "learning_rate", "clip_range"),
    *("buffer_size", "learning_starts", "target_update_interval", "train_freq", "gradient_steps", "normalize"),
    *("exploration_fraction", "exploration_final_eps", "policy_kwargs", "use_sde", "sde_sample_freq", "max_grad_norm"),
    *("vf_coef", "use_rms_prop", "normalize_advantage", "noise_type", "noise_std"),
}


@pytest.fixture
def study() -> ModuleType:
    return sb3_study


def cells(study: ModuleType) -> list[Any]:
    return [cell for stage in study.STAGES for cell in stage]


def test_every_zoo_entry_configures_a_learner(study: ModuleType) -> None:
    for cell in cells(study):
        assert cell.zoo.keys() <= TRANSLATED, cell
        agent, envs = study.ours(cell)
        env = GymnasiumVecEnv(f"gym:{cell.env}", envs=envs)
        learner = Learner(env, agent)
        assert learner.algorithm.alive.all()
        steps = cell.zoo.get("n_steps", cell.zoo.get("train_freq", {"ppo": 2048, "a2c": 5}.get(cell.against, 1)))
        assert learner.iteration_samples == steps * envs
        env.close()


@pytest.mark.slow
def test_networks_equal_those_of_sb3_in_size_and_initial_spread(study: ModuleType) -> None:
    """PPO with ReLU, running statistics and a small spread, and with state-dependent noise in units of the bounds."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    for name in ("Hopper-v5", "Pendulum-v1"):
        cell = next(cell for cell in cells(study) if (cell.algorithm, cell.env) == ("ppo", name))
        network = {**cell.zoo.get("policy_kwargs", {})}
        if network:
            network["activation_fn"] = torch.nn.ReLU
        make = stable_baselines3.PPO
        theirs = make(
            "MlpPolicy", make_vec_env(name), policy_kwargs=network, use_sde="use_sde" in cell.zoo, device="cpu"
        )
        half = 2.0 if name == "Pendulum-v1" else 1.0
        agent, envs = study.ours(cell, half_range=half)
        ours = Learner(GymnasiumVecEnv(f"gym:{name}", envs=envs), agent).algorithm.member(0)[0]
        sizes = sum(x.numel() for key, x in ours.items() if not key.startswith("seen_"))
        assert sizes == sum(x.numel() for x in theirs.policy.parameters())
        assert ours["log_std"].shape == theirs.policy.log_std.shape
        torch.testing.assert_close(ours["log_std"].exp() * half, theirs.policy.log_std.detach().exp())


def row(cell: Any, study: ModuleType, side: str, seed: int, score: float) -> dict[str, Any]:
    algorithm = cell.algorithm if side == study.OURS else cell.against
    return {
        "algorithm": algorithm, "env": cell.env, "seed": seed, "side": side, "asked": cell.steps, "steps": cell.steps,
        "score": score, "seconds": 20.0, "cpu_seconds": 10.0 + seed, "settings": study._digest(cell),
    }  # fmt: skip


def test_finished_trainings_are_skipped_and_truncated_lines_repeated(study: ModuleType, tmp_path: Path) -> None:
    cell = cells(study)[0]
    results_file = tmp_path / "study.jsonl"
    study.append(results_file, row(cell, study, study.OURS, 0, 1.0))
    study.append(results_file, row(cell, study, study.THEIRS, 0, 2.0))
    with results_file.open("a") as file:
        file.write('{"algorithm": "ppo", "en')
    rows = study.read(results_file)
    assert [r["score"] for r in rows] == [1.0, 2.0]
    assert study._matches(rows[0], cell, 0, study.OURS)
    assert not study._matches(rows[0], cell, 1, study.OURS)
    assert not study._matches({**rows[0], "settings": "of another entry"}, cell, 0, study.OURS)


def test_table_marks_rows_whose_interval_lies_below_zero(study: ModuleType) -> None:
    good, bad, single_seed, unpaired = cells(study)[:4]
    rows = [row(good, study, side, s, 100.0 + s) for side in (study.OURS, study.THEIRS) for s in range(5)]
    rows += [row(bad, study, study.OURS, s, 10.0 + s) for s in range(5)]
    rows += [row(bad, study, study.THEIRS, s, 90.0 + s) for s in range(5)]
    rows += [row(single_seed, study, study.OURS, 0, 5.0), row(single_seed, study, study.THEIRS, 0, 3.0)]
    rows += [row(unpaired, study, study.OURS, 0, 7.0)]  # SB3's side is that of the previous cell
    lines = study.table(rows).splitlines()[2:]
    first, second, third, fourth = ([text.strip() for text in line.split("|")[1:-1]] for line in lines)
    assert first[3:8] == ["5", "102.0 (100.0 to 104.0)", "102.0 (100.0 to 104.0)", first[6], "yes"]
    assert first[6].startswith("+0.0 (-")
    assert second[7] == "no"
    assert second[6].startswith("-80.0 (-8")
    assert third[3:8] == ["1", "5.0 (5.0 to 5.0)", "3.0 (3.0 to 3.0)", "+2.0", "–"]
    assert fourth[0] == "double_dqn (SB3: dqn)"
    assert first[8:] == ["12 and 12", "20 and 20"]
