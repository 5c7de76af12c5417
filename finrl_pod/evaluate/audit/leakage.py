"""Check leakage between splits: nothing may be fitted on or selected by the bars that it is evaluated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from finrl_pod.data.blocks import copy_of_feature
from finrl_pod.data.splits import Splits
from finrl_pod.data.tensor import fit_normaliser
from finrl_pod.errors import count_text
from finrl_pod.evaluate.audit.pipeline import Finding
from finrl_pod.types import MarketTensor, Normaliser

CHECK = "leakage"
NORMALISER_TOLERANCE = 1e-4  # relative to the deviation of a feature: features are stored in float32
SCORE_TOLERANCE = 1e-3  # of an annual Sharpe ratio: members are scored in float32
SHARE_TOLERANCE = 1e-6  # for shares of members in an ensemble
REWARD_BARS = 2  # from a decision to the end of the interval that its reward covers


def check_normaliser(market: MarketTensor, normaliser: Normaliser, train: tuple[int, int]) -> list[Finding]:
    """Refit the normaliser on the training bars (first, last) and require the same mean and deviation."""
    findings = []
    first, last = train
    raw = market.raw_features.cpu().numpy()
    tradable = market.tradable[first : last + 1].cpu().numpy()
    for i, name in enumerate(normaliser.feature_names):
        column = market.feature_names.index(name)
        values = copy_of_feature(raw[first : last + 1], column).astype(np.float64)
        expected_normaliser = fit_normaliser(values[..., None], tradable, 0, last - first, (name,))
        spread = expected_normaliser.std[0]
        shift = abs(normaliser.mean[i] - expected_normaliser.mean[0]) / spread
        scale = abs(normaliser.std[i] - spread) / spread
        if max(shift, scale) > NORMALISER_TOLERANCE:
            later_bars = np.flatnonzero(np.isfinite(raw[last + 1 :, :, column]).any(1))
            bar = last + 1 + later_bars[0] if len(later_bars) else len(raw) - 1
            date = str(market.times[bar].astype("datetime64[D]"))
            message = (
                f"The normaliser of {name} was not fitted on the training bars only: its mean is off by {shift:.3g} "
                f"and its deviation by {scale:.3g} training deviations. The first later bar is {date}."
            )
            findings.append(Finding(CHECK, "fail", f"the normaliser of {name}", message, date, max(shift, scale)))
    if findings:
        return findings
    count = len(normaliser.feature_names)
    message = f"The normaliser of {count_text(count, 'feature')} was fitted on the training bars only."
    return [Finding(CHECK, "pass", "normaliser", message)]


def check_splits(splits: Splits, last_decision: int | None = None) -> list[Finding]:
    """Require that splits do not overlap and that no reward of one reaches into the next.

    last_decision: last bar at which the training environments decide; None if nothing was trained.
    """
    findings = []
    spans = (("train", splits.train), ("validation", splits.validation), ("test", splits.test))
    for (first_name, a), (second_name, b) in pairwise(spans):
        bar = str(splits.times[b.first].astype("datetime64[D]"))
        if a.last >= b.first:
            message = f"{first_name} and {second_name} share bars from {bar}."
            findings.append(Finding(CHECK, "fail", f"{first_name} and {second_name}", message, bar))
        elif a.last + REWARD_BARS > b.first and last_decision is None:
            message = (
                f"The embargo of {count_text(splits.embargo, 'bar')} is too short: decisions in {first_name} can earn "
                f"returns in {second_name}."
            )
            findings.append(Finding(CHECK, "warn", "embargo", message, bar, splits.embargo))
    if last_decision is not None and last_decision + REWARD_BARS > splits.train.last:
        last_bar = min(last_decision + REWARD_BARS, len(splits.times) - 1)
        bar = str(splits.times[last_bar].astype("datetime64[D]"))
        message = f"Training environments are rewarded up to {bar}, beyond the last training bar."
        findings.append(Finding(CHECK, "fail", "training environments", message, bar))
    message = "Train, validation and test share no bar and no reward."
    return findings or [Finding(CHECK, "pass", "splits", message)]


def check_selection(
    recorded_scores: Mapping[str, Sequence[float]],
    recomputed_scores: Mapping[str, float],
    members: Mapping[str, float],
    selected_shares: Mapping[str, float],
) -> list[Finding]:
    """Require that the champion was selected by what its agents do on the validation bars.

    recorded_scores: id -> score on the leaderboard and score of the saved returns. recomputed_scores: scores of the
    same agents, computed again on the validation bars. members, selected_shares: id -> share in the ensemble, of the
    champion and by the rule of selection applied to the recorded scores.
    """
    score_errors = {
        agent: max(abs(x - recomputed_scores[agent]) for x in recorded_scores[agent]) for agent in recorded_scores
    }
    wrong = [agent for agent, error in score_errors.items() if not error <= SCORE_TOLERANCE]
    findings = []
    if wrong:
        agent = wrong[0]
        message = (
            f"The leaderboard score of {agent}, {recorded_scores[agent][0]:.4f}, differs from its Sharpe ratio on the "
            f"validation bars, {recomputed_scores[agent]:.4f}: the champion was selected on other bars "
            f"({len(wrong)} of {len(score_errors)} scores differ)."
        )
        findings.append(Finding(CHECK, "fail", "the champion's selection", message, None, score_errors[agent]))
    off_shares = {
        agent: abs(share - selected_shares[agent]) for agent, share in members.items() if agent in selected_shares
    }
    if set(members) == set(selected_shares) and max(off_shares.values(), default=0.0) > SHARE_TOLERANCE:
        agent = max(off_shares, key=off_shares.__getitem__)
        message = (
            f"The champion's ensemble was not weighted by validation: the share of {agent} is {members[agent]:.3f}, "
            f"and the rule of selection gives {selected_shares[agent]:.3f}."
        )
        findings.append(Finding(CHECK, "fail", "the champion's shares", message, None, members[agent]))
    if set(members) != set(selected_shares):
        message = (
            f"The champion was not selected by validation: it consists of {', '.join(members)}, and validation selects "
            f"{', '.join(selected_shares)}."
        )
        findings.append(Finding(CHECK, "fail", "the champion's selection", message))
    subject = "The champion's single member was" if len(members) == 1 else f"The champion's {len(members)} members were"
    agents = f"the {count_text(len(recomputed_scores), 'best agent')} on the leaderboard"
    message = f"{subject} selected from {agents} by the validation bars."
    return findings or [Finding(CHECK, "pass", "the champion's selection", message)]
