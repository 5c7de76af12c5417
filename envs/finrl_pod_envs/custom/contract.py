"""The contract of a VecEnv, checked by running one. Faults name the rule and the index of the environment.

    assert not check_env(lambda envs, members: Mine(envs=envs, members=members))

A check draws random actions, steps until every environment has finished an episode, and repeats the first steps under
the same seed: in a second instance, in the same one, after a checkpoint, and for one member alone.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from finrl_pod.errors import FinrlPodError, RunError
from finrl_pod.protocols import ResumableVecEnv, VecEnv
from finrl_pod.types import EnvStep, Observation, Tensor
from finrl_pod.user_files import error_text, own_failure, stdout_to_stderr

MAX_STEPS = 2_500
REPEATED = 100  # steps that are compared with a second run
ENVS = 4
MEMBERS = (0, 5)
SEED = 1
EQUAL = 1e-6
DIFFERENT = 1e-4
FORM = ("shape", "dtype", "device", "fields")  # rules without which nothing can be trained
PARTS = ("reward", "terminated", "truncated")

MakeEnv = Callable[[int, Sequence[int]], VecEnv]


@dataclass(frozen=True)
class Fault:
    """A broken rule. rule: shape, dtype, device, NaN, seed, end of episodes, ... message: what was seen and the fix."""

    rule: str
    message: str


class _Faults(dict[str, Fault]):
    """The first fault of each rule."""

    def add(self, rule: str, message: str) -> None:
        self.setdefault(rule, Fault(rule, message))


@dataclass
class _Run:
    """What a run recorded: actions and outcomes of its first steps, as copies."""

    actions: list[Tensor] = field(default_factory=list)
    steps: list[dict[str, Tensor]] = field(default_factory=list)


def check_env(
    make: MakeEnv, *, envs: int = ENVS, members: Sequence[int] = MEMBERS, max_steps: int = MAX_STEPS
) -> list[Fault]:
    """Faults of an environment, one of each rule; empty if it keeps the contract.

    make: (number of environments, member ids) -> environment. Each is closed if it has `close`. max_steps: an
    environment that finishes no episode in that many steps of random actions is taken for one that never ends.
    """
    faults = _Faults()
    with stdout_to_stderr():
        try:
            _check(make, envs, members, max_steps, faults)
        except FinrlPodError as error:
            faults.add("error", str(error))
        except Exception as error:  # noqa: BLE001  whatever the environment raises is what the check tells
            message = own_failure(error)
            if message is None:
                location = traceback.extract_tb(error.__traceback__)[-1]
                message = f"it raised {error_text(error)} ({location.filename}, line {location.lineno})"
            faults.add("error", message)
    return list(faults.values())


def _check(make: MakeEnv, envs: int, members: Sequence[int], max_steps: int, faults: _Faults) -> None:
    with _closing(make(envs, members)) as env:
        first = _Checker(env, faults)
        run = first.play(SEED, max_steps)
        if faults.keys() & {"shape", "dtype", "device", "attributes"}:
            return
        is_repeatable = first.replay(SEED, run, "a second reset(seed) of the same environment")
        if isinstance(env, ResumableVecEnv) and is_repeatable:
            first.resume(SEED, run)
    with _closing(make(envs, members)) as env:
        _Checker(env, faults).replay(SEED, run, "a second environment")
    if len(members) > 1 and "seed" not in faults:
        with _closing(make(envs, members[-1:])) as env:
            alone = _Run([x[-1:] for x in run.actions], [{k: x[-1:] for k, x in step.items()} for step in run.steps])
            _Checker(env, faults).replay(SEED, alone, f"member {members[-1]} by itself", rule="members")


def check_start(env: VecEnv, observation: Any) -> None:
    """Raises RunError for an observation of reset() of another shape, type or device than the contract asks for.

    And for one with NaN or infinite numbers, from which nothing can be learned.
    """
    faults = _Faults()
    _Checker(env, faults).observation("the observation of reset()", observation, 0)
    _refuse(env, faults, (*FORM, "NaN"))


def check_step(env: VecEnv, out: Any) -> None:
    """Raises RunError as `check_start`, for what the first step returned."""
    faults = _Faults()
    _Checker(env, faults).outcome(out, 1)
    _refuse(env, faults, FORM)


def check_first_step(env: VecEnv, seed: int) -> None:
    """Reset and step an environment once. Raises RunError as `check_start` and `check_step`, and what it raises."""
    with stdout_to_stderr(), _closing(env):
        check_start(env, env.reset(seed))
        shape = (env.members, env.envs, env.action_size)
        dtype = torch.int64 if env.action_kind == "discrete" else torch.float32
        check_step(env, env.step(torch.zeros(shape, dtype=dtype, device=env.device)))


def _refuse(env: VecEnv, faults: _Faults, rules: Sequence[str]) -> None:
    wrong = [fault for rule, fault in faults.items() if rule in rules]
    if wrong:
        raise RunError(f"the environment {type(env).__name__} cannot be trained on: {wrong[0].message}")


@contextlib.contextmanager
def _closing(env: VecEnv) -> Iterator[VecEnv]:
    """Close the environment at the end, if it can be."""
    try:
        yield env
    finally:
        close = getattr(env, "close", None)
        if callable(close):
            close()


class _Checker:
    """Runs one environment and records its faults."""

    def __init__(self, env: VecEnv, faults: _Faults) -> None:
        self.env = env
        self.faults = faults
        self.shape = (env.members, env.envs)

    def play(self, seed: int, max_steps: int) -> _Run:
        """Step by random actions until every environment has finished an episode, checking each outcome."""
        env = self.env
        run = _Run()
        noise = torch.Generator().manual_seed(seed)
        if env.action_kind == "discrete" and (env.actions < 1 or env.action_size != 1):
            self.faults.add(
                "attributes",
                f"discrete actions need actions >= 1 and action_size = 1, got {env.actions} and {env.action_size}",
            )
            return run
        observation = env.reset(seed)
        self.observation("the observation of reset()", observation, 0)
        has_ended = torch.zeros(self.shape, dtype=torch.bool)
        finals = _Finals(self.faults)
        for step in range(1, max_steps + 1):
            if self.faults.keys() & set(FORM):
                return run
            action = self._action(noise)
            last_rows = _rows(observation).clone()
            action_copy = action.clone()
            out = env.step(action)
            if not self.outcome(out, step):
                return run
            if not torch.equal(action_copy, action):
                self.faults.add("inputs", f"step {step} changed the action that it was given; copy it first")
            if not torch.equal(last_rows.nan_to_num(), _rows(observation).nan_to_num()):
                self.faults.add(
                    "outputs",
                    f"step {step} overwrote the observation that was returned before it; return a new tensor, or "
                    "alternate between two",
                )
            if len(run.steps) < REPEATED:
                run.actions.append(action_copy)
                run.steps.append(_outcome_copy(out))
            episode_ends = (out.terminated | out.truncated).cpu()
            finals.add(last_rows, out, episode_ends, step)
            has_ended |= episode_ends
            observation = out.observation
            if bool(has_ended.all()):
                break
        finals.judge()
        if not bool(has_ended.all()):
            faulty_index = int((~has_ended).flatten().nonzero()[0])
            subject = f"no episode of {self._name(faulty_index)}" if bool(has_ended.any()) else "no episode"
            self.faults.add(
                "end of episodes",
                f"an episode never ends: {subject} was terminated or truncated within {max_steps:,} steps of random "
                "actions; set truncated after a limit of steps, or check with more steps (--steps)",
            )
        return run

    def replay(self, seed: int, run: _Run, location: str, rule: str = "seed") -> bool:
        """Repeat a run; records a fault where an outcome differs."""
        self.env.reset(seed)
        return self._compare(run, 0, location, rule)

    def resume(self, seed: int, run: _Run) -> None:
        """Save half way, run on, restore, and repeat the second half."""
        env = self.env
        assert isinstance(env, ResumableVecEnv)
        half = len(run.actions) // 2
        env.reset(seed)
        for action in run.actions[:half]:
            env.step(action.clone())
        state = {name: x.clone() for name, x in env.checkpoint().items()}
        for action in run.actions[half:]:
            env.step(action.clone())
        env.reset(seed)  # as a learner does: what follows from the seed need not be saved
        env.resume(state)
        self._compare(run, half, "a run that was continued by resume(checkpoint())", "resume")

    def _compare(self, run: _Run, first: int, location: str, rule: str) -> bool:
        for number, (action, expected_outcome) in enumerate(
            zip(run.actions[first:], run.steps[first:], strict=True), first
        ):
            outcome = _outcome_copy(self.env.step(action.clone()))
            for name, values in expected_outcome.items():
                gap = (values.double() - outcome[name].double()).nan_to_num().abs()
                faults = gap.reshape(gap.shape[0] * gap.shape[1], -1).amax(-1) > EQUAL
                if not bool(faults.any()):
                    continue
                faulty_index = int(faults.nonzero()[0])  # flat, [P x E]
                fix = {
                    "seed": "draw all random numbers from a generator made in reset(seed), and set all state there",
                    "resume": "checkpoint() must hold all state, random generators too",
                    "members": "draw the numbers of each member from a generator of its own, keyed by its id "
                    "in member_ids",
                }[rule]
                self.faults.add(
                    rule,
                    f"two runs of the same seed and actions differ: {name} of {self._name(faulty_index)} at step "
                    f"{number + 1}, in {location}; {fix}",
                )
                return False
        return True

    def _action(self, noise: torch.Generator) -> Tensor:
        env = self.env
        shape = (*self.shape, env.action_size)
        if env.action_kind == "discrete":
            return torch.randint(env.actions, shape, generator=noise).to(env.device)
        return torch.randn(shape, generator=noise).to(env.device)

    def outcome(self, out: EnvStep, step: int) -> bool:
        """Check the record of a step; False if it has not the fields of one."""
        if missing := [name for name in EnvStep._fields[:5] if not hasattr(out, name)]:
            self.faults.add("fields", f"step() returned {type(out).__name__} without {missing[0]}; return an EnvStep")
            return False
        self.observation(f"the observation of step {step}", out.observation, step)
        self.observation(f"the final_observation of step {step}", out.final_observation, step)
        good = self._tensor(f"reward of step {step}", out.reward, self.shape, "a floating-point number")
        if good:
            self._finite("reward", out.reward, step)
        for name in ("terminated", "truncated"):
            good &= self._tensor(f"{name} of step {step}", getattr(out, name), self.shape, "bool")
        if good and bool((double_flags := out.terminated & out.truncated).any()):
            subject = self._name(int(double_flags.flatten().nonzero()[0]))
            self.faults.add(
                "flags", f"{subject} was terminated and truncated in step {step}; truncated means that it could go on"
            )
        return not self.faults.keys() & {"shape", "dtype", "device"}

    def observation(self, subject: str, observation: Any, step: int) -> None:
        rows = observation
        size = self.env.observation_size
        if isinstance(observation, Observation):  # of a market
            rows = observation.account
            subject = f"the account of {subject}"
            size = rows.shape[-1]
        if self._tensor(subject, rows, (*self.shape, size), "a floating-point number"):
            self._finite("observation", rows, step)

    def _tensor(self, subject: str, x: Any, shape: tuple[int, ...], kind: str) -> bool:
        if not isinstance(x, Tensor):
            self.faults.add("dtype", f"{subject} is of type {type(x).__name__}; return a torch tensor")
            return False
        fits = x.dtype == torch.bool if kind == "bool" else x.is_floating_point()
        if tuple(x.shape) != shape:
            self.faults.add("shape", f"{subject} has the shape {tuple(x.shape)}, the contract asks for {shape}")
        elif not fits:
            self.faults.add("dtype", f"{subject} has the dtype {x.dtype}, the contract asks for {kind}")
        elif x.device.type != self.env.device.type:
            self.faults.add("device", f"{subject} is on the device {x.device}, the environment says {self.env.device}")
        else:
            return True
        return False

    def _finite(self, name: str, x: Tensor, step: int) -> None:
        bad = ~torch.isfinite(x)
        if bool(bad.any()):
            index = int(bad.reshape(self.env.members * self.env.envs, -1).any(-1).nonzero()[0])
            kind = "NaN" if bool(x.isnan().any()) else "infinite"
            moment = f"in step {step}" if step else "after reset()"
            self.faults.add("NaN", f"the {name} of {self._name(index)} is {kind} {moment}; return finite numbers")

    def _name(self, flat: int) -> str:
        """Name of an environment by its index among all P x E."""
        member, index = divmod(flat, self.env.envs)
        return f"environment {index} of member {self.env.member_ids[member]}"


class _Finals:
    """Whether final observations are those before the reset, judged over all episodes that ended."""

    def __init__(self, faults: _Faults) -> None:
        self.faults = faults
        self.moving_steps = self.still_steps = self.episode_count = self.next_matches = self.last_matches = 0

    def add(self, last: Tensor, out: EnvStep, episode_ends: Tensor, step: int) -> None:
        final = _rows(out.final_observation)
        following = _rows(out.observation)
        gap = (final - following).abs().amax(-1)
        wrong = (gap > DIFFERENT) & ~episode_ends
        if bool(wrong.any()):
            index = int(wrong.flatten().nonzero()[0])
            self.faults.add(
                "final observation",
                f"final_observation of environment {index % episode_ends.shape[1]} differs from its observation in "
                f"step {step}, in which no episode ended; both are the same except at a reset",
            )
        change = (final - last).abs().amax(-1) > EQUAL
        self.moving_steps += int((change & ~episode_ends).sum())
        self.still_steps += int((~change & ~episode_ends).sum())
        self.episode_count += int(episode_ends.sum())
        self.next_matches += int(((gap <= EQUAL) & episode_ends).sum())
        self.last_matches += int((~change & episode_ends).sum())

    def judge(self) -> None:
        if not self.episode_count or self.moving_steps <= self.still_steps:
            return  # nothing to tell from: no episode ended, or observations are often constant within one
        if self.next_matches == self.episode_count:
            self.faults.add(
                "final observation",
                f"the final observation is lost at a reset: in all {self.episode_count} episodes that ended "
                "final_observation was the first one of the next episode; keep the one before the reset",
            )
        elif self.last_matches == self.episode_count:
            self.faults.add(
                "final observation",
                f"in all {self.episode_count} episodes that ended final_observation was the one before the last step; "
                "return the one after it, before the reset",
            )


def _rows(observation: Any) -> Tensor:
    x: Tensor = observation.account if isinstance(observation, Observation) else observation
    return x.detach().cpu().double()


def _outcome_copy(out: EnvStep) -> dict[str, Tensor]:
    """Copies of the parts of an outcome on the CPU."""
    fields = {name: getattr(out, name).detach().cpu().clone() for name in PARTS}
    return {"observation": _rows(out.observation).clone(), **fields}
