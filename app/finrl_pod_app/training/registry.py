"""The work of `finrl-pod registry` and `finrl-pod retrain`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import RegistryError
from finrl_pod.promotion.verdict import read_verdict
from finrl_pod.registry.agent_registry import AgentRegistry, champion_key
from finrl_pod.registry.handover import check_strategy_name, hand_over, handovers, last_handover, strategies
from finrl_pod.registry.records import AgentRecord, Champion
from finrl_pod.settings.run import RunConfig, SplitConfig
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.types import Panel
from finrl_pod_app.prices.price_updates import update_prices
from finrl_pod_app.prices.stored_prices import load_panel, with_stored_splits
from finrl_pod_app.training.tournaments import run_tournament


def list_registry(registry: AgentRegistry) -> dict[str, Any]:
    """All champions, oldest first, and the strategies that champions were handed over to."""
    changes = {name: last_handover(registry, name) for name in strategies(registry)}
    champions = [
        {
            "address": champion.address,
            "run": champion.run,
            "algorithms": sorted({agent.algorithm for agent in champion.members}),
            "members": [agent.id for agent in champion.members],
            "agents": len(champion.agents),
            "data": champion.data,
            "data_sha256": champion.data_sha256,
            "promoted": champion.promoted,
            "stored": _storage_time(registry, champion.address),
            "strategies": [name for name, change in changes.items() if change and change.champion == champion.address],
        }
        for champion in registry.champions()
    ]
    return {
        "registry": registry.store.address,
        "champions": champions,
        "strategies": [
            {"name": name, "champion": change.champion, "previous": change.previous, "since": change.at}
            for name, change in changes.items()
            if change is not None
        ],
    }


def show_entry(registry: AgentRegistry, text: str) -> dict[str, Any]:
    """A champion with its agents and hand-overs, or an agent. text: an address or its beginning, or a strategy name.

    Raises RegistryError if there is none.
    """
    if text in strategies(registry):
        changes = handovers(registry, text)
        return {"strategy": text, "changes": [dataclasses.asdict(change) for change in changes]}
    entry = find(registry, text)
    if isinstance(entry, Champion):
        changes = [change for name in strategies(registry) for change in handovers(registry, name)]
        verdict = json.loads(registry.object(entry.files["verdict.json"]))
        return {
            "address": entry.address,
            **dataclasses.asdict(entry),
            "stored": _storage_time(registry, entry.address),
            "reasons": verdict["reasons"],
            "handovers": [
                {"strategy": change.strategy, "action": change.action, "at": change.at, "by": change.by}
                for change in changes
                if change.champion == entry.address
            ],
        }
    agent, champion = entry
    facts = json.loads(registry.object(agent.address))
    shown_facts = ("hyperparameters", "data_sha256", "seed", "version", "tensors_sha256")
    return {
        **dataclasses.asdict(agent),
        "run": champion.run,
        "champion": champion.address,
        **{name: facts[name] for name in shown_facts},
    }


def find(registry: AgentRegistry, text: str) -> Champion | tuple[AgentRecord, Champion]:
    """The champion or agent with an address or its beginning. Raises RegistryError if there is none, or several."""
    try:
        return registry.champion(text)
    except RegistryError as no_champion:
        try:
            return registry.agent(text)
        except RegistryError:
            raise no_champion from None


def _storage_time(registry: AgentRegistry, address: str) -> str | None:
    time = registry.store.modification_time(champion_key(address))
    return None if time is None else time.isoformat(timespec="seconds")


def retrain(
    config: RunConfig,
    strategy: str,
    out: Path,
    registry: AgentRegistry,
    *,
    use_stored: bool = False,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train on the newest prices of the data source, and hand the champion over if the gate promotes it.

    Symbols in the config that the prices lack are left out. A refused champion changes nothing: it is not stored in the
    registry. use_stored: do not look for newer prices. resume: continue an interrupted run in `out`, on the stored
    prices. on_note: called with what changed in prices and config. Returns JSON values.

    Raises RegistryError for an invalid name and a registry that cannot be written, before anything is trained.
    """
    check_strategy_name(strategy)
    registry.check_writable()
    last_change = last_handover(registry, strategy)
    name = config.data.name
    update = None if use_stored or resume else update_prices(name)
    config, dropped_symbols = without_missing_symbols(config, Store().show(name).symbols)
    if update is not None:
        on_note(update.text())
    if dropped_symbols:
        on_note(f"left out of data.symbols and groups, as {name!r} lacks them: {', '.join(dropped_symbols)}")
    panel = load_panel(config)
    config = with_stored_splits(config, out if resume else None)
    config = dataclasses.replace(config, splits=moved_splits(config.splits, panel))
    run_tournament(config, out, resume=resume, device=device, progress=progress)
    verdict = read_verdict(out)
    promoted = verdict.promoted
    reasons = list(verdict.reasons)
    champion: Champion | None = registry.push(out) if promoted else None
    if champion is not None and last_change is not None and champion.ensemble in last_change.withdrawn:
        reasons = [f"strategy {strategy!r} was rolled back from these agents before"]
        champion = None
    change = last_change if champion is None else hand_over(registry, strategy, champion)
    return {
        "out": str(out),
        "strategy": strategy,
        "registry": registry.store.address,
        "data": {"name": name, "sha256": panel.sha256, "last": stamp(panel.times[-1], panel.bar)},
        "update": None if update is None else update.document(),
        "dropped": dropped_symbols,
        "splits": dataclasses.asdict(config.splits),
        "promoted": promoted,
        "reasons": reasons,
        "handed_over": champion is not None,
        "champion": None if change is None else change.champion,
        "previous": None if change is None else change.previous,
    }


def without_missing_symbols(config: RunConfig, symbols: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """The config without symbols that its prices lack, and these symbols. symbols: symbols of the prices.

    A group without any other symbol is left out.
    """
    selected_symbols = tuple(symbol for symbol in config.data.symbols if symbol in symbols)
    groups = [
        dataclasses.replace(group, symbols=tuple(symbol for symbol in group.symbols if symbol in symbols))
        for group in config.mandate.groups
    ]
    named_symbols = [*config.data.symbols, *(symbol for group in config.mandate.groups for symbol in group.symbols)]
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, symbols=selected_symbols or config.data.symbols),
        mandate=dataclasses.replace(config.mandate, groups=tuple(group for group in groups if group.symbols)),
    )
    return config, [symbol for symbol in dict.fromkeys(named_symbols) if symbol not in symbols]


def moved_splits(splits: SplitConfig, panel: Panel) -> SplitConfig:
    """Splits whose test ends at the last bar of a panel: test and validation keep their number of bars, train grows.

    Raises DataError if the dates of the config do not fit the panel.
    """
    spans = make_splits(panel.times, splits)
    test = len(panel.times) - len(spans.test)
    validation = test - len(spans.validation) - splits.embargo

    def dates(first: int, last: int) -> tuple[str, str]:
        return stamp(panel.times[first], panel.bar), stamp(panel.times[last], panel.bar)

    return dataclasses.replace(
        splits,
        train=(splits.train[0], dates(0, validation - 1)[1]),
        validation=dates(validation, test - 1),
        test=dates(test, len(panel.times) - 1),
    )
