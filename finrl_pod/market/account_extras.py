"""What agents observe of an account beyond cash and holdings, where rewards or fills depend on more.

In this order: blocks of one number per asset (target weights that wait under a delay, oldest first; the mandate's
virtual holdings where fills can fall short of them), then numbers of the whole account (the reward's state as known at
the close; what is left of the turnover budget, as a share of the largest). Environments take them from their state,
`AccountTracker` follows them outside of one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from finrl_pod.market.mandate import active_mandate, initial_budget
from finrl_pod.market.rewards import RewardState
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Tensor


class AccountExtras(NamedTuple):
    """Numbers per asset and per account that are observed besides cash and holdings."""

    per_asset: int = 0
    per_account: int = 0

    def size(self, assets: int) -> int:
        """Numbers of an account of that many assets."""
        return self.per_asset * assets + self.per_account


def account_extras(config: EnvironmentConfig, mandate: MandateConfig | None) -> AccountExtras:
    """The extras of accounts under these rules; none by default."""
    bounds = active_mandate(mandate)
    return AccountExtras(
        config.delay - 1 + observes_virtual(config, bounds),
        RewardState(config).size + observes_budget(bounds),
    )


def observes_virtual(config: EnvironmentConfig, mandate: MandateConfig | None) -> bool:
    """Whether virtual holdings are observed: fills of whole shares or limited volumes fall short of them."""
    return mandate is not None and (config.whole_shares or config.participation > 0)


def observes_budget(mandate: MandateConfig | None) -> bool:
    """Whether a turnover budget is observed."""
    return mandate is not None and mandate.max_turnover > 0


def joined_extras(
    held: Tensor,
    pending: list[Tensor],
    virtual: Tensor | None,
    reward_state: Tensor | None,
    budget: Tensor | None,
    mandate: MandateConfig | None,
) -> Tensor:
    """Extras [..., X] of accounts that hold the weights [..., N].

    pending: target weights [..., N], oldest first, NaN where nothing is traded; observed as what is held. virtual:
    [..., N]; reward_state: [..., S] as observed; budget: [...] of turnover. None for what is not observed.
    """
    parts = [torch.where(torch.isnan(weights), held, weights) for weights in pending]
    parts += [x for x in (virtual, reward_state) if x is not None]
    if budget is not None:
        assert mandate is not None
        parts.append(budget.unsqueeze(-1) / initial_budget(mandate))
    return torch.cat(parts, -1)


class AccountTracker:
    """Extras of B accounts that are followed from decision to decision outside an environment, in float64.

    Call `observe` and then `decided` at every bar.
    """

    def __init__(self, config: EnvironmentConfig, mandate: MandateConfig | None) -> None:
        self._mandate = active_mandate(mandate)
        self._with_virtual = observes_virtual(config, self._mandate)
        self._reward = RewardState(config)
        self._pending: deque[Tensor | None] = deque([None] * (config.delay - 1), maxlen=config.delay - 1)
        self._state: Tensor | None = None  # [B, S] as of the last fill whose trades are known
        self._held: Tensor | None = None  # [B, N] at the last decision
        self._equity: Tensor | None = None  # [B] at the last decision
        self._before: Tensor | None = None  # [B] equity at the fill of the decision before that, ahead of its trades
        self.is_empty = not any(account_extras(config, mandate))

    def observe(
        self, held: Tensor, equity: Tensor, filled: Tensor, virtual: Tensor | None = None, budget: Tensor | None = None
    ) -> Tensor | None:
        """Extras [B, X] at a decision, None if there are none.

        held: [B, N] weights; equity: [B] in currency; filled: [N], price at which the last decision was filled
        relative to the close that it was taken at. virtual: [B, N] and budget: [B] of the mandate.
        """
        if self.is_empty:
            return None
        known = self._reward.initial((len(held),), held.dtype, held.device)
        if known is not None:
            known = self._marked(known, equity, filled)
            known = self._reward.observed(known)
        self._held = held
        self._equity = equity
        nothing = torch.full_like(held, torch.nan)
        pending = [nothing if target is None else target for target in self._pending]
        return joined_extras(held, pending, virtual if self._with_virtual else None, known, budget, self._mandate)

    def decided(self, target: Tensor | None) -> None:
        """Note the target weights [B, N] of the decision, None or NaN where the holdings are kept."""
        if self._pending.maxlen:
            self._pending.append(target)

    def state(self, symbols: Sequence[str]) -> dict[str, Any]:
        """What is known of one account (B = 1) after a decision, as plain JSON values. symbols: [N]."""
        assert self._held is None or len(self._held) == 1
        return {
            "pending": [None if target is None else _by_symbol(target, symbols) for target in self._pending],
            "reward_state": None if self._state is None else self._state[0].tolist(),
            "held": None if self._held is None else _by_symbol(self._held, symbols),
            "equity": None if self._equity is None else float(self._equity[0]),
            "before": None if self._before is None else float(self._before[0]),
        }

    def restore(self, state: Mapping[str, Any], symbols: Sequence[str]) -> None:
        """Continue from `state`; a symbol that it lacks was not held, and no pending order trades it."""
        number = torch.float64
        self._pending.clear()
        self._pending.extend(
            None if target is None else _of_symbols(target, symbols, torch.nan) for target in state["pending"]
        )
        known = state["reward_state"]
        held = state["held"]
        self._state = None if known is None else torch.tensor([known], dtype=number)
        self._held = None if held is None else _of_symbols(held, symbols, 0.0)
        self._equity, self._before = (
            None if state[name] is None else torch.tensor([state[name]], dtype=number) for name in ("equity", "before")
        )

    def _marked(self, initial: Tensor, equity: Tensor, filled: Tensor) -> Tensor:
        """The reward's state [B, S] at the close, after booking the interval between the last two fills."""
        if self._held is None or self._equity is None or self._state is None:
            self._state = initial
            return initial
        before = self._equity * (1 + (self._held * (filled - 1)).sum(-1))
        if self._before is not None:
            self._state = self._reward.advance(self._before, before, self._state)
        self._before = before
        return self._reward.advance(before, equity, self._state)


def _by_symbol(weights: Tensor, symbols: Sequence[str]) -> dict[str, float | None]:
    """Weights [1, N] by symbol; None where they are NaN."""
    return {symbol: None if math.isnan(w) else w for symbol, w in zip(symbols, weights[0].tolist(), strict=True)}


def _of_symbols(weights: Mapping[str, float | None], symbols: Sequence[str], missing: float) -> Tensor:
    """`_by_symbol` reversed: [1, N] float64."""
    found = [weights.get(symbol, missing) for symbol in symbols]
    return torch.tensor([[torch.nan if w is None else w for w in found]], dtype=torch.float64)
