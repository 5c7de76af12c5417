"""Terminal output: progress on standard error while a run trains, results on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import METRICS, Metric
from finrl_pod_app.report.columns import CHAMPION, champion_first, display_name, format_metric, metrics_of
from finrl_pod_app.report.mandate_text import COLUMNS as LADDER_COLUMNS
from finrl_pod_app.report.mandate_text import ladder_cells, ladder_sentence, return_sentence, tax_sentence
from finrl_pod_app.report.verdict_text import baselines_sentence, looks_sentence, next_sentence, verdict_lines
from finrl_pod_app.setup.terminal import PIPE_WIDTH, make_console, print_lines

if TYPE_CHECKING:
    from rich.table import Table

    from finrl_pod.tournament.progress import Progress, ProgressCallback
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.setup.doctor import Finding
    from finrl_pod_app.training.own_prices import UntestedDemo

EARLY_SHARE = 0.05  # of the samples, before which there is no estimate of the end
MAX_SWEEP_ROWS = 40  # printed; the files hold all rows


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[ProgressCallback]:
    """Yield a function that displays a `Progress`.

    On a terminal: one live line with stage, samples/s, best validation score and time left. Otherwise one line per
    stage. With `quiet`: nothing.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live_line() as report:
            yield report
    else:
        yield _line_per_stage()


def show_result(report: RunReport, out: Path | None) -> None:
    """Print the table of strategies, the verdict and the path of the report."""
    console = make_console()
    metrics = metrics_of(report.test.strategies)
    count = len(metrics)
    # A truncated number would be misread: on a narrow terminal whole columns are dropped instead.
    wide_options = console.options.update(max_width=10 * PIPE_WIDTH)
    optional = sorted((metric for metric in METRICS if metric.level > 1), key=lambda metric: metric.level)
    while optional and console.measure(_table(report, metrics), options=wide_options).maximum > console.width:
        metrics.remove(optional.pop())
    console.print(_table(report, metrics))
    if len(metrics) < count:
        console.print(f"A wider terminal or the report shows {count_text(count - len(metrics), 'more column')}.")
    if report.data.price_only_index and "index" in report.test.strategies:
        console.print("The index is a price index, without dividends.")
    print_lines(console, report.period)
    print_lines(console, report.in_sample, report.bars, style="yellow")
    print_lines(console, *verdict_lines(report))
    if report.ladder:
        console.print(_ladder_table(report))
    from finrl_pod_app.report.score_attribution import score_sentence

    texts = [tax_sentence, ladder_sentence, score_sentence, baselines_sentence]
    if report.verdict is None:
        texts = [return_sentence, looks_sentence, *texts]
    print_lines(console, *(text(report) for text in texts))
    if report.capacity:
        from finrl_pod_app.report.contribution import capacity_sentence

        print_lines(console, capacity_sentence(report.capacity))
    if out is not None:
        print_lines(console, f"Report: {out / 'report.html'}")
        if report.verdict:
            print_lines(console, next_sentence(report, out))
    if report.verdict:
        console.print("Words explained: docs/glossary.md", markup=False)


def show_demo(demo: UntestedDemo, out: Path) -> None:
    """Print a demo on prices of the user before its test: the opening of its report, files, and what comes next."""
    from finrl_pod_app.report.opening import opening

    report = demo.report
    show_result(report, None)
    lines = (*opening(report), f"When and how the symbols were chosen: {report.data.chosen}.")
    print_lines(make_console(), "", *lines, f"Report: {out / 'report.html'}", f"Config: {demo.config}")
    print_lines(make_console(), "Look at the test once, when nothing is left to decide:", f"  {demo.test_command}")


def show_training_result(result: Mapping[str, Any]) -> None:
    """Print the result of `train --env`, from the contents of result.json."""
    evaluated = result["evaluation"]
    lines = [
        f"{result['algorithm']} on {result['env']}: {result['steps']:,} steps in {result['seconds']:.0f} s, "
        f"{result['samples_per_second']:,.0f} samples/s, {result['episodes']:,} episodes."
    ]
    for p, alive in enumerate(result["alive"]):
        score = result["score"][p]
        words = [] if alive else ["stopped to learn, its loss became NaN or infinite"]
        if score is not None:
            words.append(f"score {score:.1f} (mean episode return, last 100 episodes)")
        if evaluated is not None:
            words.append(_evaluation_text(_member_scores(evaluated, p)))
        lines.append(f"Member {p}: {'; '.join(words)}.")
    if evaluated is not None and evaluated["ensemble"]:
        lines.append(f"Ensemble: {_evaluation_text(evaluated['ensemble'])}.")
    if not any(result["alive"]):
        lines.append("No member learned to the end: the weights are those before the loss became NaN or infinite.")
    if result["unscored"]:
        lines.append(
            f"Excluded from the scores: {count_text(result['unscored'], 'episode')} with NaN or infinite rewards."
        )
    if result["workers_lost"]:
        lines.append(f"Lost and restarted: {count_text(result['workers_lost'], 'worker')}.")
    print_lines(make_console(), *lines, f"Weights: {result['weights']}")


