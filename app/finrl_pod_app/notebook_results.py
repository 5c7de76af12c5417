"""Results of the Python API: each shows itself in notebooks, plots itself, becomes a table, and is saved as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from finrl_pod.errors import RunError
from finrl_pod.evaluate.trades import COLUMNS as TRADE_COLUMNS
from finrl_pod.files import read_json, to_plain, write_json
from finrl_pod.promotion.rules import significance_per_look
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult
from finrl_pod_app.report.columns import STRATEGY_COLUMNS, display_name, format_metric
from finrl_pod_app.report.mandate_text import added_sentence
from finrl_pod_app.report.verdict_text import rule_cells, verdict_lines

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

METRICS = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "turnover", "costs_paid")
COLUMNS = [column for column in STRATEGY_COLUMNS if column.key in METRICS]  # shown in notebooks
DIGITS = 4


def table_html(title: str, rows: Sequence[Sequence[object]], head: Sequence[str] = (), note: str = "") -> str:
    """A small HTML table; all texts are escaped."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(_text(cell))}</{tag}>" for cell in row)

    header = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<div><b>{html.escape(title)}</b><table>{header}<tbody>{body}</tbody></table>{below}</div>"


def _text(cell: object) -> str:
    if cell is None or (isinstance(cell, float) and not np.isfinite(cell)):
        return "–"
    return f"{cell:,.{DIGITS}g}" if isinstance(cell, float) else str(cell)


def line_figure(frame: pd.DataFrame, title: str, y: str) -> Figure:
    """A Plotly figure with one line for each column of a frame."""
    import plotly.graph_objects as go

    figure = go.Figure([go.Scatter(x=frame.index, y=frame[name], name=str(name)) for name in frame.columns])
    figure.update_layout(title=title, yaxis_title=y, hovermode="x unified")
    return figure


@dataclass(frozen=True, eq=False)
class Backtest:
    """A backtest. split: the tested bars. looks: at the test split, None if it was not shown.

    result: arrays and metrics, see `types.BacktestResult`. trades: one row each, with cost and realised profit, see
    `finrl_pod.evaluate.trades`.
    """

    result: BacktestResult
    split: str
    looks: int | None = None
    trades: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(TRADE_COLUMNS)))

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics by name, such as "sharpe"."""
        return self.result.metrics

    def to_frame(self) -> pd.DataFrame:
        """One row for each bar: equity and costs in currency, turnover as a fraction of equity."""
        r = self.result
        columns = {"equity": r.equity, "turnover": r.turnover, "costs": r.costs}
        return pd.DataFrame(columns, index=pd.DatetimeIndex(r.times, name="time"))

    def weights(self) -> pd.DataFrame:
        """Weights after each bar's fills, one column for each symbol."""
        return pd.DataFrame(self.result.weights, self.to_frame().index, list(self.result.symbols))

    def plot(self) -> Figure:
        """Equity over time."""
        return line_figure(self.to_frame()[["equity"]], f"{self.result.name} on {self.split}", "equity")

    def save(self, path: str | Path) -> Path:
        """Write as JSON; `load` reads it back."""
        trades = {name: self.trades[name].to_numpy() for name in self.trades.columns}
        parts = {"split": self.split, "looks": self.looks, "result": {**vars(self.result)}, "trades": trades}
        return _save(path, parts, "backtest")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved backtest. Raises RunError for another file."""
        values = _load(path, "backtest")
        found = values["result"]
        arrays = {name: np.asarray(found[name], np.float64) for name in ("equity", "weights", "turnover", "costs")}
        parts = {name: np.asarray(x, np.float64) for name, x in found["cost_parts"].items()}
        rate, optional = found["risk_free"], ("dividends", "paid")
        given = {name: np.asarray(found[name], np.float64) for name in optional if found.get(name) is not None}
        trades = pd.DataFrame(values.get("trades") or {}, columns=list(TRADE_COLUMNS))
        for name in ("price", "profit"):
            trades[name] = trades[name].astype(float)
        return cls(
            BacktestResult(
                name=found["name"],
                times=np.asarray(found["times"], "datetime64[ns]"),
                symbols=tuple(found["symbols"]),
                metrics={name: np.nan if x is None else x for name, x in found["metrics"].items()},
                cost_parts=parts,
                risk_free=None if rate is None else np.asarray(rate, np.float64),
                carry=found["carry"],
                **arrays,
                **given,
            ),
            values["split"],
            values["looks"],
            trades.assign(time=pd.to_datetime(trades["time"])),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_text(self.metrics[name])}" for name in METRICS if name in self.metrics)
        look = "" if self.looks is None else f", look={self.looks}"
        return f"Backtest({self.result.name!r}, split={self.split!r}{look}, bars={len(self.result.times)}, {shown})"

    def _repr_html_(self) -> str:
        first, last = (str(self.result.times[i])[:10] for i in (0, -1))
        rows = [
            (f"{column.label} {column.unit}".strip(), format_metric(column, self.metrics.get(column.key)))
            for column in COLUMNS
        ]
        looks = ""
        if self.looks is not None:
            level = significance_per_look(GateConfig().significance_level, self.looks)
            looks = f"Look {self.looks} at the test split: an edge needs a p-value of at most {level:.3g}."
        return table_html(f"{self.result.name} on {self.split}, {first} to {last}", rows, note=looks)


@dataclass(frozen=True, eq=False)
class Document:
    """A result that a command writes as JSON. document: its contents. folder: where it lies, or None."""

    KIND: ClassVar[str] = "document"
    document: Mapping[str, Any]
    folder: Path | None = field(default=None)

    def save(self, path: str | Path) -> Path:
        """Write as JSON; `load` reads it back."""
        return _save(path, {"document": dict(self.document)}, self.KIND)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved result. Raises RunError for another file."""
        return cls(_load(path, cls.KIND)["document"])

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", folder={str(self.folder)!r}"
        return f"{type(self).__name__}({self._summary()!r}{where})"

    def _summary(self) -> str:
        raise NotImplementedError


