"""Champions of runs: load as strategies, build markets with their features, simulate single members."""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import Ledger
from finrl_pod.rl.acting.member_accounts import run_members
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers, champion_of
from finrl_pod.types import AgentSnapshot, MarketTensor, Panel


def load_champion(run: RunDirectory, members: ChampionMembers) -> PolicyStrategy:
    """The ensemble of a run as a strategy."""
    return PolicyStrategy([run.snapshot(agent) for agent in members.ids], members.ensemble_weights, rule=members.rule)


def saved_members(run: RunDirectory) -> ChampionMembers:
    """Members of a run's champion. Raises InputError for a run without an agent, RunError if files are missing."""
    return champion_of(run, run.config)


def champion_market(champion: PolicyStrategy, panel: Panel, config: RunConfig) -> MarketTensor:
    """Market with the raw features of a champion, which normalises them itself."""
    champion.check_universe(panel.symbols)
    names = champion.feature_names
    return build_market(panel, names, (0, len(panel.times) - 1), config.environment.fill)


def member_ledgers(
    agents: Sequence[AgentSnapshot], market: MarketTensor, config: RunConfig, first: int, last: int
) -> list[tuple[Sequence[int], Ledger]]:
    """Simulate each agent on a separate account from bar first to last.

    Returns one (indices in `agents`, ledger) for each group of agents with the same specification.
    """
    return [
        (members, run_members(actor, params, market, config.environment, first, last, config.mandate))
        for actor, params, members in PolicyStrategy(agents).groups
    ]
