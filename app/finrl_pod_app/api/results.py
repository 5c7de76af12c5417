"""Results of the Python API: each shows itself in notebooks, plots itself, becomes a table, and is saved as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from finrl_pod.arguments import check_arguments
from finrl_pod.display import cell_text
from finrl_pod.display import table_html as table_html
from finrl_pod.errors import InputError, RunError, count_text, listed, shown
from finrl_pod.evaluate.attribution import COLUMNS as TRADE_COLUMNS
from finrl_pod.evaluate.metrics import METRIC_NAMES, METRICS
from finrl_pod.files import read_json, read_regular, to_plain, write_json
from finrl_pod.promotion.verdict import Verdict, significance_per_look
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult
from finrl_pod_app.api import figures
from finrl_pod_app.report.builder import CURVES_FILE as CURVES
from finrl_pod_app.report.builder import MAX_CURVES_BYTES, parse_curves
from finrl_pod_app.report.columns import CHAMPION, SLOW_BASE, champion_first, champion_text, display_name, format_metric
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.mandate_text import comparison_sentence
from finrl_pod_app.report.records import Capacity, Comparison, RunReport, parse_report
from finrl_pod_app.report.verdict_text import next_sentence, rule_cells, verdict_lines, verdict_paragraph

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NO_TRADES = pd.DataFrame(columns=list(TRADE_COLUMNS))
COMPACT_METRICS = tuple(metric for metric in METRICS if metric.level < 3)


@dataclass(frozen=True, eq=False)
class Backtest:
    """A backtest. split: the tested bars. looks: number of this look at the test split, None if it was not shown.

    result: arrays and metrics, see `types.BacktestResult`. trades: one row each, with cost and realised profit, see
    `attribution.trades_table`. baselines: results on the same prices, bars and rules by name, such as "equal_weight",
    to compare with. in_sample: a warning if the agent was trained or selected on some of these bars. benchmark: name of
    the chosen benchmark among the baselines. capacity: results of larger accounts, None unless they were asked for.
    """

    result: BacktestResult
    split: str
    looks: int | None = None
    trades: pd.DataFrame = field(default_factory=NO_TRADES.copy)
    baselines: Mapping[str, BacktestResult] = field(default_factory=dict)
    in_sample: str | None = None
    benchmark: str | None = None
    capacity: Capacity | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics by name, such as "sharpe"."""
        return self.result.metrics

    def to_frame(self) -> pd.DataFrame:
        """One row for each bar: equity with flows and costs in currency, its return without flows, and turnover.

        turnover: half the value traded as a fraction of equity, so that its sum over a year is the metric.
        """
        r = self.result
        returns = np.append(np.nan, r.equity[1:] / r.equity[:-1] - 1)
        columns = {"equity": r.balance, "return": returns, "turnover": 0.5 * r.turnover, "costs": r.costs}
        return pd.DataFrame(columns, index=pd.DatetimeIndex(r.times, name="time"))

    def weights(self) -> pd.DataFrame:
        """Weights after the fills of each bar, one column for each symbol."""
        return pd.DataFrame(self.result.weights, self.to_frame().index, list(self.result.symbols))

    def plot(self) -> Figure:
        """Equity as a multiple of its first value on a log axis, its drawdown, and its growth over a baseline.

        The baseline is equal weight, else the first one.
        """
        results = self._compared()
        base = next((name for name in ("equal_weight", *results) if name in results and name != self.result.name), "")
        return figures.backtest_figure(results, self._title(), base)

    @check_arguments
    def save(self, path: str | Path) -> Path:
        """Write as JSON; `load` reads it back."""
        trades = {name: self.trades[name].to_numpy() for name in self.trades.columns}
        baselines = {name: {**vars(result)} for name, result in self.baselines.items()}
        values = {"split": self.split, "looks": self.looks, "result": {**vars(self.result)}, "trades": trades}
        capacity = None if self.capacity is None else self.capacity.model_dump(by_alias=True)
        facts = {"in_sample": self.in_sample, "benchmark": self.benchmark, "capacity": capacity}
        target = Path(path)
        plain = {"kind": "backtest", **values, "baselines": baselines, **facts}
        write_json(target, to_plain(_lists(plain)))
        return target

    @classmethod
    @check_arguments
    def load(cls, path: str | Path) -> Self:
        """Read a saved backtest. Raises RunError for another file."""
        values = read_json(Path(path))
        if values.get("kind") != "backtest":
            raise RunError(f"{path} holds no saved backtest; it has {json.dumps(values.get('kind'))}")
        trades = pd.DataFrame(values["trades"], columns=list(TRADE_COLUMNS))
        for name in ("price", "profit"):
            trades[name] = trades[name].astype(float)
        return cls(
            _saved_result(values["result"]),
            values["split"],
            values["looks"],
            trades.assign(time=pd.to_datetime(trades["time"])),
            {name: _saved_result(result_values) for name, result_values in values["baselines"].items()},
            values["in_sample"],
            values["benchmark"],
            None if values["capacity"] is None else Capacity.model_validate(values["capacity"]),
        )

    @check_arguments
    def comparison(self, baseline: str | None = None) -> Comparison | None:
        """The mean return above a baseline per year with its interval, and the one-sided p-value of no edge.

        The p-value is the larger one of active return and alpha, for this backtest alone: for the best of several
        strategies it is too small. baseline: one of `baselines`, by default the benchmark, else equal weight. None for
        fewer than 20 returns and for equal ones.
        Raises InputError for an unknown baseline.
        """
        from finrl_pod_app.evaluation.mandate_report import comparison

        if baseline is None:
            baseline = self._default_baseline
        if baseline not in self.baselines:
            choices = f"one of {listed(list(self.baselines))}" if self.baselines else "left out: there is none"
            raise InputError(f"baseline must be {choices}; got {shown(baseline)}")
        return comparison(self.result, self.baselines[baseline])

    @property
    def _default_baseline(self) -> str:
        return self.benchmark or "equal_weight"

    def _compared(self) -> dict[str, BacktestResult]:
        """The result and the baselines by name, the result first."""
        return {self.result.name: self.result, **{k: x for k, x in self.baselines.items() if k != self.result.name}}

    def _title(self) -> str:
        first, last = (str(self.result.times[i])[:10] for i in (0, -1))
        bars = {"all": "all bars", "dates": "chosen dates"}.get(self.split, f"the {self.split} split")
        return f"{display_name(self.result.name)} on {bars}, {first} to {last}"

    def __repr__(self) -> str:
        metrics_text = ", ".join(f"{metric.name}={cell_text(self.metrics[metric.name])}" for metric in COMPACT_METRICS)
        look = "" if self.looks is None else f", look={self.looks}"
        first, last = (str(self.result.times[i])[:10] for i in (0, -1))
        sample_note = ", in sample" if self.in_sample else ""
        bars = f"split={self.split!r}, {len(self.result.times):,} bars {first} to {last}{sample_note}"
        return f"Backtest({self.result.name!r}, {bars}{look}, {metrics_text})"

    def __str__(self) -> str:
        metrics = {name: result.metrics for name, result in self._compared().items()}
        heads = [f"{metric.heading} {metric.unit.heading}".strip() for metric in COMPACT_METRICS]
        rows = {display_name(name): _metric_cells(values) for name, values in metrics.items()}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=heads).to_string()
        return "\n".join([self._title(), table, *self._notes()])

    def _notes(self) -> list[str]:
        """Sentences below the table: in sample, against equal weight, looks."""
        notes = [] if self.in_sample is None else [self.in_sample]
        comparison = self.comparison() if self._default_baseline in self.baselines else None
        notes += [] if comparison is None else [comparison_sentence(comparison)]
        if self.looks is not None:
            level = significance_per_look(GateConfig().significance_level, self.looks)
            notes.append(f"Look {self.looks} at the test split: an edge needs a p-value of at most {level:.3g}.")
        return notes

    def _repr_html_(self) -> str:
        metrics = {name: result.metrics for name, result in self._compared().items()}
        return _metrics_html(self._title(), metrics, " ".join(self._notes()))


