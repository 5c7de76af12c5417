"""Sources of the daemon strategy: a baseline, a user file, the champion of a promoted run, or of the registry."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from finrl_pod_strategies.baselines import BASELINES, make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import load_user_strategy, strategy_hash

from finrl_pod import __version__
from finrl_pod.data.sources.feature_tables import missing_tables
from finrl_pod.errors import ConfigError, FinrlPodError, RegistryError, RunError
from finrl_pod.evaluate.active_management import ActiveBand
from finrl_pod.evaluate.intrabar_orders import orders_of
from finrl_pod.files import read_json
from finrl_pod.market.mandate import without_name_limits
from finrl_pod.paper.execution.trader import LoadedStrategy, StrategySource
from finrl_pod.paper.settings import PaperConfig, allocations
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.promotion.verdict import VERDICT_FILE, read_verdict
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import check_strategy_name, last_handover
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of
from finrl_pod.user_files import error_text, is_custom


def strategy_sources(config: PaperConfig, *, allow_unpromoted: bool = False) -> tuple[StrategySource, ...]:
    """Return the source of each strategy of a config, in the order of `allocations(config)`. Raises FinrlPodError."""
    return tuple(strategy_source(allocation, allow_unpromoted=allow_unpromoted) for allocation in allocations(config))


def strategy_source(config: PaperConfig, *, allow_unpromoted: bool = False) -> StrategySource:
    """Return the source that the config of a single strategy names. Raises FinrlPodError if it has none to trade."""
    source: StrategySource
    if is_custom(config.strategy):
        source = FixedSource(_user_strategy(config.strategy))
    elif config.strategy:
        digest = hashlib.sha256(f"{config.strategy} {__version__}".encode()).hexdigest()
        source = FixedSource(LoadedStrategy(make_baseline(config.strategy), digest, config.strategy))
    elif config.champion:
        source = RegistryChampion(config.champion, config.registry, config.symbols)
    else:
        source = PromotedRun(Path(config.run), config.symbols, allow_unpromoted=allow_unpromoted)
    source.current()
    return source


def log_deployments(config: PaperConfig) -> None:
    """Log each baseline that is traded as a look at earlier tests; none for the simulated clock of a fake server."""
    for allocation in allocations(config):
        if allocation.strategy in BASELINES and not config.broker.clock:
            TrialRegistry().log_deployment(allocation.strategy, config.symbols)


@dataclasses.dataclass(frozen=True)
class FixedSource:
    """A strategy that does not change while the daemon runs."""

    strategy: LoadedStrategy

    def current(self) -> LoadedStrategy:
        return self.strategy


def _user_strategy(reference: str) -> LoadedStrategy:
    """Load `file.py:Class` or `package.module:Class`. Raises InputError, or ConfigError for stops and limits."""
    strategy = load_user_strategy(reference)
    if orders_of(strategy) is not None:
        raise ConfigError(f"{reference} has stops or limits. Only backtests simulate them; the daemon has none")
    return LoadedStrategy(strategy, strategy_hash(reference), reference)


class PromotedRun:
    """The champion of a run, or of the newest promoted run in a folder of runs. Reloaded only if files changed."""

    def __init__(self, path: Path, symbols: tuple[str, ...], *, allow_unpromoted: bool = False) -> None:
        self._path = path
        self._symbols = symbols
        self._allow_unpromoted = allow_unpromoted
        self._current: tuple[tuple[Path, tuple[int, ...]], LoadedStrategy] | None = None

    def current(self) -> LoadedStrategy:
        """Return the champion. Raises RunError if no run is promoted or its files changed after the test."""
        with _readable(str(self._path)):
            report = self.newest_report()
            version = report, _modification_times(report.parent)
            if self._current is None or self._current[0] != version:
                champion = load_promoted(report.parent, self._symbols, allow_unpromoted=self._allow_unpromoted)
                self._current = version, champion
            return _with_table_warning(self._current[1])

    def newest_report(self) -> Path:
        """The report of the run that is traded. Raises RunError if no run is promoted."""
        own_report = self._path / "report.json"
        if own_report.is_file():
            return own_report
        # A folder of runs also holds reports of backtests and walk-forwards without a champion.
        runs = [path for path in self._path.glob("*/report.json") if (path.parent / "state.json").is_file()]
        promoted_reports = [path for path in runs if self._allow_unpromoted or _is_promoted(path.parent)]
        if not promoted_reports:
            raise RunError(f"{self._path} has no promoted run. Train one, or use --allow-unpromoted on a fake server.")
        return max(promoted_reports, key=lambda path: (path.stat().st_mtime_ns, str(path)))


class RegistryChampion:
    """The champion that was last handed over to a strategy in the registry of agents.

    Once it has one, it keeps it while the registry cannot be read, or a newer champion cannot be loaded.
    """

    def __init__(self, strategy: str, registry: str, symbols: tuple[str, ...]) -> None:
        """registry: address, empty for the default. Raises RegistryError for an invalid name or address."""
        check_strategy_name(strategy)
        self._strategy = strategy
        self._symbols = symbols
        self._registry = AgentRegistry(registry)
        self._current: tuple[str, LoadedStrategy] | None = None  # address

    def current(self) -> LoadedStrategy:
        """Return the champion. Raises RegistryError or RunError if there is none that can be traded."""
        try:
            change = last_handover(self._registry, self._strategy)
            if change is None:
                raise RegistryError(
                    f"no champion was handed over to strategy {self._strategy!r} in the registry "
                    f"{self._registry.store.address}; train one with: finrl-pod retrain CONFIG --strategy "
                    f"{self._strategy}"
                )
            if self._current is None or self._current[0] != change.champion:
                self._current = change.champion, self._load(change.champion)
        except (FinrlPodError, OSError) as error:
            if self._current is None:
                raise
            address, strategy = self._current
            return dataclasses.replace(strategy, warning=f"{error}; champion {address[:12]} is still traded")
        return _with_table_warning(self._current[1])

    def _load(self, address: str) -> LoadedStrategy:
        champion = self._registry.champion(address)
        with tempfile.TemporaryDirectory() as folder, _readable(f"champion {address[:12]}"):
            run = Path(folder) / "run"
            self._registry.pull(champion, run)  # verifies every hash
            champion_strategy = load_promoted(run, self._symbols)
        members = "+".join(agent.id for agent in champion.members)
        return dataclasses.replace(
            champion_strategy, sha256=address, detail=f"champion {address[:12]}: {champion.run} {members}"
        )


def _with_table_warning(loaded_strategy: LoadedStrategy) -> LoadedStrategy:
    """The strategy with a warning if files of its tables are missing now."""
    warning = missing_tables(loaded_strategy.strategy)
    return (
        loaded_strategy if warning == loaded_strategy.warning else dataclasses.replace(loaded_strategy, warning=warning)
    )


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Raise RunError for whatever the files of a champion cause: they may have any content."""
    try:
        yield
    except (FinrlPodError, OSError):
        raise
    except Exception as error:
        raise RunError(f"{name} cannot be read ({error_text(error)}); evaluate or push the run again") from error


