"""What agents observe of an account beyond cash and holdings, where rewards or fills depend on more.

In this order: blocks of one number per asset (target weights that wait under a delay, oldest first; the mandate's
virtual holdings where fills can fall short of them), then numbers of the whole account (the reward state as known at
the close; what is left of the turnover budget, as a share of the largest). Environments take them from their state,
`AccountTracker` follows them outside of one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import torch

from finrl_pod.market.mandate import active_mandate, initial_budget, limits_names
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
    observes_budget = bounds is not None and bounds.max_turnover > 0
    per_asset = config.delay - 1 + observes_virtual(config, bounds)
    return AccountExtras(per_asset, RewardState(config).size + observes_budget)


def observes_virtual(config: EnvironmentConfig, mandate: MandateConfig | None) -> bool:
    """Whether virtual holdings are observed: few names, whole shares and limited volumes fall short of them."""
    return mandate is not None and (config.whole_shares or config.participation > 0 or limits_names(mandate))


def joined_extras(
    current_weights: Tensor,
    pending: list[Tensor],
    virtual: Tensor | None,
    reward_state: Tensor | None,
    budget: Tensor | None,
    mandate: MandateConfig | None,
) -> Tensor:
    """Extras [..., X] of accounts with these current weights [..., N].

    pending: target weights [..., N], oldest first, NaN where nothing is traded; observed as what is held. virtual:
    [..., N]; reward_state: [..., S] as observed; budget: [...] of turnover. None for what is not observed.
    """
    blocks = [torch.where(torch.isnan(weights), current_weights, weights) for weights in pending]
    blocks += [x for x in (virtual, reward_state) if x is not None]
    if budget is not None:
        assert mandate is not None
        blocks.append(budget.unsqueeze(-1) / initial_budget(mandate))
    return torch.cat(blocks, -1)


class TrackerState(TypedDict):
    """State of an `AccountTracker` as JSON; weights by symbol, None where nothing is known.

    before: equity at the fill before the last one.
    """

    pending: list[dict[str, float | None] | None]
    reward_state: list[float] | None
    held: dict[str, float | None] | None
    equity: float | None
    before: float | None


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
        self._weights: Tensor | None = None  # [B, N] at the last decision
        self._equity: Tensor | None = None  # [B] at the last decision
        self._equity_at_fill: Tensor | None = None  # [B] at the fill of the decision before that, ahead of its trades
        self.is_empty = not any(account_extras(config, mandate))

    def observe(
        self,
        weights: Tensor,
        equity: Tensor,
        filled: Tensor,
        virtual: Tensor | None = None,
        budget: Tensor | None = None,
    ) -> Tensor | None:
        """Extras [B, X] at a decision, None if there are none.

        weights: [B, N] weights; equity: [B] in currency; filled: [N], price at which the last decision was filled
        relative to the close that it was taken at. virtual: [B, N] and budget: [B] of the mandate.
        """
        if self.is_empty:
            return None
        reward_state = self._reward.initial((len(weights),), weights.dtype, weights.device)
        if reward_state is not None:
            reward_state = self._state_at_close(reward_state, equity, filled)
            reward_state = self._reward.observed(reward_state)
        self._weights = weights
        self._equity = equity
        nothing = torch.full_like(weights, torch.nan)
        pending = [nothing if target is None else target for target in self._pending]
        return joined_extras(
            weights, pending, virtual if self._with_virtual else None, reward_state, budget, self._mandate
        )

    def decided(self, target: Tensor | None) -> None:
        """Note the target weights [B, N] of the decision, None or NaN where the holdings are kept."""
        if self._pending.maxlen:
            self._pending.append(target)

    def state(self, symbols: Sequence[str]) -> TrackerState:
        """What is known of one account (B = 1) after a decision, as plain JSON values. symbols: [N]."""
        assert self._weights is None or len(self._weights) == 1
        return {
            "pending": [None if target is None else _by_symbol(target, symbols) for target in self._pending],
            "reward_state": None if self._state is None else self._state[0].tolist(),
            "held": None if self._weights is None else _by_symbol(self._weights, symbols),
            "equity": None if self._equity is None else float(self._equity[0]),
            "before": None if self._equity_at_fill is None else float(self._equity_at_fill[0]),
        }

    def restore(self, state: TrackerState, symbols: Sequence[str]) -> None:
        """Continue from `state`; a symbol that it lacks was not held, and no pending order trades it."""
        number = torch.float64
        self._pending.clear()
        self._pending.extend(
            None if target is None else _of_symbols(target, symbols, torch.nan) for target in state["pending"]
        )
        reward_state = state["reward_state"]
        weights = state["held"]
        self._state = None if reward_state is None else torch.tensor([reward_state], dtype=number)
        self._weights = None if weights is None else _of_symbols(weights, symbols, 0.0)
        self._equity, self._equity_at_fill = (
            None if state[name] is None else torch.tensor([state[name]], dtype=number) for name in ("equity", "before")
        )

    def _state_at_close(self, initial: Tensor, equity: Tensor, filled: Tensor) -> Tensor:
        """The reward state [B, S] at the close, after booking the interval between the last two fills."""
        if self._weights is None or self._equity is None or self._state is None:
            self._state = initial
            return initial
        equity_at_fill = self._equity * (1 + (self._weights * (filled - 1)).sum(-1))
        if self._equity_at_fill is not None:
            self._state = self._reward.advance(self._equity_at_fill, equity_at_fill, self._state)
        self._equity_at_fill = equity_at_fill
        return self._reward.advance(equity_at_fill, equity, self._state)


def _by_symbol(weights: Tensor, symbols: Sequence[str]) -> dict[str, float | None]:
    """Weights [1, N] by symbol; None where they are NaN."""
    return {symbol: None if math.isnan(w) else w for symbol, w in zip(symbols, weights[0].tolist(), strict=True)}


def _of_symbols(weights: Mapping[str, float | None], symbols: Sequence[str], missing: float) -> Tensor:
    """`_by_symbol` reversed: [1, N] float64."""
    values = [weights.get(symbol, missing) for symbol in symbols]
    return torch.tensor([[torch.nan if w is None else w for w in values]], dtype=torch.float64)
