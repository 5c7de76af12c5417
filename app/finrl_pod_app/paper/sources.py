"""Where the daemon's strategy comes from: a baseline by name, or the champion of a promoted run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod import __version__
from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod.paper.execution.trading_cycle import LoadedStrategy, StrategySource
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.tournament.leaderboard import Leaderboard, choose
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod_app.services.verdict import FILE, read_verdict


def strategy_source(config: PaperConfig, *, allow_unpromoted: bool = False) -> StrategySource:
    """Raises FinrlPodError at once for what can never trade."""
    source: StrategySource
    if config.strategy:
        source = Baseline(config.strategy)
    else:
        source = PromotedRun(Path(config.run), config.symbols, allow_unpromoted=allow_unpromoted)
    source.current()
    return source


class Baseline:
    """A strategy of the project by name."""

    def __init__(self, name: str) -> None:
        self._loaded = LoadedStrategy(
            make_baseline(name), hashlib.sha256(f"{name} {__version__}".encode()).hexdigest(), name
        )

    def current(self) -> LoadedStrategy:
        return self._loaded


class PromotedRun:
    """The champion of a run, or of the newest promoted run in a folder of runs. Read anew only when files changed."""

    def __init__(self, path: Path, symbols: tuple[str, ...], *, allow_unpromoted: bool = False) -> None:
        self._path = path
        self._symbols = symbols
        self._allow_unpromoted = allow_unpromoted
        self._loaded: tuple[tuple[Path, tuple[int, ...]], LoadedStrategy] | None = None

    def current(self) -> LoadedStrategy:
        """Raises RunError: no promoted run, files that are not what was tested, a shape that does not fit."""
        report = self._report()
        seen = report, _touched(report.parent)
        if self._loaded is None or self._loaded[0] != seen:
            self._loaded = seen, load_promoted(report.parent, self._symbols, allow_unpromoted=self._allow_unpromoted)
        return self._loaded[1]

    def _report(self) -> Path:
        own = self._path / "report.json"
        if own.is_file():
            return own
        # A folder of runs also holds reports of backtests and walk-forwards, which have no champion of one run.
        runs = [path for path in self._path.glob("*/report.json") if (path.parent / "state.json").is_file()]
        found = [path for path in runs if self._allow_unpromoted or _promoted(path.parent)]
        if not found:
            raise RunError(f"{self._path} holds no promoted run: train one, or name a run with --allow-unpromoted")
        return max(found, key=lambda path: (path.stat().st_mtime_ns, str(path)))


def load_promoted(path: Path, symbols: tuple[str, ...], *, allow_unpromoted: bool = False) -> LoadedStrategy:
    """The champion of one run, after every check that needs no prices."""
    report, run = read_json(path / "report.json"), RunDirectory.open(path)
    if not allow_unpromoted and not _promoted(path):
        raise RunError(
            f"the champion of {path} was not promoted: train another one (a fake server may trade it with "
            "--allow-unpromoted)"
        )
    if report.get("config_sha256") != run.config.sha256:
        raise RunError(f"the report of {path} was written for another config than the run has: test the run again")
    state = run.state() or {}
    settings = run.config.tournament
    members = choose(Leaderboard.from_plain(settings.leaderboard, state.get("leaderboard", [])), settings)
    tested = (report.get("champion") or {}).get("members")
    if list(members.ids) != tested:
        raise RunError(f"the report of {path} tested the agents {tested}, the run now has {list(members.ids)}")
    agents = [run.snapshot(agent) for agent in members.ids]  # each checks the hash of its weights
    for agent in agents:
        if agent.spec.get("features") != len(agent.normaliser.feature_names):
            raise RunError(
                f"agent {agent.id} takes {agent.spec.get('features')} features, its normaliser makes "
                f"{len(agent.normaliser.feature_names)}: the run is damaged"
            )
    strategy = PolicyStrategy(agents, members.shares, rule=members.rule)
    strategy.check_universe(symbols)
    digest = hashlib.sha256((path / "report.json").read_bytes())
    if (path / FILE).is_file():
        digest.update((path / FILE).read_bytes())
    for member in members.ids:
        for suffix in ("json", "safetensors"):
            digest.update((path / "snapshots" / f"{member}.{suffix}").read_bytes())
    return LoadedStrategy(strategy, digest.hexdigest(), f"{path} {'+'.join(members.ids)}")


def _promoted(run: Path) -> bool:
    """Whether the gate let the champion through: every rule of its verdict is met, and the report says the same.

    Raises RunError where the two do not fit together.
    """
    if not (run / FILE).is_file():
        return False
    verdict, told = read_verdict(run), read_json(run / "report.json").get("verdict")
    if not isinstance(told, dict) or told.get("promoted") is not verdict.promoted:
        raise RunError(f"report and verdict of {run} do not say the same: one of them was changed; judge the run again")
    return bool(verdict.promoted)


def _touched(run: Path) -> tuple[int, ...]:
    """When each file that a champion is made of was last changed."""
    files = [run / "report.json", run / FILE, *sorted((run / "snapshots").glob("*"))]
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())
