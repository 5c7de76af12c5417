"""Ready-made configs, and the commented TOML text that `finrl-pod init` writes.

The text is made from the records of `finrl_pod.settings.run`, so it cannot drift from them: a field without a comment
in `COMMENTS` is an error that a test finds.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig, RunConfig, TournamentConfig

PRESETS: Mapping[str, RunConfig] = {
    "laptop": RunConfig(),
    "gpu": RunConfig(
        environment=EnvironmentConfig(envs=1024),
        agent=PPOConfig(hidden=(64, 64)),
        tournament=TournamentConfig(
            pods=32, generations=12, samples_per_generation=1_000_000, leaderboard=64, champion=8
        ),
    ),
    "quick": RunConfig(
        tournament=TournamentConfig(pods=4, generations=2, samples_per_generation=40_000, leaderboard=8, champion=2),
    ),
}

PURPOSES: Mapping[str, str] = {
    "laptop": "minutes on two CPU cores; what `finrl-pod demo` runs",
    "gpu": "a larger population for one CUDA device",
    "quick": "every stage within a minute, to see that all works; too short to learn much",
}

SECTIONS: Mapping[str, str] = {
    "data": "Prices: `finrl-pod data list` shows what is there.",
    "splits": "First and last date of each split. Nothing is fitted or chosen on the test years.",
    "features": "What a policy sees of each asset, all known at the close of the decision's bar.",
    "environment": "The rules of the market.",
    "agent": "How agents learn: `finrl-pod algorithms` lists the algorithms; each has settings of its own.",
    "tournament": "The population, its budget, and how the champion is picked.",
    "gate": "What a champion has to reach to be promoted.",
}

COHORT = "Pods of another algorithm, or of other settings, on the same leaderboard."

COMMENTS: Mapping[str, str] = {
    "seed": "every random number of the run follows from it",
    "threads": "CPU threads, 0: as many as there are cores",
    "data.name": 'a panel of the store; "sample" is built in',
    "data.symbols": "a choice of the panel's symbols, empty: all",
    "splits.train": "agents and normalisers see these bars alone",
    "splits.validation": "ranks the leaderboard and picks the champion",
    "splits.test": "looked at once, for the report",
    "splits.embargo": "bars dropped from the end of train and of validation",
    "features.names": "registered features, in order",
    "environment.kind": "target weights, shares to trade scaled by hmax, or one choice: hold, buy one, sell one",
    "environment.cost_bps": "cost of a trade in basis points of its value, each side",
    "environment.cash": "an account's cash at the start, in the currency of the prices",
    "environment.window": "bars an episode",
    "environment.reward": "of a step, from one fill to the next",
    "environment.fill": "next: at the next open (close where there are no opens); same_close: for comparison only",
    "environment.buy_allocation": "buys beyond the cash: all scaled by one factor, or one after the other",
    "environment.whole_shares": "truncate trades to whole shares",
    "environment.short": "allow negative holdings",
    "environment.leverage": "limit on the holdings as a multiple of equity",
    "environment.hmax": "stock_trading: shares that a full action trades",
    "environment.trade_fraction": "discrete: share of the equity that a choice buys or sells",
    "environment.turbulence_limit": "sell everything while turbulence is above it, 0: off",
    "environment.half_spread_bps": "half of the quoted spread in basis points of the price, on every fill",
    "environment.per_share": "commission a share, in currency",
    "environment.per_share_minimum": "least commission of an order, in currency",
    "environment.impact": "square-root market impact: this times volatility times sqrt(order / volume of the bar)",
    "environment.participation": "largest share of a bar's volume that fills, the rest lapses; 0: no limit",
    "environment.borrow_fee": "a year, as a share of the value of short positions",
    "environment.delisting_return": "what a delisted ticker pays relative to its last close, -0.3: thirty percent less",
    "environment.delay": "bars from a decision to its fill",
    "environment.cash_rates": 'annual rate of cash from each date on, as [["2019-01-01", 0.02]]',
    "environment.adjusted_shares": "allow whole shares and costs a share although the prices are adjusted",
    "environment.envs": "environments a member",
    "environment.group": "environments that share a window of time",
    "agent.algorithm": "one of those that `finrl-pod algorithms` lists",
    "agent.policy": "one network for every asset, or one on the flat observation",
    "agent.hidden": "units of each hidden layer",
    "agent.horizon": "steps of each environment between two updates",
    "agent.epochs": "passes over a rollout",
    "agent.minibatches": "parts of a pass",
    "agent.group_baseline": "take from each advantage the mean of its group: the market's noise, caused by no action",
    "agent.learning_rate": "of the optimiser",
    "agent.learning_rate_schedule": "constant, or falling to zero over the budget",
    "agent.gamma": "weight of the next step's reward",
    "agent.gae_lambda": "0: one-step advantages, 1: whole returns",
    "agent.clip_range": "limit on the change of an action's probability ratio",
    "agent.entropy_coefficient": "bonus for randomness",
    "agent.value_coefficient": "weight of the value loss",
    "agent.max_grad_norm": "gradients are clipped to it, for each member",
    "agent.h_term": "weight of the H-term, which keeps good trajectories likely, 0: off",
    "agent.h_steps": "its steps a trajectory",
    "agent.h_trajectories": "its trajectories, of every rollout and of every gradient step",
    "agent.h_buffer": "good trajectories that are kept for it",
    "agent.diversity": "bonus for acting unlike the next pod of the cohort, 0: off",
    "agent.activation": "of a plain network's hidden layers",
    "agent.orthogonal_init": "whether a plain network's weights begin orthogonal; else uniform",
    "agent.log_std_init": "logarithm of the standard deviation of actions, at the start",
    "agent.use_sde": "noise on actions that depends on what the network sees (gSDE), for plain networks",
    "agent.sde_sample_freq": "steps that such noise lasts, 0: a rollout",
    "agent.normalise": "flat rows and rewards by running statistics; for Gymnasium environments",
    "agent.optimiser": "what takes the gradient steps",
    "agent.optimiser_epsilon": "added to its denominators",
    "agent.clip_range_schedule": "constant, or falling as the learning rate does",
    "agent.target_kl": "a member that moved further than this sits out the rest of an iteration",
    "agent.gradient_steps": "gradient steps after them",
    "agent.batch_size": "samples of a gradient step",
    "agent.buffer_size": "samples kept to learn from, for each member",
    "agent.learning_starts": "samples of random actions before the first gradient step",
    "agent.target_interval": "gradient steps between two moves of the target networks",
    "agent.tau": "share of the way that target networks move towards the networks",
    "agent.scale_rewards": "divide rewards by their standard deviation in the first samples",
    "agent.critics": "critics of a member",
    "agent.critic_rule": "what targets take of the critics: the least, their mean, the least of a random subset",
    "agent.critic_subset": "critics in the random subset",
    "agent.exploration_noise": "standard deviation of the noise on actions in [-1, 1]",
    "agent.policy_delay": "gradient steps of the critics for each of the actor",
    "agent.target_noise": "standard deviation of the noise on the target's action",
    "agent.noise_clip": "limit on that noise",
    "agent.auto_entropy": "learn the temperature, so that the entropy meets its target",
    "agent.temperature": "weight of the entropy, at the start",
    "agent.target_entropy": "entropy wanted, for each number of the action",
    "agent.exploration_samples": "samples over which the share of random actions falls",
    "agent.final_epsilon": "share of random actions in the end",
    "tournament.pods": "agents trained side by side",
    "tournament.generations": "rounds of training and ranking",
    "tournament.samples_per_generation": "steps of the environments for each pod and generation",
    "tournament.leaderboard": "entries kept",
    "tournament.exploit_fraction": "share of pods that start a generation from the leaderboard",
    "tournament.reinit_fraction": "share of pods that start anew; the rest go on as they are",
    "tournament.perturb_factor": "an heir's settings are multiplied or divided by it",
    "tournament.resample_probability": "probability that a setting is drawn anew instead",
    "tournament.champion": "best entries that form the champion ensemble",
    "tournament.ensemble": "mean of their weights, mean by validation Sharpe ratio, or vote (median; what most choose)",
    "tournament.seconds": "limit on wall-clock time, 0: off (a limit makes runs depend on the machine)",
    "gate.min_dsr": "least deflated Sharpe ratio (DSR) on validation, over equal weight and over all trials",
    "gate.max_pbo": "largest probability of backtest overfitting (PBO) on validation",
    "gate.max_pbo_loss_probability": "a larger one is allowed where the chosen falls behind equal weight this seldom",
    "gate.pbo_blocks": "blocks into which validation is cut for it, an even number",
    "gate.min_psr": "that it beats equal weight on test; the error is shared by all looks at the test period",
    "gate.superiority_confidence": "the same over the best baseline of validation",
    "gate.min_excess_bps": "basis points a bar: the interval of growth over the best baseline on test lies above it",
    "gate.max_drawdown": "largest fall from a peak on test, 0.5 is half",
    "gate.break_even_cost_multiple": "the lead over equal weight on test survives this multiple of the costs",
    "gate.audit": "the audit finds no fault",
}


def preset(name: str) -> RunConfig:
    """The config called `name`. Raises ConfigError for an unknown one."""
    if name not in PRESETS:
        guess = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f", did you mean {guess[0]}?" if guess else ""
        raise ConfigError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}{hint}")
    return PRESETS[name]


def preset_text(name: str) -> str:
    """Commented TOML of a preset; `finrl_pod.settings.run.parse` reads it back to an equal config."""
    config = preset(name)
    head = f"# finrl_pod, preset {name}: {PURPOSES[name]}.\n# finrl-pod tournament THIS_FILE --out runs/mine\n\n"
    return head + config_text(config)


def config_text(config: RunConfig) -> str:
    """Commented TOML of any config: plain settings first, then one table for each nested record."""
    blocks = ["\n".join(_lines(config, ""))]
    for section, comment in SECTIONS.items():
        blocks.append("\n".join([f"# {comment}", f"[{section}]", *_lines(getattr(config, section), f"{section}.")]))
    for agent in config.cohorts:
        blocks.append("\n".join([f"# {COHORT}", "[[cohorts]]", *_lines(agent, "agent.")]))
    return "\n\n".join(blocks) + "\n"


def write_preset(name: str, path: Path) -> None:
    """Write a preset to a new file. Raises ConfigError when the file exists already or cannot be written."""
    text = preset_text(name)
    try:
        # "x" and not a check before: nothing that appears in between is overwritten.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} exists already and is left as it is: choose another name or remove it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _lines(record: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value) or field.name == "cohorts":
            continue
        choices = [str(c) for c in typing.get_args(hints[field.name]) if isinstance(c, str)]
        comment = COMMENTS[prefix + field.name] + (f" ({' | '.join(choices)})" if len(choices) > 1 else "")
        text = f"{field.name} = {_value(value)}"
        if "\n" in text:
            yield f"# {comment}"
            yield text
        else:
            yield f"{text}  # {comment}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [_value(item) for item in value]
        if len(items) > 4:
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")