class TournamentResult(Document):
    """A finished tournament: report.json of its folder."""

    KIND = "tournament"

    @property
    def promoted(self) -> bool:
        """Whether the champion passes all rules of the gate."""
        return bool(self.document["verdict"]["promoted"])

    def to_frame(self) -> pd.DataFrame:
        """Metrics on the test split, one row for each strategy."""
        return pd.DataFrame(self.document["test"]["strategies"]).T

    def plot(self) -> Figure:
        """Scores of the leaderboard by generation."""
        import plotly.graph_objects as go

        rows = self.document["leaderboard"]
        generations, scores = [row["generation"] for row in rows], [row["score"] for row in rows]
        figure = go.Figure(go.Scatter(x=generations, y=scores, mode="markers", text=[row["id"] for row in rows]))
        return figure.update_layout(title="Leaderboard", xaxis_title="generation", yaxis_title="validation Sharpe")

    def _summary(self) -> str:
        return "promoted" if self.promoted else "not promoted"

    def _repr_html_(self) -> str:
        strategies = self.document["test"]["strategies"]
        rows = [
            (display_name(name), *(format_metric(column, values.get(column.key)) for column in COLUMNS))
            for name, values in strategies.items()
        ]
        head = ("strategy", *(f"{column.label} {column.unit}".strip() for column in COLUMNS))
        reasons = "; ".join(self.document["verdict"]["reasons"])
        note = f"The champion is {self._summary()}: {reasons}. {added_sentence(self.document)}"
        return table_html("Test split", rows, head, note.strip())


class WalkforwardResult(Document):
    """A walk-forward evaluation: one training for each fold and seed."""

    KIND = "walkforward"

    def to_frame(self) -> pd.DataFrame:
        """One row for each fold and seed, with its Sharpe ratio out of sample."""
        return pd.DataFrame(self.document["runs"])

    def plot(self) -> Figure:
        """Sharpe ratios by fold, one line for each seed."""
        frame = self.to_frame().pivot_table(index="fold", columns="seed", values="sharpe")
        return line_figure(frame, "Walk-forward", "Sharpe ratio")

    def _summary(self) -> str:
        return "promoted" if self.document["verdict"]["promoted"] else "not promoted"

    def _repr_html_(self) -> str:
        frame = self.to_frame()[["fold", "seed", "sharpe"]]
        rows = [tuple(row) for row in frame.itertuples(index=False)]
        return table_html("Walk-forward", rows, ("fold", "seed", "sharpe"), f"The champion is {self._summary()}.")


