"""Leakage between splits: what was fitted or chosen must not have seen the bars that it is judged on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from finrl_pod.data.normalise import fit_normaliser
from finrl_pod.data.splits import Splits
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import Floats, MarketTensor, Normaliser

CHECK = "leakage"
FITTED_TOLERANCE = 1e-4  # of a feature's own deviation: features are stored in float32
SCORE_TOLERANCE = 1e-3  # of a Sharpe ratio a year: members are scored in float32
ARRIVES = 2  # bars from a decision to the end of the interval that it earns


def fitted(market: MarketTensor, normaliser: Normaliser, train: tuple[int, int]) -> list[Finding]:
    """The normaliser in use is the one that the training bars (first and last) alone give."""
    raw, tradable = market.raw_features.double().cpu().numpy(), market.tradable.cpu().numpy()
    columns = [market.feature_names.index(name) for name in normaliser.feature_names]
    honest = fit_normaliser(raw[..., columns], tradable, *train, normaliser.feature_names)
    found = []
    for i, name in enumerate(normaliser.feature_names):
        spread = honest.std[i]
        shift = abs(normaliser.mean[i] - honest.mean[i]) / spread
        scale = abs(normaliser.std[i] - spread) / spread
        if max(shift, scale) > FITTED_TOLERANCE:
            bar = _first_beyond(raw[..., columns[i]], train[1])
            when = str(market.times[bar].astype("datetime64[D]"))
            message = (
                f"The normaliser of {name} was not fitted on the training bars alone: its mean is {shift:.3g} and its "
                f"deviation {scale:.3g} training deviations off; the first bar that it should not have seen is {when}."
            )
            found.append(Finding(CHECK, "fail", f"the normaliser of {name}", message, when, max(shift, scale)))
    if found:
        return found
    count = len(normaliser.feature_names)
    return [Finding(CHECK, "pass", "normaliser", f"The normaliser of {count} features saw the training bars alone.")]


def separated(splits: Splits, last_decision: int | None = None) -> list[Finding]:
    """Splits follow one another, and no reward of one reaches a bar of the next.

    last_decision: last bar at which the training environments decide; None where nothing was trained.
    """
    found = []
    spans = (("train", splits.train), ("validation", splits.validation), ("test", splits.test))
    for (earlier, a), (later, b) in pairwise(spans):
        if a.last >= b.first:
            bar = str(splits.times[b.first].astype("datetime64[D]"))
            found.append(
                Finding(CHECK, "fail", f"{earlier} and {later}", f"{earlier} and {later} share bars from {bar}.", bar)
            )
        elif a.last + ARRIVES > b.first and last_decision is None:
            bar = str(splits.times[b.first].astype("datetime64[D]"))
            message = (
                f"The embargo of {splits.embargo} bars is short: what is decided in {earlier} may earn in {later}."
            )
            found.append(Finding(CHECK, "warn", "embargo", message, bar, splits.embargo))
    if last_decision is not None and last_decision + ARRIVES > splits.train.last:
        reached = min(last_decision + ARRIVES, len(splits.times) - 1)
        bar = str(splits.times[reached].astype("datetime64[D]"))
        message = f"Training environments are rewarded up to {bar}, beyond the last training bar."
        found.append(Finding(CHECK, "fail", "training environments", message, bar))
    return found or [Finding(CHECK, "pass", "splits", "Train, validation and test share no bar and no reward.")]


def chosen_on_validation(
    recorded: Mapping[str, float], recomputed: Mapping[str, float], members: Sequence[str]
) -> list[Finding]:
    """The champion's members are the best by their own validation scores, computed anew from the saved agents.

    recorded: the leaderboard, id -> score; recomputed: the same agents scored again on the validation bars.
    """
    off = {agent: abs(recorded[agent] - recomputed[agent]) for agent in recorded}
    wrong = [agent for agent, error in off.items() if not error <= SCORE_TOLERANCE]
    found = []
    if wrong:
        agent = wrong[0]
        message = (
            f"The score of {agent} on the leaderboard, {recorded[agent]:.4f}, is not its Sharpe ratio on the "
            f"validation bars, {recomputed[agent]:.4f}: the champion was picked on other bars ({len(wrong)} of "
            f"{len(off)} scores are off)."
        )
        found.append(Finding(CHECK, "fail", "the champion's selection", message, None, off[agent]))
    worst = min(recomputed[agent] for agent in members)
    passed_over = [a for a in recomputed if a not in members and recomputed[a] > worst + SCORE_TOLERANCE]
    if passed_over and not wrong:
        best = max(passed_over, key=lambda a: recomputed[a])
        message = (
            f"The champion was not picked by validation: {best} has a Sharpe ratio of {recomputed[best]:.4f} there and "
            f"was passed over for a member with {worst:.4f}."
        )
        found.append(Finding(CHECK, "fail", "the champion's selection", message, None, recomputed[best] - worst))
    text = f"The champion's {len(members)} members are the best of {len(recomputed)} on the validation bars."
    return found or [Finding(CHECK, "pass", "the champion's selection", text)]


def _first_beyond(values: Floats, last: int) -> int:
    """The first bar after `last` that has a value, or the last bar."""
    later = np.flatnonzero(np.isfinite(values[last + 1 :]).any(1))
    return last + 1 + int(later[0]) if len(later) else len(values) - 1