def show_environment_evaluation(found: Mapping[str, Any]) -> None:
    """Print the result of `evaluate`."""
    episodes = count_text(found["episodes"], "episode")
    lines = [f"{found['algorithm']} on {found['env']}, seed {found['seed']}, {episodes} each."]
    names = found["agents"] or [f"Member {p}" for p in range(len(found["mean"]))]
    for p, name in enumerate(names):
        lines.append(f"{name}: {_evaluation_text(_member_scores(found, p))}.")
    if found["ensemble"]:
        lines.append(f"Ensemble: {_evaluation_text(found['ensemble'])}.")
    print_lines(make_console(), *lines)


def show_market_training(result: Mapping[str, Any]) -> None:
    """Print the result of `train --market`, from the contents of result.json."""
    lines = [f"{result['algorithm']} on {result['env']}: {result['steps']:,} steps in {result['seconds']:.0f} s."]
    if (excess := result.get("excess_cost")) is not None:
        lines.append(f"Cost + risk over the optimum or equilibrium: {excess:+z.2%}")
    if (share := result.get("share_of_optimum")) is not None:
        lines.append(f"Share of the optimal value: {share:.2%}, spread at the start {result['spread']:.3f}")
    if gains := result.get("best_response_gain"):
        lines.append(f"Largest gain by a best response: {max(gains):.2%} of the largest order's cost")
    print_lines(make_console(), *lines)


def show_custom_result(document: Mapping[str, Any], out: Path) -> None:
    """Print the champion of a tournament on a custom environment, from the contents of result.json."""
    champion = document["champion"]
    test = document["test"]
    timing = document["timing"]
    lines = (
        f"Tournament on {document['environment']}: {timing['samples']:,} steps in {timing['training_seconds']:.0f} s, "
        f"{timing['samples_per_second']:,.0f} samples/s.",
        f"Champion: {champion['id']} ({champion['algorithm']}), mean episode "
        f"return {champion['score']:.2f} on validation.",
        f"Test: mean episode return {test['mean_return']:.2f} +- {test['standard_error']:.2f} (standard error, "
        f"{test['episodes']} other episodes{_without_end(test['cut_episodes'])}).",
        f"Result: {out / 'result.json'}",
    )
    print_lines(make_console(), *lines)


def _member_scores(evaluated: Mapping[str, Any], p: int) -> dict[str, Any]:
    return {"episodes": evaluated["episodes"], **{key: evaluated[key][p] for key in ("mean", "std", "cut")}}


def _evaluation_text(scores: Mapping[str, Any]) -> str:
    mean = scores["mean"]
    numbers = "NaN" if mean is None else f"{mean:.1f} +- {scores['std']:.1f}"
    cut = _without_end(scores["cut"])
    return f"mean episode return {numbers} without exploration over {count_text(scores['episodes'], 'episode')}{cut}"


def _without_end(cut: int) -> str:
    """Clause on episodes that were cut off, empty if there are none."""
    if not cut:
        return ""
    from finrl_pod.rl.experience import MAX_STEPS

    return f", of which {cut} did not end within {MAX_STEPS:,} steps and count until there"


def show_sweep(document: Mapping[str, Any], out: Path | None) -> None:
    """Print the rows of a sweep and the paths of its files, from the contents of sweep.json."""
    from rich.text import Text

    console = make_console()
    rows = document["rows"]
    has_seeds = any(row["seed"] is not None for row in rows)
    metrics = [metric for metric in METRICS if metric.level < 3]
    labels = [f"{metric.heading} {metric.unit.heading}".strip() for metric in metrics]
    columns = ("strategy", *(("seed",) if has_seeds else ()), "start", "end", "bp", *labels)
    table = plain_table(columns=columns, right=("seed", "bp", *labels), collapse_padding=True)
    for row in rows[:MAX_SWEEP_ROWS]:
        head = [Text(display_name(row["strategy"])), *((str(row["seed"]),) if has_seeds else ())]
        cells = [format_metric(metric, row[metric.name]) for metric in metrics]
        table.add_row(*head, row["start"], row["end"], f"{row['cost_bps']:g}", *cells)
    console.print(table)
    if len(rows) > MAX_SWEEP_ROWS:
        console.print(
            f"{count_text(len(rows) - MAX_SWEEP_ROWS, 'more row')}{'' if out else '; write them all with --out DIR'}."
        )
    print_lines(console, *document.get("periods", ()))
    print_lines(console, *document["in_sample"], style="yellow")
    if out is not None:
        print_lines(console, f"Rows: {out / 'sweep.csv'}, sweep.parquet, sweep.json")