@dataclass(frozen=True, eq=False)
class Document:
    """A result that a command writes as JSON. document: its contents. folder: folder of the run, or None."""

    document: Mapping[str, Any]
    folder: Path | None = None

    def __repr__(self) -> str:
        folder_text = "" if self.folder is None else f", folder={str(self.folder)!r}"
        return f"{type(self).__name__}({self._summary()!r}{folder_text})"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        if frame.index.names != [None]:
            frame = frame.reset_index()
        return table_html(self._title(), list(frame.itertuples(index=False, name=None)), tuple(frame.columns))

    def to_frame(self) -> pd.DataFrame:
        """The rows of the result."""
        raise NotImplementedError

    def _title(self) -> str:
        return self._summary()

    def _summary(self) -> str:
        raise NotImplementedError


class TournamentResult(Document):
    """A finished tournament: report.json of its folder; on an environment without a market, result.json.

    Of a run without a test the strategies' figures are those on validation, and there is no verdict.
    """

    @property
    def promoted(self) -> bool:
        """Whether the champion passes all rules of the gate.

        Raises InputError without a verdict: for a run that was not tested, and on an environment without a market.
        """
        if not self._has_market:
            raise InputError("a tournament on an environment without a market has no verdict")
        if not self._tested:
            raise InputError("this run was not tested and has no verdict: repeat it with resume=True and test=True")
        return self.report.verdict is not None and self.report.verdict.promoted

    @cached_property
    def report(self) -> RunReport:
        """The document as a record; without any parts on an environment without a market."""
        return parse_report(self.document) if self._has_market else RunReport()

    def to_frame(self) -> pd.DataFrame:
        """Metrics on the test split: one row for each strategy, the champion first.

        On an environment without a market, mean and standard deviation of the return of the champion over test
        episodes.
        """
        test = self.document["test"]
        strategies = test["strategies"] if self._has_market else {CHAMPION: test}
        names = dict.fromkeys(METRIC_NAMES) | dict.fromkeys(strategies[CHAMPION])
        columns = [name for name in names if name in strategies[CHAMPION]]
        rows = [[strategies[name].get(column) for column in columns] for name in champion_first(strategies)]
        return pd.DataFrame(rows, pd.Index(champion_first(strategies), name="strategy"), columns, dtype=float)

    @check_arguments
    def plot(self, *, scores: bool = False) -> Figure:
        """Test equity and drawdown of the champion and the baselines, and growth of the champion over its base.

        scores: draw the validation scores by generation, from 1, instead. They are also drawn without a test or the run
        folder; without the folder, scores of the leaderboard. Raises RunError if a file of the run is damaged.
        """
        curves = None if self.folder is None or not self._tested else self.folder / CURVES
        if curves is not None and curves.exists() and not scores:
            results = parse_curves(read_regular(curves, MAX_CURVES_BYTES))
            benchmark = self.report.base if self.report.base in results else ""
            return figures.tournament_figure(results, f"Champion on {self._bars()}", benchmark)
        if not self._has_market:
            title = f"Tournament on {self.document['environment']}"
            return figures.scores_figure(self._scores(), None, title, "mean return of an episode")
        title = f"Validation scores of {'the leaderboard' if self.folder is None else 'all agents'}"
        mandate = self.report.mandate
        name = "equal_weight" if mandate is None or mandate.base == "none" else SLOW_BASE
        base = None if self.report.base_score is None else (display_name(name), self.report.base_score)
        return figures.scores_figure(self._scores(), base, title, "validation Sharpe ratio")

    def _scores(self) -> pd.DataFrame:
        """Id, generation (from 1) and score of all agents, or without the run folder of the leaderboard."""
        from finrl_pod.tournament.run_directory import RunDirectory

        agents = [] if self.folder is None else RunDirectory(self.folder).agents()
        rows = {agent.id: (agent.generation + 1, agent.score) for agent in agents if math.isfinite(agent.score)}
        board = [row for row in self.document["leaderboard"] if row["score"] is not None]
        rows |= {row["id"]: (row["generation"] + 1, row["score"]) for row in board}
        values = [(agent, generation, score) for agent, (generation, score) in rows.items()]
        return pd.DataFrame(values, columns=["id", "generation", "score"])

    def _champion_text(self) -> str:
        champion = self.document["champion"]
        return champion_text(champion["id"], champion.get("members", ()))

    @property
    def _has_market(self) -> bool:
        return "strategies" in self.document["test"]

    @property
    def _tested(self) -> bool:
        return self.report.verdict is not None

    def _summary(self) -> str:
        return ("promoted" if self.promoted else "not promoted") if self._tested else "not tested"

    def _bars(self) -> str:
        """The bars of the metrics. A report without a test has the validation split here."""
        split = "test" if self._tested else "validation"
        return f"the {split} split, {' to '.join(self.report.splits.test)}"

    def _figure(self) -> str:
        """The metric of the champion and of its benchmark."""
        test = self.document["test"]
        if not self._has_market:
            return f"mean return {test['mean_return']:.4g} over {test['episodes']:,} test episodes"
        sharpe = next(figure for figure in key_figures(self.report) if figure.key == "sharpe")
        split = "test" if self._tested else "validation"
        return f"{split} Sharpe ratio {sharpe.sentence}"

    def __repr__(self) -> str:
        outcome = [self._summary()] if self._has_market else []
        folder = [] if self.folder is None else [f"folder={str(self.folder)!r}"]
        champion = self._champion_text()
        return f"TournamentResult({', '.join([champion, *outcome, self._figure(), *folder])})"

    def __str__(self) -> str:
        champion = self.document["champion"]
        folder = self.folder
        folder_text = "" if folder is None else f" in {folder}"
        lines = [f"Tournament{folder_text}: champion {self._champion_text()} ({champion['algorithm']})"]
        if not self._has_market:
            return "\n".join([*lines, f"On test: {self._figure()}"])
        lines.append(f"On {self._bars()}:")
        for figure in key_figures(self.report):
            lines.append(f"- {figure.label}: {figure.sentence}")
        if not self._tested:
            return "\n".join([*lines, "Not tested: repeat it with resume=True and test=True."])
        lines += verdict_lines(self.report)
        lines += [] if folder is None else [f"Report: {folder / 'report.html'}"]
        return "\n".join([*lines, next_sentence(self.report)])

    def _repr_html_(self) -> str:
        champion = self._champion_text()
        if not self._has_market:
            return table_html(f"Champion {champion}: {self._figure()}", [])
        strategies = self.report.test.strategies
        metrics = {name: strategies[name] for name in champion_first(strategies)}
        if self._tested:
            note = " ".join(verdict_paragraph(self.report))
        else:
            note = "Not tested: repeat it with resume=True and test=True."
        return _metrics_html(f"Champion {champion} on {self._bars()}", metrics, note.strip())


