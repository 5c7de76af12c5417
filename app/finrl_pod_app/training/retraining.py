"""`finrl-pod retrain`: newer prices, a new tournament, the gate, and a promoted champion for the paper daemon."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import make_splits
from finrl_pod.promotion.gate import read_verdict
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import check_strategy_name, hand_over, last_handover
from finrl_pod.registry.records import Champion
from finrl_pod.settings.run import RunConfig, SplitConfig
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.types import Panel
from finrl_pod_app.prices.data_refresh import refresh_panel
from finrl_pod_app.prices.panels import load_panel
from finrl_pod_app.training.tournaments import run_tournament


def retrain(
    config: RunConfig,
    strategy: str,
    out: Path,
    registry: AgentRegistry,
    *,
    stored: bool = False,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Train on prices as new as the config's source has, and hand the champion over if the gate promotes it.

    A refused champion changes nothing: it is not stored in the registry. stored: do not look for newer prices. resume:
    continue an interrupted run in `out`, on the stored prices. Returns JSON values.

    Raises RegistryError for an invalid name and a registry that cannot be written, before anything is trained.
    """
    check_strategy_name(strategy)
    registry.check_writable()
    before = last_handover(registry, strategy)
    if not (stored or resume):
        refresh_panel(config.data.name)
    panel = load_panel(config)
    config = dataclasses.replace(config, splits=moved_splits(config.splits, panel))
    run_tournament(config, out, resume=resume, device=device, progress=progress)
    verdict = read_verdict(out)
    promoted, reasons = verdict.promoted, list(verdict.reasons)
    champion: Champion | None = registry.push(out) if promoted else None
    if champion is not None and before is not None and champion.ensemble in before.withdrawn:
        reasons = [f"strategy {strategy!r} was rolled back from these agents before"]
        champion = None
    change = before if champion is None else hand_over(registry, strategy, champion)
    return {
        "out": str(out),
        "strategy": strategy,
        "registry": registry.store.address,
        "data": {"name": config.data.name, "sha256": panel.sha256, "last": stamp(panel.times[-1], panel.bar)},
        "splits": dataclasses.asdict(config.splits),
        "promoted": promoted,
        "reasons": reasons,
        "handed_over": champion is not None,
        "champion": None if change is None else change.champion,
        "previous": None if change is None else change.previous,
    }


def moved_splits(splits: SplitConfig, panel: Panel) -> SplitConfig:
    """Splits whose test ends at a panel's last bar: test and validation keep their number of bars, train grows.

    Raises DataError if the config's own dates do not fit the panel.
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