def load_promoted(path: Path, symbols: tuple[str, ...], *, allow_unpromoted: bool = False) -> LoadedStrategy:
    """Load and check the champion of one run. Raises RunError if it is not promoted or changed after its test."""
    report = read_json(path / "report.json")
    run = RunDirectory.open(path)
    if not allow_unpromoted and not _is_promoted(path):
        raise RunError(
            f"the champion of {path} was not promoted. Train another run, or use --allow-unpromoted with a fake server."
        )
    if report.get("config_sha256") != run.config.sha256:
        raise RunError(f"the report of {path} was made with another config. Evaluate the run again.")
    members = champion_of(run, run.config)
    tested_members = (report.get("champion") or {}).get("members")
    if list(members.ids) != tested_members:
        raise RunError(f"the report of {path} tested the agents {tested_members}, but the run has {list(members.ids)}")
    agents = [run.snapshot(agent) for agent in members.ids]  # each checks the hash of its weights
    for agent in agents:
        if agent.spec.get("features") != len(agent.normaliser.feature_names):
            raise RunError(
                f"agent {agent.id} takes {agent.spec.get('features')} features, but its normaliser has "
                f"{len(agent.normaliser.feature_names)}: the run is damaged"
            )
    strategy = PolicyStrategy(agents, members.ensemble_weights, rule=members.rule, feature_tables=run.tables)
    strategy.check_universe(symbols)
    files = [path / "report.json", *path.glob(VERDICT_FILE)]
    files += [path / "snapshots" / f"{id_}.{suffix}" for id_ in members.ids for suffix in ("json", "safetensors")]
    sha256 = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    mandate = strategy.mandate
    base = None if mandate is None else BasePortfolio(without_name_limits(mandate), strategy.rules.leverage)
    rule = report.get("stop_rule")
    band = None if rule is None else ActiveBand(float(rule["level"]), tuple(map(float, rule["lower"])))
    return LoadedStrategy(strategy, sha256, f"{path} {'+'.join(members.ids)}", base, band)


def _is_promoted(run: Path) -> bool:
    """Return True if verdict and report say that the champion was promoted. Raises RunError if they disagree."""
    if not (run / VERDICT_FILE).is_file():
        return False
    verdict = read_verdict(run)
    reported_verdict = read_json(run / "report.json").get("verdict")
    if not isinstance(reported_verdict, dict) or reported_verdict.get("promoted") is not verdict.promoted:
        raise RunError(f"report and verdict of {run} disagree: one of them was changed. Evaluate the run again.")
    return bool(verdict.promoted)


def _modification_times(run: Path) -> tuple[int, ...]:
    """Return the modification times of the files that define a champion."""
    files = [run / "report.json", run / VERDICT_FILE, *sorted((run / "snapshots").glob("*"))]
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())