class WalkforwardResult(Document):
    """A walk-forward evaluation: one training for each fold and seed."""

    def to_frame(self) -> pd.DataFrame:
        """One row for each fold and seed, with its Sharpe ratio out of sample."""
        return pd.DataFrame(self.document["runs"])

    def plot(self) -> Figure:
        """Sharpe ratio of each fold: one marker for each seed, their mean, and equal weight."""
        return figures.walkforward_figure(self.to_frame(), self.document["folds"])

    def _summary(self) -> str:
        return "promoted" if self.document["verdict"]["promoted"] else "not promoted"

    def _repr_html_(self) -> str:
        frame = self.to_frame()[["fold", "seed", "sharpe"]]
        rows = [tuple(row) for row in frame.itertuples(index=False)]
        note = " ".join(verdict_paragraph(parse_report({"verdict": self.document["verdict"]})))
        return table_html("Walk-forward", rows, ("fold", "seed", "Sharpe ratio"), note)


class AuditResult(Document):
    """An audit: what was checked, and what was found."""

    @property
    def clean(self) -> bool:
        """Whether no check failed."""
        return bool(self.document["clean"])

    def to_frame(self) -> pd.DataFrame:
        """One row for each finding, by check and part: status, first bar, value and message; failures first."""
        rows = self._findings()
        index = pd.MultiIndex.from_tuples([(row["check"], row["part"]) for row in rows], names=["check", "part"])
        return pd.DataFrame(rows, columns=["status", "bar", "value", "message"]).set_index(index)

    def _findings(self) -> list[dict[str, Any]]:
        """The findings, failures first, then warnings."""
        return sorted(self.document["findings"], key=lambda row: ("fail", "warn", "pass").index(row["status"]))

    def _summary(self) -> str:
        warnings = sum(finding["status"] == "warn" for finding in self.document["findings"])
        return f"{'no check failed' if self.clean else 'checks failed'}, {count_text(warnings, 'warning')}"

    def __str__(self) -> str:
        lines = [f"{f['status']}: {f['message']}" for f in self._findings() if f["status"] != "pass"]
        checks = ", ".join(dict.fromkeys(f["check"] for f in self.document["findings"]))
        return "\n".join([self._title(), *lines, f"Checked: {checks}."])

    def _title(self) -> str:
        return f"Audit of {self.document['subject']}: {self._summary()}"