class AuditResult(Document):
    """An audit: what was checked, and what was found."""

    KIND = "audit"

    @property
    def clean(self) -> bool:
        """Whether no check failed."""
        return bool(self.document["clean"])

    def to_frame(self) -> pd.DataFrame:
        """One row for each finding."""
        return pd.DataFrame(self.document["findings"])

    def plot(self) -> Figure:
        """Number of findings by status."""
        import plotly.graph_objects as go

        counts = self.to_frame()["status"].value_counts()
        return go.Figure(go.Bar(x=list(counts.index), y=list(counts))).update_layout(title="Findings")

    def _summary(self) -> str:
        warnings = sum(finding["status"] == "warn" for finding in self.document["findings"])
        return f"{'no check failed' if self.clean else 'checks failed'}, {warnings} warning{'s' * (warnings != 1)}"

    def __str__(self) -> str:
        lines = [f"{f['status']}: {f['message']}" for f in self.document["findings"] if f["status"] != "pass"]
        return "\n".join([f"Audit of {self.document['subject']}: {self._summary()}", *lines])

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        columns = ["status", "check", "part", "message"]
        rows = [tuple(str(cell) for cell in row) for row in frame[columns].itertuples(index=False)]
        return table_html(f"Audit of {self.document['subject']}: {self._summary()}", rows, columns)


class VerdictResult(Document):
    """The verdict of the promotion gate: each rule with its value and its limit."""

    KIND = "verdict"

    @property
    def promoted(self) -> bool:
        """Whether all rules pass."""
        return bool(self.document["promoted"])

    def to_frame(self) -> pd.DataFrame:
        """One row for each rule."""
        return pd.DataFrame(self.document["rules"])

    def plot(self) -> Figure:
        """Values of the rules as shares of their limits, since each has its own unit; others are left out."""
        import plotly.graph_objects as go

        rules = [rule for rule in self.document["rules"] if rule["value"] is not None and rule["limit"]]
        colours = ["seagreen" if rule["passed"] else "firebrick" for rule in rules]
        names, shares = (
            [display_name(rule["name"]) for rule in rules],
            [rule["value"] / rule["limit"] for rule in rules],
        )
        texts = [" of ".join(rule_cells(rule)) for rule in rules]
        figure = go.Figure(go.Bar(x=shares, y=names, text=texts, orientation="h", marker_color=colours))
        figure.add_vline(x=1, line_dash="dot")
        return figure.update_layout(title="Promotion gate: green passes", xaxis_title="value over limit")

    def __str__(self) -> str:
        return "\n".join(verdict_lines(self.document))

    def _summary(self) -> str:
        return "promoted" if self.promoted else "not promoted"

    def _repr_html_(self) -> str:
        rows = [
            (display_name(row["name"]), *rule_cells(row), "pass" if row["passed"] else "fail", row["sentence"])
            for row in self.document["rules"]
        ]
        head = ("rule", "value", "limit", "", "what")
        return table_html(f"The champion is {self._summary()}", rows, head)


def _save(path: str | Path, values: Mapping[str, Any], kind: str) -> Path:
    target = Path(path)
    write_json(target, to_plain({"kind": kind, **_lists(values)}))
    return target


def _load(path: str | Path, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = read_json(Path(path))
    if values.get("kind") != kind:
        raise RunError(f"{path} holds no saved {kind}; it has {json.dumps(values.get('kind'))}")
    return values


def _lists(value: Any) -> Any:
    """Arrays as lists, times as ISO text."""
    if isinstance(value, np.ndarray):
        return value.astype(str).tolist() if value.dtype.kind == "M" else value.tolist()
    return {key: _lists(item) for key, item in value.items()} if isinstance(value, Mapping) else value
