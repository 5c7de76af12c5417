"""Terminal output of audits, verdicts, walk-forwards, features, and the registries of trials and champions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import count_text
from finrl_pod_app.cli.console import plain_table
from finrl_pod_app.report.columns import display_name, number, percent, return_interval
from finrl_pod_app.setup.terminal import make_console, print_lines

if TYPE_CHECKING:
    from finrl_pod.promotion.trial_registry import DataSet
    from finrl_pod_app.evaluation.audit import Audit
    from finrl_pod_app.evaluation.orders import AccountOrders
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training.quarterly_ensemble import QuarterlyEnsemble

LARGEST_PARTS = "of which mostly"
MARKS = {"pass": "green", "warn": "yellow", "fail": "red"}


def show_audit(audit: Audit) -> None:
    """Print one line per finding, failures first, and the outcome."""
    from rich.text import Text

    table = plain_table(f"Audit of {audit.subject}", ("", "check", "what"), multiline=("what",))
    order = ("fail", "warn", "pass")
    for finding in sorted(audit.findings, key=lambda f: order.index(f.status)):
        table.add_row(Text(finding.status, style=MARKS[finding.status]), finding.check, Text(finding.message))
    console = make_console()
    console.print(table)
    faults = sum(finding.status == "fail" for finding in audit.findings)
    doubts = sum(finding.status == "warn" for finding in audit.findings)
    outcome = f"{count_text(faults, 'failure')}: the results are not valid" if faults else "No failures"
    console.print(f"{outcome}; {count_text(doubts, 'warning')}.", markup=False)


def show_ensemble(ensemble: QuarterlyEnsemble) -> None:
    """Print the choice of each quarter and the Sharpe ratios of the accounts."""
    from finrl_pod_app.training.quarterly_ensemble import RandomChoices

    console = make_console()
    table = plain_table("Quarters", ("from", "to", *ensemble.algorithms, "chosen"), right=ensemble.algorithms)
    for quarter in ensemble.quarters:
        ratios = [number(quarter.validation[name]) for name in ensemble.algorithms]
        table.add_row(quarter.start, quarter.end, *ratios, display_name(quarter.chosen))
    console.print(table)
    console.print("Columns of algorithms: Sharpe ratios in the quarter before, on which one is chosen.", markup=False)
    table = plain_table("Traded quarters", ("account", "Sharpe"), right=("Sharpe",))
    for name, result in ensemble.results.items():
        if not isinstance(result, RandomChoices):
            table.add_row(display_name(name), number(result["sharpe"]))
    console.print(table)
    random = ensemble.results["random"]
    assert isinstance(random, RandomChoices)
    print_lines(
        console,
        f"{random.seeds} random choices: median {number(random.median)}, 90% between {number(random.low)} and "
        f"{number(random.high)}; {percent(random.share_below, 0, unit='%')} are below the quarterly choice.",
        f"A Sharpe ratio over one quarter has a standard error of {number(ensemble.sharpe_error, 1)}.",
    )


def show_rules(report: RunReport) -> None:
    """Print the first paragraph of a verdict and the rules."""
    from rich.text import Text

    from finrl_pod_app.report.verdict_text import edge_sentence, rule_cells, trials_text, verdict_paragraph

    console = make_console()
    verdict = report.verdict
    if verdict is None:
        return
    print_lines(console, *verdict_paragraph(report))
    columns = ("rule", "value", "limit", "", "what")
    table = plain_table("Promotion gate", columns, right=("value", "limit"), multiline=("what",))
    for rule in verdict.rules:
        mark = "pass" if rule.passed else "fail"
        table.add_row(display_name(rule.name), *rule_cells(rule), Text(mark, style=MARKS[mark]), Text(rule.sentence))
    console.print(table)
    print_lines(console, edge_sentence(verdict), f"{trials_text(verdict)}; look {verdict.looks} at the test period.")
    warnings = verdict.statistics.audit_warnings
    print_lines(console, *(f"Warning of the audit: {warning}" for warning in warnings), style="yellow")
    console.print("Words explained: docs/glossary.md", markup=False)


def show_trials(path: str, data_sets: Sequence[DataSet], last: int | None = None) -> None:
    """Print one line per data set, and its looks. last: number of looks of each; None for all."""
    console = make_console()
    if not data_sets:
        print_lines(console, f"No trials in {path} yet.")
        return
    columns = ("data", "trials", "distinct", "runs", "looks", "last")
    table = plain_table(f"Trials in {path}", columns, right=columns[1:-1])
    for entry in data_sets:
        numbers = (entry.trials, entry.clustered, entry.runs, len(entry.looks))
        table.add_row(entry.name, *(f"{n:,}" for n in numbers), entry.last[:10])
    console.print(table)
    console.print(
        "trials: agents and champions that were scored; distinct: clusters of trials that behave alike. look N of M: "
        "the N-th of M looks at bars that overlap; the same strategy again on the same bars is no new look.",
        markup=False,
    )
    for entry in data_sets:
        listed_looks = entry.looks if last is None else entry.looks[-last:]
        if (count := len(entry.looks) - len(listed_looks)) > 0:
            console.print(f"{entry.name}: {count_text(count, 'earlier look')}, see --all", markup=False)
        for look in listed_looks:
            bars = f"bars that overlap {look.first[:10]} to {look.last[:10]}"
            line = f"{entry.name}: look {look.number} of {look.so_far} at {bars}, on {look.made[:10]} ({look.what})"
            print_lines(console, line)
        if entry.same_market:
            line = f"{entry.name} is the same market as {', '.join(entry.same_market)}: looks count for all of them."
            print_lines(console, line)


def show_orders(result: AccountOrders) -> None:
    """Print one line per symbol, and the cash that is left."""
    from finrl_pod_app.evaluation.orders import ExplainedRow

    console = make_console()
    columns = ["symbol", "held", "target %", "buy or sell", "price", "of", "cost"]
    right = [*columns[1:5], "cost", "score"]
    if any(isinstance(row, ExplainedRow) for row in result.orders):
        columns += ["score", LARGEST_PARTS]
    table = plain_table(f"Orders after the close of {result.date}", columns, right=right, multiline=(LARGEST_PARTS,))
    for row in result.orders:
        cells = [f"{row.held:,g}", percent(row.target_weight), f"{row.shares:+,.10g}" if row.shares else ""]
        cells += [number(row.price), row.price_date or "", number(row.cost)]
        if isinstance(row, ExplainedRow):
            largest = sorted((row.why or {}).items(), key=lambda item: -abs(item[1]))[:2]
            cells += [number(row.score, 3), ", ".join(f"{name} {number(x, 3, sign=True)}" for name, x in largest)]
        table.add_row(row.symbol, *cells)
    console.print(table)
    console.print(f"Cash left at these prices: {number(result.cash_left)}", markup=False)


def show_walkforward(document: Mapping[str, Any]) -> None:
    """Print the Sharpe ratio of each fold and seed, and the differences to the base with their intervals."""
    console = make_console()
    seeds = sorted({row["seed"] for row in document["runs"]})
    numbers = ["fold", *(f"seed {seed}" for seed in seeds), "equal weight", "over the base"]
    columns = [numbers[0], "tested", *numbers[1:]]
    table = plain_table("Sharpe ratio of each fold and seed, out of sample", columns, right=numbers, multiline=numbers)
    for fold in document["folds"]:
        sharpe_by_seed = {row["seed"]: row["sharpe"] for row in document["runs"] if row["fold"] == fold["fold"]}
        cells = [number(sharpe_by_seed.get(seed)) for seed in seeds]
        span = " to ".join(fold["test"])
        difference = percent(fold["difference"]["value"], sign=True, unit="%")
        table.add_row(str(fold["fold"]), span, *cells, number(fold["equal_weight_sharpe"]), difference)
    console.print(table)
    value, low, high = document["difference"].values()
    interval = f"{percent(value, sign=True, unit='%')} (90% interval {return_interval(low, high)})"
    console.print(f"Mean return per year over the base, all folds: {interval}.", markup=False)


MISSED = 0.1  # share of 90% intervals that exclude the true value


def show_features(document: Mapping[str, Any]) -> None:
    """Print the figures of features, one line for each feature and horizon."""
    console = make_console()
    numbers = ("bars ahead", "IC", "90% interval", "IC / std", "spread, bp a bar", "90% interval", "turnover %")
    title = f"Features of {document['data']}, {' to '.join(document['period'])}"
    table = plain_table(title, ("feature", *numbers), right=numbers)
    for feature in document["features"]:
        for i, row in enumerate(feature["horizons"]):
            turnover = feature["top_turnover"]
            table.add_row(
                feature["feature"] if i == 0 else "",
                str(row["horizon"]),
                number(row["information_coefficient"], 3, sign=True),
                f"{number(row['low'], 3, sign=True)} to {number(row['high'], 3, sign=True)}",
                number(row["risk_adjusted"], sign=True),
                number(row["spread"], sign=True),
                f"{number(row['spread_low'], sign=True)} to {number(row['spread_high'], sign=True)}",
                "" if i or turnover is None else percent(turnover),
            )
    console.print(table)
    console.print(
        f"IC: mean rank correlation of feature and return. Spread: return of the highest less the lowest of "
        f"{document['quantiles']} quantiles. Turnover: share of the highest quantile that is new each bar.",
        markup=False,
    )
    rows = [row for feature in document["features"] for row in feature["horizons"] if row["low"] is not None]
    excluding = sum(row["low"] > 0 or row["high"] < 0 for row in rows)
    console.print(
        f"{excluding} of {count_text(len(rows), 'interval')} of the IC exclude{'s' * (excluding == 1)} 0; "
        f"about {MISSED * len(rows):.1f} would by chance.",
        markup=False,
    )
    if bars := document.get("bars"):
        console.print(bars, style="yellow", markup=False)


SHORT = 12  # shown characters of an address


def show_registry(document: Mapping[str, Any]) -> None:
    """Print one line per champion and per strategy."""
    console = make_console()
    if not document["champions"]:
        print_lines(console, f"No champions in {document['registry']} yet.")
        return
    columns = ("address", "run", "algorithms", "agents", "data", "promoted", "stored", "traded by")
    table = plain_table(f"Champions in {document['registry']}", columns, right=("agents",), multiline=("run",))
    for row in document["champions"]:
        table.add_row(
            row["address"][:SHORT],
            row["run"],
            ", ".join(row["algorithms"]),
            str(row["agents"]),
            row["data"],
            "yes" if row["promoted"] else "no",
            (row["stored"] or "")[:10],
            ", ".join(row["strategies"]),
        )
    console.print(table)
    for row in document["strategies"]:
        previous = f", before it {row['previous'][:SHORT]}" if row["previous"] else ""
        console.print(f"{row['name']} trades {row['champion'][:SHORT]} since {row['since']}{previous}", markup=False)


def show_details(document: Mapping[str, Any]) -> None:
    """Print a champion, an agent or the changes of a strategy."""
    console = make_console()
    if "changes" in document:
        columns = ("number", "at", "change", "champion", "by")
        table = plain_table(f"Changes of strategy {document['strategy']}", columns)
        for row in document["changes"]:
            action = row["action"].replace("_", " ")
            table.add_row(str(row["number"]), row["at"], action, row["champions"][-1][:SHORT], row["by"])
        console.print(table)
        return
    for name, value in document.items():
        if name in ("files", "agents", "handovers", "format"):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        print_lines(console, f"{name.replace('_', ' ')}: {text}")
    if "agents" in document:
        agent_columns = ("address", "id", "algorithm", "share", "score", "samples", "ancestors")
        table = plain_table("Agents, members first", agent_columns, right=agent_columns[3:6], multiline=agent_columns)
        for row in document["agents"]:
            score = number(row["score"])
            cells = (f"{row['share']:.2f}", score, f"{row['samples']:,}", " < ".join(row["ancestors"]))
            table.add_row(row["address"][:SHORT], row["id"], row["algorithm"], *cells)
        console.print(table)
    for row in document.get("handovers", ()):
        action = row["action"].replace("_", " ")
        print_lines(console, f"{row['strategy']}: {action} at {row['at']} by {row['by']}")