class CheckResult(Document):
    """A check of a custom extension: what is wrong with it."""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return bool(self.document["passed"])

    def to_frame(self) -> pd.DataFrame:
        """One row for each fault: rule and message; empty if nothing is wrong."""
        return pd.DataFrame(self.document["faults"], columns=["rule", "message"])

    def _summary(self) -> str:
        kind = self.document["kind"]
        contract = f"the contract of {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        return f"{self.document['target']} {'keeps' if self.passed else 'breaks'} {contract}"

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"- {f['rule']}: {f['message']}" for f in self.document["faults"])])


class VerdictResult(Document):
    """The verdict of the promotion gate: its first paragraph, and each rule with its value and its limit."""

    @property
    def promoted(self) -> bool:
        """Whether all rules pass."""
        return bool(self.document["promoted"])

    def to_frame(self) -> pd.DataFrame:
        """One row for each rule, by name: value, limit, whether it passed, and a sentence. NaN: not computed."""
        rules = self.document["rules"]
        index = pd.Index([rule["name"] for rule in rules], name="rule")
        frame = pd.DataFrame(rules, columns=["value", "limit", "passed", "sentence"]).set_index(index)
        return frame.astype({"value": float, "limit": float, "passed": bool})

    def __str__(self) -> str:
        return "\n".join(verdict_lines(self._report()))

    def _report(self) -> RunReport:
        """The report with the verdict and the parts that its first paragraph needs."""
        verdict = {name: self.document[name] for name in Verdict.model_fields if name in self.document}
        context = {name: self.document[name] for name in RunReport().verdict_context() if name in self.document}
        return parse_report({"verdict": verdict, **context})

    def _summary(self) -> str:
        return "promoted" if self.promoted else "not promoted"

    def _repr_html_(self) -> str:
        report = self._report()
        rows = [
            (display_name(rule.name), *rule_cells(rule), "pass" if rule.passed else "fail", rule.sentence)
            for rule in (report.verdict.rules if report.verdict else ())
        ]
        head = ("rule", "value", "limit", "", "what")
        return table_html(" ".join(verdict_paragraph(report)), rows, head)