def _ladder_table(report: RunReport) -> Table:
    """The steps from the base to the champion, relative to the base."""
    from rich.text import Text

    columns = [f"{period}\n{short}\n{unit}" for period in ("validation", "test") for short, unit, _ in LADDER_COLUMNS]
    title = "Over the base, per year, on validation and test"
    table = plain_table(title, ["step", *columns], right=columns, collapse_padding=True)
    for label, is_deployed, cells in ladder_cells(report):
        table.add_row(Text(f"{label}, deployed" if is_deployed else label), *cells, style="bold" if is_deployed else "")
    return table


def plain_table(
    title: str = "",
    columns: Sequence[str] = (),
    *,
    right: Collection[str] = (),
    multiline: Collection[str] = (),
    collapse_padding: bool = False,
) -> Table:
    """A table without borders. right: columns aligned to the right. multiline: columns with text that may wrap."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=collapse_padding,
    )
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in multiline)
    return table


def _table(report: RunReport, metrics: Sequence[Metric]) -> Table:
    from rich.text import Text

    strategies = report.test.strategies
    prices = f", {report.data.name} ({count_text(len(report.data.symbols), 'symbol')})"
    columns = [f"{metric.heading}\n{metric.unit.heading}" for metric in metrics]
    is_plain_backtest = report.split is None and not report.in_sample
    heading = "Backtest" if is_plain_backtest else report.period_words[0].capitalize()
    title = f"{heading} {' to '.join(report.splits.test)}{prices}"
    table = plain_table(title, ["strategy", *columns], right=columns, collapse_padding=True)
    for name in champion_first(strategies):
        cells = [format_metric(metric, strategies[name].get(metric.name)) for metric in metrics]
        table.add_row(Text(display_name(name)), *cells, style="bold" if name == CHAMPION else "")
    return table


def show_findings(findings: Sequence[Finding]) -> None:
    """Print the findings of `finrl-pod doctor`, each with the suggested fix below it."""
    from rich.text import Text

    colours = {"ok": "green", "optional": "cyan", "unavailable": "dim", "broken": "red"}
    table = plain_table(columns=("status", "part", "what"), multiline=("what",))
    labels = []
    for finding in findings:
        missing = "unavailable" if finding.need == "machine" else "optional"
        labels.append(missing if finding.status == "missing" else finding.status)
        text = Text(finding.value)
        if finding.fix:
            text.append(f"\n{finding.fix}", style="dim")
        table.add_row(Text(labels[-1], style=colours[labels[-1]]), finding.name, text)
    broken_count = labels.count("broken")
    outcome = f"All that finrl-pod requires works. Optional parts that are not installed: {labels.count('optional')}."
    if broken_count:
        outcome = f"{broken_count} required part{'s are' if broken_count > 1 else ' is'} broken: fix what is marked so."
    console = make_console()
    console.print(table)
    console.print(outcome, markup=False)


def progress_summary(progress: Progress, seconds: float | None = None) -> str:
    """Return speed, best score and time left as one line; unknown values are left out.

    seconds: seconds since the start; stages after the training show nothing else.
    """
    is_trained = progress.seconds_left is None and 0 < progress.total_samples <= progress.samples
    if is_trained:
        words = [] if seconds is None else [f"after {_clock(seconds)}"]
        return ", ".join([*words, *([progress.detail] if progress.detail else [])])
    words = [f"{progress.samples_per_second:,.0f} samples/s"] if progress.samples_per_second > 0 else []
    if progress.best is not None:
        base = "" if progress.base is None else f" (base {progress.base:z.2f})"
        words.append(f"best validation Sharpe {progress.best:z.2f}{base}")
    if progress.seconds_left is not None and progress.samples >= EARLY_SHARE * progress.total_samples:
        words.append(f"{_clock(progress.seconds_left)} left")
    if progress.detail:
        words.append(progress.detail)
    return ", ".join(words)


def _clock(seconds: float) -> str:
    """61.4 -> 1:01; 3661 -> 1:01:01."""
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remaining_seconds:02d}" if hours else f"{minutes}:{remaining_seconds:02d}"


@contextmanager
def step_display(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that displays the name of a step: one live line on a terminal, otherwise a line per step."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True, emoji=False).status("starting") as status:
            yield lambda name: status.update(name)
    else:
        yield lambda name: print(name, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _live_line() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Bars(*columns, console=Console(stderr=True, emoji=False), transient=True) as bars:
        task = bars.add_task("starting", total=None, words="")
        start = time.monotonic()

        def report(progress: Progress) -> None:
            bars.update(
                task,
                description=progress.stage,
                completed=progress.samples,
                total=progress.total_samples or None,
                words=progress_summary(progress, time.monotonic() - start),
            )

        yield report


def _line_per_stage() -> ProgressCallback:
    last_stage = ""
    start = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal last_stage
        if progress.stage == last_stage:
            return
        last_stage = progress.stage
        words = progress_summary(progress, time.monotonic() - start)
        sys.stderr.write(f"{progress.stage}{': ' if words else ''}{words}\n")
        sys.stderr.flush()

    return report
