"""Check leakage between splits: nothing may be fitted on or selected by the bars that it is evaluated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from finrl_pod.data.blocks import copy_of_feature
from finrl_pod.data.splits import Splits
from finrl_pod.data.tensor import fit_normaliser
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import Floats, MarketTensor, Normaliser

CHECK = "leakage"
NORMALISER_TOLERANCE = 1e-4  # of a feature's own deviation: features are stored in float32
SCORE_TOLERANCE = 1e-3  # of an annual Sharpe ratio: members are scored in float32
SHARE_TOLERANCE = 1e-6  # of a member's share in an ensemble
REWARD_BARS = 2  # from a decision to the end of the interval that its reward covers


def check_normaliser(market: MarketTensor, normaliser: Normaliser, train: tuple[int, int]) -> list[Finding]:
    """Refit the normaliser on the training bars (first, last) and require the same mean and deviation."""
    found = []
    for i, name in enumerate(normaliser.feature_names):
        column = market.feature_names.index(name)
        raw = copy_of_feature(market.raw_features.cpu().numpy(), column).astype(np.float64)
        refitted = fit_normaliser(raw[..., None], market.tradable.cpu().numpy(), *train, (name,))
        spread = refitted.std[0]
        shift = abs(normaliser.mean[i] - refitted.mean[0]) / spread
        scale = abs(normaliser.std[i] - spread) / spread
        if max(shift, scale) > NORMALISER_TOLERANCE:
            bar = _first_value_after(raw, train[1])
            when = str(market.times[bar].astype("datetime64[D]"))
            message = (
                f"The normaliser of {name} was not fitted on the training bars only: its mean is off by {shift:.3g} "
                f"and its deviation by {scale:.3g} training deviations. The first later bar is {when}."
            )
            found.append(Finding(CHECK, "fail", f"the normaliser of {name}", message, when, max(shift, scale)))
    if found:
        return found
    count = len(normaliser.feature_names)
    message = f"The normaliser of {count} features was fitted on the training bars only."
    return [Finding(CHECK, "pass", "normaliser", message)]


def check_splits(splits: Splits, last_decision: int | None = None) -> list[Finding]:
    """Require that splits do not overlap and that no reward of one reaches into the next.

    last_decision: last bar at which the training environments decide; None if nothing was trained.
    """
    found = []
    spans = (("train", splits.train), ("validation", splits.validation), ("test", splits.test))
    for (earlier, a), (later, b) in pairwise(spans):
        if a.last >= b.first:
            bar = str(splits.times[b.first].astype("datetime64[D]"))
            message = f"{earlier} and {later} share bars from {bar}."
            found.append(Finding(CHECK, "fail", f"{earlier} and {later}", message, bar))
        elif a.last + REWARD_BARS > b.first and last_decision is None:
            bar = str(splits.times[b.first].astype("datetime64[D]"))
            message = (
                f"The embargo of {splits.embargo} bars is too short: decisions in {earlier} can earn returns in "
                f"{later}."
            )
            found.append(Finding(CHECK, "warn", "embargo", message, bar, splits.embargo))
    if last_decision is not None and last_decision + REWARD_BARS > splits.train.last:
        reached = min(last_decision + REWARD_BARS, len(splits.times) - 1)
        bar = str(splits.times[reached].astype("datetime64[D]"))
        message = f"Training environments are rewarded up to {bar}, beyond the last training bar."
        found.append(Finding(CHECK, "fail", "training environments", message, bar))
    message = "Train, validation and test share no bar and no reward."
    return found or [Finding(CHECK, "pass", "splits", message)]


def check_selection(
    recorded: Mapping[str, Sequence[float]],
    recomputed: Mapping[str, float],
    members: Mapping[str, float],
    selected: Mapping[str, float],
) -> list[Finding]:
    """Require that the champion was selected by what its agents do on the validation bars.

    recorded: the leaderboard, id -> the score and that of the saved returns. recomputed: the same agents scored again
    on the validation bars. members, selected: id -> share in the ensemble, of the champion and by the rule of selection
    from what was recorded.
    """
    off = {agent: max(abs(x - recomputed[agent]) for x in recorded[agent]) for agent in recorded}
    wrong = [agent for agent, error in off.items() if not error <= SCORE_TOLERANCE]
    found = []
    if wrong:
        agent = wrong[0]
        message = (
            f"The leaderboard score of {agent}, {recorded[agent][0]:.4f}, differs from its Sharpe ratio on the "
            f"validation bars, {recomputed[agent]:.4f}: the champion was selected on other bars "
            f"({len(wrong)} of {len(off)} scores differ)."
        )
        found.append(Finding(CHECK, "fail", "the champion's selection", message, None, off[agent]))
    off_shares = {agent: abs(share - selected[agent]) for agent, share in members.items() if agent in selected}
    if set(members) == set(selected) and max(off_shares.values(), default=0.0) > SHARE_TOLERANCE:
        agent = max(off_shares, key=off_shares.__getitem__)
        message = (
            f"The champion's ensemble was not weighted by validation: the share of {agent} is {members[agent]:.3f}, "
            f"and the rule of selection gives {selected[agent]:.3f}."
        )
        found.append(Finding(CHECK, "fail", "the champion's shares", message, None, members[agent]))
    if set(members) != set(selected):
        message = (
            f"The champion was not selected by validation: it consists of {', '.join(members)}, and validation selects "
            f"{', '.join(selected)}."
        )
        found.append(Finding(CHECK, "fail", "the champion's selection", message))
    who = "The champion's single member was" if len(members) == 1 else f"The champion's {len(members)} members were"
    agents = f"the {len(recomputed)} best agent{'s' * (len(recomputed) != 1)}, which the leaderboard keeps,"
    message = f"{who} selected from {agents} by the validation bars."
    return found or [Finding(CHECK, "pass", "the champion's selection", message)]


def _first_value_after(values: Floats, last: int) -> int:
    """First bar after `last` that has a value, else the last bar. values: [T, N]."""
    later = np.flatnonzero(np.isfinite(values[last + 1 :]).any(1))
    return last + 1 + int(later[0]) if len(later) else len(values) - 1
