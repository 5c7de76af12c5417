"""Data quality checks of panels: errors that exclude a panel, and warnings kept with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from finrl_pod.data.dates import WEEKEND, stamp, weekend_days
from finrl_pod.errors import count_text
from finrl_pod.prices import Bools, Floats, Panel

JUMP = 0.40  # close-to-close return that is reported
_WHOLE = (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 50)
# (new, old) shares; the price is divided by their ratio. Reverse splits below 1:2 do not occur.
SPLITS = ((5, 4), (3, 2), *((k, 1) for k in _WHOLE), *((1, k) for k in _WHOLE))
_SMALLEST_SPLIT = 0.2  # log move of 5:4, less its tolerance
SPLIT_TOLERANCE = 0.03  # of the log move, for the move of the market on that bar
SMALL_SPLIT_TOLERANCE = 0.02  # below 2:1, where moves on news are frequent
# times the 90% quantile of absolute moves over so many bars
SPLIT_SIZE = 6.0
SPLIT_WINDOW = 21
STALE_BARS = 15  # three weeks
# Shares of the bars from which repeated prices are named. Closes alone repeat by chance, the more the coarser their
# ticks are: a stock of 1 USD in sixteenths repeats an eighth of them; filled weekends exceed this.
REPEATS_MIN_BARS = 20  # of a panel whose repeated prices are named
# of a single ticker: of daily closes; of bars within the day
REPEATED_BARS = 0.02
REPEATED_INTRADAY_BARS = 0.1
REPEATED_BARS_MAX = 0.1  # of several tickers: above it an import is refused
# of a ticker with and without further columns
REPEATED_CLOSES = 0.2
REPEATED_PRICES = 0.02
FEW_REPEATS = 10
WEEKEND_SHARE = 0.05  # of daily bars: with more, the market trades on weekends
# Far beyond any quote, and small enough that products of prices, shares and volumes keep full precision.
MIN_PRICE, MAX_PRICE, MAX_VOLUME = 1e-30, 1e30, 1e30
MAX_SPREAD = 1.0  # excluded: half of it is charged on a fill
ROUNDING = 1e-9  # relative: filled prices may have been multiplied by a factor
MANY = 3  # tickers that repeat their prices on one bar by chance
PRICES = ("open", "high", "low", "close")
SENTENCES_PER_KIND = 10
SURVIVORSHIP_BARS = 252  # a shorter panel shows too little of which tickers survive
UNFINISHED = "was not finished when it was fetched."  # the end of a flaw of sources
# Panels store the sentences of their warnings, and checks recognise them by their text: a changed one is repeated.


@dataclass(frozen=True)
class Flaw:
    """One flaw of a panel.

    hard: the panel is invalid and must not be used; otherwise the flaw is a warning. kind: times, symbol, price, hole
    (hard); weekend, repeat, jump, split, stale, late start, early end, gap, empty ticker, volume, range,
    outlier, survivorship (soft). time: None if the flaw is not about a single bar.
    """

    kind: str
    hard: bool
    message: str
    symbol: str | None = None
    time: np.datetime64 | None = None


def check(panel: Panel, locate: Callable[[int, int], str] | None = None) -> tuple[Flaw, ...]:
    """Check a panel: its hard flaws, or if it has none, its warnings.

    locate: source of cell (t, n) for messages, such as "prices.csv, line 7".
    """
    hard = (*_times(panel), *_symbols(panel), *_prices(panel, locate), *_benchmark(panel))
    # The soft checks compare neighbouring bars: meaningless on invalid times or prices.
    return hard or (
        *_weekends(panel),
        *_repeats(panel),
        *_jumps(panel),
        *_splits(panel),
        *_stale(panel),
        *_lifetimes(panel),
        *_volumes(panel),
        *_ranges(panel),
        *_outliers(panel),
        *_survivorship(panel),
    )


def sentences(flaws: Sequence[Flaw]) -> tuple[str, ...]:
    """Messages of flaws: at most `SENTENCES_PER_KIND` of each kind, then the number of further ones."""
    kinds: dict[str, list[str]] = {}
    for flaw in flaws:
        kinds.setdefault(flaw.kind, []).append(flaw.message)
    lines: list[str] = []
    for kind, messages in kinds.items():
        lines += messages[:SENTENCES_PER_KIND]
        if len(messages) > SENTENCES_PER_KIND:
            lines.append(f"There are {len(messages) - SENTENCES_PER_KIND} more flaws of the kind {kind!r}.")
    return tuple(lines)


def is_unfinished(flaw: str) -> bool:
    """Whether a flaw says that the last bar may be incomplete."""
    return flaw.endswith(UNFINISHED)


def _times(panel: Panel) -> Iterator[Flaw]:
    steps = np.diff(panel.times.astype("datetime64[ns]").astype(np.int64))
    for t in np.flatnonzero(steps <= 0)[:1] + 1:
        time = panel.times[t]
        fault = "appears twice" if steps[t - 1] == 0 else f"comes after {stamp(panel.times[t - 1], panel.bar)}"
        message = f"bar {t} ({stamp(time, panel.bar)}) {fault}: times must increase; sort them and remove repeats"
        yield Flaw("times", True, message, time=time)


def _symbols(panel: Panel) -> Iterator[Flaw]:
    for symbol, count in Counter(panel.symbols).items():
        if not symbol.strip():
            yield Flaw("symbol", True, "a ticker has an empty name: every ticker needs one", symbol)
        elif count > 1:
            yield Flaw("symbol", True, f"ticker {symbol} appears {count} times: symbols must be unique", symbol)
    if panel.sectors is not None and len(panel.sectors) != len(panel.symbols):
        counts = f"{count_text(len(panel.symbols), 'ticker')} has {count_text(len(panel.sectors), 'sector')}"
        message = f"a panel of {counts}: it needs one for each"
        yield Flaw("symbol", True, message)


def _prices(panel: Panel, locate: Callable[[int, int], str] | None) -> Iterator[Flaw]:
    for column in panel.columns:
        values = getattr(panel, column)
        is_known = ~np.isnan(values)
        holes = panel.tradable & ~is_known & (column not in ("spread", "volume"))
        if column == "spread":
            is_valid = (values >= 0) & (values < MAX_SPREAD)
        elif column == "dividend":
            is_valid = (values >= 0) & (values < pd.DataFrame(panel.close).ffill().shift().fillna(MAX_PRICE).to_numpy())
        else:
            low, high = (0.0, MAX_VOLUME) if column == "volume" else (MIN_PRICE, MAX_PRICE)
            is_valid = (values >= low) & (values <= high)
        wrong = panel.tradable & is_known & ~is_valid
        for t, n in np.argwhere(wrong | holes):
            cell = locate(int(t), int(n)) if locate else ""
            prefix = f"{cell}: " if cell else ""
            symbol = panel.symbols[n]
            fact = f"{prefix}{column} of {symbol} on {stamp(panel.times[t], panel.bar)} is {values[t, n]:g}"
            message = f"{fact}: {_value_rule(column, values[t, n])}; correct it or leave the bar out"
            yield Flaw("hole" if holes[t, n] else "price", True, message, symbol, panel.times[t])


def _value_rule(column: str, value: float) -> str:
    if column == "spread":
        return "spreads are fractions of the price, 0 or more and below 1 (0.0005 for 5 basis points)"
    if column == "dividend":
        return "dividends are cash per share, 0 or more and below the close before"
    is_in_range = np.isfinite(value) and value > 0
    if column == "volume":
        return f"volumes must be {f'at most {MAX_VOLUME:g}' if is_in_range else 'finite and not negative'}"
    limits = f"lie between {MIN_PRICE:g} and {MAX_PRICE:g}" if is_in_range else "be above zero and finite"
    return f"prices must {limits}"


def _benchmark(panel: Panel) -> Iterator[Flaw]:
    benchmark = panel.benchmark
    if benchmark is None:
        return
    if benchmark.close.shape != panel.times.shape:
        message = f"benchmark {benchmark.name} has {benchmark.close.size} bars, the panel {panel.times.size}"
        yield Flaw("price", True, f"{message}: they must be the same bars", benchmark.name)
        return
    for t in np.flatnonzero(~((benchmark.close >= MIN_PRICE) & (benchmark.close <= MAX_PRICE))):
        fact = f"benchmark {benchmark.name} on {stamp(panel.times[t], panel.bar)} is {benchmark.close[t]:g}"
        rule = _value_rule("close", benchmark.close[t])
        yield Flaw("price", True, f"{fact}: {rule}", benchmark.name, panel.times[t])


def _weekends(panel: Panel) -> Iterator[Flaw]:
    """Daily bars on weekends of a market that rarely trades then."""
    if panel.bar != "1d":
        return
    weekends = [(time, day) for time, day in zip(panel.times, weekend_days(panel.times), strict=True) if day]
    weekdays = np.bincount((panel.times.astype("datetime64[D]").astype(int) + 3) % 7, minlength=7)  # from Monday
    for present, missing in ((6, 4), (5, 0)):  # a day early: midnights east of UTC; a day late: of the end of a day
        if weekdays[present] > max(WEEKEND_SHARE * len(panel.times), 2) and not weekdays[missing]:
            message = (
                f"{share_of_bars(int(weekdays[present]), len(panel.times))} are on {WEEKEND[present]}s and none on "
                f"{('Mondays', 'Fridays')[missing == 4]}: these seem to be midnights of another time zone (such as "
                "Tokyo) in UTC, so that days are shifted by one; write dates of the exchange, unless it trades then."
            )
            yield Flaw("weekend", False, message)
    if len(weekends) <= WEEKEND_SHARE * len(panel.times):
        for time, day in weekends:
            message = f"{stamp(time, panel.bar)} is a {day}: remove the rows of that day, unless the market was open."
            yield Flaw("weekend", False, message, time=time)


def _repeats(panel: Panel) -> Iterator[Flaw]:
    """Bars on which all, most or single tickers repeat their prices: filled weekends, holidays or gaps."""
    bars = len(panel.times)
    daily = panel.bar == "1d"
    if bars < REPEATS_MIN_BARS:
        return
    cells = repeated_cells(panel)
    all_repeat = repeated_bars(panel, cells)
    count = cells.sum(1)
    most_repeat = (count >= MANY) & (2 * count >= panel.tradable.sum(1)) & ~all_repeat
    only_closes = not {"open", "high", "low", "volume"} & set(panel.columns)
    by_chance = 0.0
    if len(panel.symbols) == 1:
        by_chance = REPEATED_BARS * only_closes if daily else REPEATED_INTRADAY_BARS
    import_fix = "import with --drop-repeated-bars (drop_repeated_bars=True in Python), or remove these rows."
    row_fix = "remove these rows, or leave the tickers out of them."
    for is_repeat, contents, fix in (
        (all_repeat, "every price", import_fix),
        (most_repeat, "the prices of most tickers", row_fix),
    ):
        repeats = int(is_repeat.sum())
        if repeats > by_chance * bars:
            time = panel.times[is_repeat.argmax()]
            verb = "repeats" if repeats == 1 else "repeat"
            message = (
                f"{share_of_bars(repeats, bars)} {verb} {contents} of the bar before, "
                f"first on {stamp(time, panel.bar)}: filled weekends or holidays add returns of zero; {fix}"
            )
            yield Flaw("repeat", False, message, time=time)
    cells[all_repeat | most_repeat] = False
    limit = REPEATED_CLOSES if only_closes else REPEATED_PRICES
    for n in np.flatnonzero(cells.sum(0) > np.maximum(limit * panel.tradable.sum(0), FEW_REPEATS)) if daily else ():
        time = panel.times[cells[:, n].argmax()]
        share = share_of_bars(int(cells[:, n].sum()), int(panel.tradable[:, n].sum()))
        message = (
            f"{panel.symbols[n]} repeats its prices on {share}, first on {stamp(time, panel.bar)}: filled holidays, or "
            "it did not trade; leave these bars out."
        )
        yield Flaw("repeat", False, message, panel.symbols[n], time)


def share_of_bars(count: int, bars: int) -> str:
    """Number and share of bars, for messages."""
    return f"{count:,} of {bars:,} bars ({count / bars:.1%})"


def _jumps(panel: Panel) -> Iterator[Flaw]:
    """Returns above `JUMP` from the last known close."""
    jumps: list[tuple[int, int, float, float]] = []
    for n in range(len(panel.symbols)):  # one ticker at a time: tables of all would be copies of the prices
        close = panel.close[:, n]
        last_close = pd.Series(close).ffill().shift().to_numpy()
        moves = close / last_close - 1
        jumps += [(int(t), n, last_close[t], moves[t]) for t in np.flatnonzero(np.abs(np.nan_to_num(moves)) > JUMP)]
    for t, n, price, move in sorted(jumps):
        symbol = panel.symbols[n]
        time = panel.times[t]
        verb = "rises" if move > 0 else "falls"
        prices = f"from {price:g} to {panel.close[t, n]:g}"
        message = f"{symbol} {verb} {abs(move):.0%} in one bar on {stamp(time, panel.bar)} ({prices}), kept as is."
        yield Flaw("jump", False, message, symbol, time)


def _splits(panel: Panel) -> Iterator[Flaw]:
    """Single moves to a price ratio that splits have, far outside usual moves of the ticker at that time."""
    for n, symbol in enumerate(panel.symbols):
        bars = np.flatnonzero(panel.tradable[:, n])
        if len(bars) <= SPLIT_WINDOW:
            continue
        moves = np.diff(np.log(panel.close[bars, n]))
        if np.abs(moves).max() <= _SMALLEST_SPLIT:  # spares the quantiles: a second per million bars
            continue
        size = np.abs(moves)
        windows = pd.Series(size).rolling(SPLIT_WINDOW, center=True, min_periods=SPLIT_WINDOW // 2)
        usual_size = windows.quantile(0.9).to_numpy()
        is_far = size - np.minimum(SPLIT_TOLERANCE, usual_size) > SPLIT_SIZE * usual_size
        for i in np.flatnonzero(is_far & (size > _SMALLEST_SPLIT)):
            new_shares, old_shares = min(SPLITS, key=lambda ratio: abs(moves[i] + np.log(ratio[0] / ratio[1])))
            tolerance = SMALL_SPLIT_TOLERANCE if old_shares in (2, 4) and new_shares > old_shares else SPLIT_TOLERANCE
            if abs(moves[i] + np.log(new_shares / old_shares)) > tolerance:
                continue
            time = panel.times[bars[i + 1]]
            doubt = ", and the prices are not adjusted as stated" if panel.adjusted else ""
            message = (
                f"{symbol} moves from {panel.close[bars[i], n]:g} to {panel.close[bars[i + 1], n]:g} on "
                f"{stamp(time, panel.bar)}: likely a {new_shares}:{old_shares} split{doubt}; adjust the prices before "
                "it, or ignore this if there was news."
            )
            yield Flaw("split", False, message, symbol, time)


def _stale(panel: Panel) -> Iterator[Flaw]:
    """Tickers whose daily close stands still for weeks."""
    if panel.bar != "1d":
        return
    for n, symbol in enumerate(panel.symbols):
        bars = np.flatnonzero(panel.tradable[:, n])
        ends = np.flatnonzero(np.append(np.diff(panel.close[bars, n]) != 0, True)) if len(bars) else bars
        lengths = np.diff(ends, prepend=-1)
        for i in np.flatnonzero(lengths >= STALE_BARS)[:1]:
            first, last = (panel.times[bars[t]] for t in (ends[i] - lengths[i] + 1, ends[i]))
            message = (
                f"{symbol} closes at {panel.close[bars[ends[i]], n]:g} on {lengths[i]} bars in a row, from "
                f"{stamp(first, panel.bar)} to {stamp(last, panel.bar)}: it may not have traded; leave these bars out."
            )
            yield Flaw("stale", False, message, symbol, first)


def _lifetimes(panel: Panel) -> Iterator[Flaw]:
    """Tickers that start late, end early, have gaps, or have no bars."""
    for n, symbol in enumerate(panel.symbols):
        bars = np.flatnonzero(panel.tradable[:, n])
        if not bars.size:
            yield Flaw("empty ticker", False, f"{symbol} has no bar at all and is never tradable.", symbol)
            continue
        first, last = int(bars[0]), int(bars[-1])
        if first > 0:
            message = f"{symbol} starts on {stamp(panel.times[first], panel.bar)} and is untradable before."
            yield Flaw("late start", False, message, symbol, panel.times[first])
        if last < panel.times.size - 1:
            message = f"{symbol} ends early, on {stamp(panel.times[last], panel.bar)}, and is untradable after."
            yield Flaw("early end", False, message, symbol, panel.times[last])
        if missing := last - first + 1 - bars.size:
            hole = panel.times[first + int(np.argmin(panel.tradable[first : last + 1, n]))]
            count = count_text(missing, "bar")
            message = f"{symbol} lacks {count} inside its life, first on {stamp(hole, panel.bar)}, untradable there."
            yield Flaw("gap", False, message, symbol, hole)


def _volumes(panel: Panel) -> Iterator[Flaw]:
    """The number of bars with prices and without a volume."""
    if panel.volume is None:
        return
    bars, tickers = np.nonzero(panel.tradable & np.isnan(panel.volume))
    if bars.size:
        first = f"the first of {panel.symbols[tickers[0]]} on {stamp(panel.times[bars[0]], panel.bar)}"
        message = (
            f"{count_text(bars.size, 'bar')} without volume, {first}: impact and limits of participation take the last "
            "known volume of the ticker."
        )
        yield Flaw("volume", False, message)


def _ranges(panel: Panel) -> Iterator[Flaw]:
    """Bars whose open or close lies outside [low, high], beyond the rounding of adjusted prices."""
    if panel.low is None or panel.high is None:
        return
    slack = 1e-4
    is_outside = panel.high < panel.low * (1 - slack)
    for price in (panel.open, panel.close):
        if price is not None:
            is_outside |= (price < panel.low * (1 - slack)) | (price > panel.high * (1 + slack))
    for t, n in np.argwhere(is_outside):
        symbol = panel.symbols[n]
        time = panel.times[t]
        message = f"{symbol} on {stamp(time, panel.bar)} has an open or close outside its low and high."
        yield Flaw("range", False, message, symbol, time)


def _outliers(panel: Panel) -> Iterator[Flaw]:
    """Opens more than `JUMP` from the closes before and after them, and highs and lows so far from open and close."""
    limits = {1: np.log(1 + JUMP), -1: -np.log(1 - JUMP)}  # of log moves up and down
    for n, symbol in enumerate(panel.symbols):  # one ticker at a time: tables of all would be copies of the prices
        close = panel.close[:, n]
        last_close = pd.Series(close).ffill().shift().to_numpy()
        opens = close if panel.open is None else panel.open[:, n]
        rows: list[tuple[int, str, float, str]] = []
        if panel.open is not None:
            for sign, limit in limits.items():
                nearest = np.fmin(sign * np.log(opens / last_close), sign * np.log(opens / close))
                for t in np.flatnonzero(nearest > limit):
                    context = f" after a close of {last_close[t]:g}" if np.isfinite(last_close[t]) else ""
                    rows.append((int(t), "opens at", opens[t], f"{context} and before one of {close[t]:g}"))
        for name, extreme, sign in (("high", np.maximum, 1), ("low", np.minimum, -1)):
            values = getattr(panel, name)
            if values is not None:
                nearest = extreme(opens, close)
                for t in np.flatnonzero(sign * np.log(values[:, n] / nearest) > limits[sign]):
                    rows.append((int(t), f"has a {name} of", values[t, n], f" beside a price of {nearest[t]:g}"))
        for bar, description, value, comparison in sorted(rows):
            time = panel.times[bar]
            message = f"{symbol} {description} {value:g} on {stamp(time, panel.bar)}{comparison}, kept as is; check it."
            yield Flaw("outlier", False, message, symbol, time)


def _survivorship(panel: Panel) -> Iterator[Flaw]:
    """A panel in which no ticker ever leaves, unless its source says something about survivorship."""
    if len(panel.times) < SURVIVORSHIP_BARS or len(panel.symbols) < 2 or not panel.investable[-1].all():
        return
    if panel.members is not None and not panel.members.all():
        return
    message = (
        f"Survivorship: all {len(panel.symbols)} tickers trade until the last bar, none was delisted; they were "
        "probably selected with hindsight."
    )
    if not any("urvivorship" in sentence and sentence != message for sentence in panel.flaws):
        yield Flaw("survivorship", False, message)


# ---------------------------------------------------------------------- repeated prices
#
# Weekends, holidays and gaps that a source filled forward: nothing trades on them. They add returns of zero that hide
# reversals and momentum between the days around them, and a year has more bars than days of trading.


def repeated_cells(panel: Panel) -> Bools:
    """[T, N], True where all prices of a ticker equal the prices of the bar before, or all equal the close before.

    With a known volume that is neither 0 nor repeated, it has traded.
    """
    is_repeat: Bools = np.zeros(panel.close.shape, dtype=bool)
    for n in range(len(panel.symbols)):  # one ticker at a time: tables of all would be copies of the prices
        bars = np.flatnonzero(panel.tradable[:, n])
        close = panel.close[bars, n]
        quotes = [getattr(panel, name)[bars, n] for name in PRICES if name in panel.columns]
        is_same = np.logical_and.reduce([_equal(x[1:], x[:-1]) for x in quotes])
        flat = np.logical_and.reduce([_equal(x[1:], close[1:]) for x in quotes]) & _equal(close[1:], close[:-1])
        cells = is_same | flat
        if panel.volume is not None:
            volume = panel.volume[bars, n]
            cells &= ~(volume[1:] > 0) | (volume[1:] == volume[:-1])
        is_repeat[bars[1:], n] = cells
    return is_repeat


def repeated_bars(panel: Panel, cells: Bools) -> Bools:
    """[T], True at bars on which every ticker that trades repeats its prices. cells: result of `repeated_cells`."""
    trades = panel.tradable.any(1)
    return np.asarray(trades & (cells | ~panel.tradable).all(1))


def _equal(x: Floats, y: Floats) -> Bools:
    return np.asarray(np.abs(x - y) <= ROUNDING * np.abs(y))
