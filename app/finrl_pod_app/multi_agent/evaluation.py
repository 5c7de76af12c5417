"""Exact scores of trained agents: their greedy schedules and quotes against the optimum of the simulated market."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.market.optimal_execution import best_response_gains, equilibrium
from finrl_pod.market.optimal_quotes import evaluate_quotes, solve_quotes, visited_inventories
from finrl_pod.rl.multi_agent.training import JointPolicy
from finrl_pod.types import Floats, JointObservation


@dataclass(frozen=True, eq=False)
class QuoteScore:
    """Quotes of a maker, [N, 2Q + 1], and how near they are to the optimum of the simulated steps.

    share: value at inventory 0 over the optimum's. visited: [2Q + 1], share of time at each inventory.
    """

    bid: Floats
    ask: Floats
    share: float
    visited: Floats

    @property
    def spread(self) -> float:
        """Quoted spread at the start without inventory."""
        middle = self.bid.shape[1] // 2
        return float(self.bid[0, middle] + self.ask[0, middle])


def execution_trades(policy: JointPolicy, market: ExecutionMarket, seed: int = 0) -> tuple[Floats, Floats]:
    """Orders [E, M] and greedy trades [E, M, N steps] of member 0 in the first asset, over one episode."""
    observation = market.reset(seed)
    orders, trades = market.left[0, :, :, 0].double().numpy(), []
    for j in range(market.config.steps):
        before = market.left[0, :, :, 0].clone()
        observation = market.step(policy.act(observation)).observation
        last = j == market.config.steps - 1  # the next episode has begun
        trades.append(before if last else before - market.left[0, :, :, 0])
    return orders, torch.stack(trades, -1).double().numpy()


def excess_cost(orders: Floats, trades: Floats, market: ExecutionMarket, cooperation: float) -> float:
    """Mean cost + risk of all agents over that of the optimum (a team) or equilibrium, less 1.

    orders [E, M], trades [E, M, N]. The cost that no schedule changes, permanent (sum of orders)^2 / 2, is left out.
    """
    game, agents = market.game(), orders.shape[1]
    # The solution is linear in the orders: one for each agent's unit order.
    unit = np.stack([equilibrium(np.eye(agents)[i], game, cooperation) for i in range(agents)])  # [M, M, N]
    best = np.einsum("em,mkn->ekn", orders, unit)
    fixed = market.config.permanent * orders.sum(-1) ** 2 / 2
    cost, least = (float((game.objectives(orders, x).sum(-1) - fixed).mean()) for x in (trades, best))
    return cost / least - 1


def exploitability(orders: Floats, trades: Floats, market: ExecutionMarket) -> Floats:
    """What each agent would gain by his best response, over the cost of the largest order: [M]. One market [M, N]."""
    game = market.game()
    largest = np.abs(orders).argmax()
    return np.asarray(best_response_gains(orders, trades, game) / game.objectives(orders, trades)[largest])


def quote_score(policy: JointPolicy, market: MakingMarket) -> QuoteScore:
    """Greedy quotes of a single maker at all times and inventories, and their exact value among noise traders."""
    config = market.config
    steps, levels = config.steps, 2 * config.max_inventory + 1
    held = torch.arange(-config.max_inventory, config.max_inventory + 1)
    time = torch.arange(steps, 0, -1) / steps
    own = torch.cat(
        [
            time.view(steps, 1, 1).expand(steps, levels, 1),
            (held / config.max_inventory).view(1, levels, 1).expand(steps, levels, 1),
            torch.eye(levels).expand(steps, levels, levels),
        ],
        -1,
    ).reshape(1, steps * levels, 1, -1)
    state = own[:, :, 0, :2]  # time left and the inventory
    quotes = market.distances(policy.act(JointObservation(own, state)))
    bid, ask = (x.double().numpy() for x in quotes.view(steps, levels, 2).unbind(-1))
    problem = market.problem()
    middle = config.max_inventory
    share = evaluate_quotes(problem, bid, ask)[0, middle] / solve_quotes(problem, steps).value[0, middle]
    return QuoteScore(bid, ask, float(share), visited_inventories(problem, bid, ask))