def _metrics_html(title: str, metrics: Mapping[str, Mapping[str, float | None]], note: str) -> str:
    """A table of metrics: one row for each strategy, by name."""
    rows = [(display_name(name), *_metric_cells(values)) for name, values in metrics.items()]
    labels = (f"{metric.label} {metric.unit.heading}".strip() for metric in COMPACT_METRICS)
    return table_html(title, rows, ("strategy", *labels), note)


def _metric_cells(values: Mapping[str, float | None]) -> list[str]:
    return [format_metric(metric, values.get(metric.name)) for metric in COMPACT_METRICS]


def _saved_result(values: Mapping[str, Any]) -> BacktestResult:
    """A result from its JSON values."""
    names = ("equity", "weights", "turnover", "costs", "risk_free", "dividends", "paid", "flows")
    arrays = {name: np.asarray(values[name], np.float64) for name in names if values.get(name) is not None}
    return BacktestResult(
        name=values["name"],
        times=np.asarray(values["times"], "datetime64[ns]"),
        symbols=tuple(values["symbols"]),
        metrics={name: np.nan if x is None else x for name, x in values["metrics"].items()},
        cost_parts={name: np.asarray(x, np.float64) for name, x in values["cost_parts"].items()},
        carry=values["carry"],
        **arrays,
    )


def _lists(value: Any) -> Any:
    """Arrays as lists, times as ISO text."""
    if isinstance(value, np.ndarray):
        return value.astype(str).tolist() if value.dtype.kind == "M" else value.tolist()
    return {key: _lists(item) for key, item in value.items()} if isinstance(value, Mapping) else value
