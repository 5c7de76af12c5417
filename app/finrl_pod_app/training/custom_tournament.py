"""Tournaments on custom environments: `[environment] kind = "custom"`.

Pods are scored by the mean return of evaluation episodes; the best agent is tested once, on episodes of other seeds.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.custom.contract import check_first_step
from finrl_pod_envs.custom.loader import load_env, source_sha256

from finrl_pod.errors import ConfigError, Interrupted
from finrl_pod.files import to_plain, write_json
from finrl_pod.native.device import restored_threads
from finrl_pod.protocols import VecEnv
from finrl_pod.random import key
from finrl_pod.rl.algorithms.factory import validate as validate_agent
from finrl_pod.rl.experience import episode_returns
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, RunConfig, TournamentConfig, validate_tournament
from finrl_pod.settings.toml import record_lines, value_text
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.executor import LocalExecutor
from finrl_pod.tournament.leaderboard import ancestry
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import EpisodeScorer
from finrl_pod.tournament.tournament import Outcome, Tournament
from finrl_pod_app.environment_training.config import CUSTOM_ENVS, agent_config
from finrl_pod_app.setup.doctor import installed_versions, pick_device
from finrl_pod_app.setup.output_folder import RUN, locked_folder
from finrl_pod_app.setup.presets import tournament_command
from finrl_pod_app.setup.progress_file import live_progress
from finrl_pod_app.training.run_clock import RunClock

RESULT = "result.json"
TEST = "test"  # purpose of the random stream
TOURNAMENT = TournamentConfig(pods=4, generations=4, samples_per_generation=20_000)

MakeEnv = Callable[[Sequence[int]], VecEnv]


@restored_threads()
def run_custom_tournament(
    config: RunConfig, out: Path, *, resume: bool, device: str, progress: ProgressCallback
) -> dict[str, Any]:
    """Train a population, take the best agent, test it once; returns the contents of result.json.

    Raises ConfigError for settings that do not fit, as `load_env` for an environment that cannot be made, RunError for
    one whose first observation or step cannot be trained on, Interrupted on Ctrl-C.
    """
    clock = RunClock()
    settings = config.environment
    torch_device = pick_device(device)
    source = settings.source
    train, evaluation = (_maker(source, envs, torch_device) for envs in (settings.envs, settings.evaluation_episodes))
    _check(config, train)
    sha256 = source_sha256(source)
    open_run = RunDirectory.resume if resume else RunDirectory.create
    try:
        with locked_folder(out, RUN):
            run = open_run(out, config, sha256)
            with live_progress(out) as write_progress:

                def report(now: Progress) -> None:
                    write_progress(now)
                    best = "" if now.best is None else f"best mean return {now.best:.2f}"
                    progress(dataclasses.replace(now, best=None, detail=best))  # `best` is shown as a Sharpe ratio

                trainer = CohortTrainer(config, train, EpisodeScorer(evaluation, config.seed), sha256)
                clock.enter("training")
                outcome = Tournament(config, run, LocalExecutor(trainer), report).run()
                clock.enter("backtests")
                document = to_plain(_document(config, run, outcome, evaluation, clock))
                write_json(out / RESULT, document)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; finished generations are kept in {out}. Resume with --resume --out {shlex.quote(str(out))}"
        ) from None
    return dict(document)


def custom_config_text(source: str, algorithm: str, path: Path | None = None) -> str:
    """TOML of a tournament on file.py:Class, with the settings of `train --env`. Raises ConfigError for a bad name.

    path: config file, for the command in the first lines.
    """
    steps = TOURNAMENT.generations * TOURNAMENT.samples_per_generation
    settings = EnvironmentConfig(kind="custom", source=source, envs=CUSTOM_ENVS)
    names = ("kind", "source", "envs", "evaluation_episodes")
    sections = {
        "environment": [f"{name} = {value_text(getattr(settings, name))}" for name in names],
        "agent": [*record_lines(agent_config(algorithm, (), steps=steps, envs=CUSTOM_ENVS))],
        "tournament": [*record_lines(TOURNAMENT)],
    }
    tables = ["\n".join([f"[{name}]", *lines]) for name, lines in sections.items()]
    return "\n\n".join([f"# {tournament_command(path)}", *tables]) + "\n"


def _maker(source: str, envs: int, device: torch.device) -> MakeEnv:
    return lambda members: load_env(source, envs=envs, members=members, device=device)


def _check(config: RunConfig, make_env: MakeEnv) -> None:
    if not config.environment.source:
        raise ConfigError('environment.kind "custom" needs environment.source, such as "drift.py:Drift"')
    check_settings("environment.", config.environment)
    validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
    env = make_env(range(min(2, config.tournament.pods)))
    for agent in (config.agent, *config.cohorts):
        validate_agent(agent, env)
    check_first_step(env, config.seed)


def _document(
    config: RunConfig, run: RunDirectory, outcome: Outcome, make_env: MakeEnv, clock: RunClock
) -> dict[str, Any]:
    best = outcome.leaderboard.best
    assert best is not None  # the tournament has raised RunError without one
    learner = Learner(make_env((0,)), config.agent_of(best.slot), seed=config.seed, threads=config.threads)
    learner.restore(run.snapshot(best.id))
    episodes = episode_returns(make_env((0,)), learner.act, key(config.seed, 0, TEST))
    returns = episodes.returns[0]
    count = len(returns)
    spread = float(returns.std(correction=0))
    return {
        "environment": config.environment.source,
        "environment_sha256": run.data_sha256,
        "config_sha256": config.sha256,
        "seed": config.seed,
        "champion": {
            "id": best.id,
            "algorithm": config.agent_of(best.slot).algorithm,
            "score": best.score,
            "hyperparameters": dict(best.hyperparameters),
            "lineage": ancestry(best.id, outcome.parents),
        },
        "test": {
            "episodes": count,
            "cut_episodes": int(episodes.cut.sum()),
            "mean_return": float(returns.mean()),
            "std_return": spread,
            "standard_error": spread / max(count - 1, 1) ** 0.5,
        },
        "leaderboard": [dataclasses.asdict(score) for score in outcome.leaderboard.scores],
        "timing": clock.timing(outcome).model_dump(),
        "versions": dict(installed_versions()),
    }
