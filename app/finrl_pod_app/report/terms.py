"""Terms of the field and of this project, and notes that explain them where a page uses them for the first time."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping

from finrl_pod.evaluate.active_management import COMPARISON_METRICS
from finrl_pod.evaluate.metrics import METRICS
from finrl_pod.evaluate.tearsheet import TEAR_SHEET_METRICS

TERMS = {  # word -> meaning, with links of the glossary; up to the first full stop, colon or semicolon it stands alone
    "active return": (
        "return of an account less the return of its base, as a mean per year without compounding, so not the "
        "difference of the CAGRs"
    ),
    "active weights": "weights of an account less the weights of its base",
    "active return by factor": (
        "mean active return per year as a sum: active weights at each close times exposures known then times the "
        "return of the factor in the next bar, before costs; a residual with its interval; costs less costs of the base"
    ),
    "agent": (
        "a rule learned from past prices that sets the weights of a portfolio: one set of trained parameters with its "
        "hyperparameters. `g03s05` has generation and slot, both counted from 0: the sixth agent of generation 4"
    ),
    "alpha of the gate": (
        "active return less beta times the return of the base in excess of cash; the gate tests whether it is above 0"
    ),
    "bar": "one period of prices, such as a day",
    "baseline": "a simple strategy without training, to compare with",
    "base": "the portfolio of a strategy that prefers no asset, such as equal weight ([mandates](mandates.md))",
    "basis point": "one hundredth of a percent",
    "bootstrap": (
        "statistics of random samples of the data, drawn with replacement; of blocks of bars, to keep their order"
    ),
    "break-even cost": "cost of a trade, in basis points, at which the advantage over the reference is gone",
    "champion": (
        "the strategy under test, selected on validation: an ensemble of agents, or the solved policy that they "
        "started from"
    ),
    "cohort": "the pods of one algorithm in a tournament",
    "deflated Sharpe ratio": (
        "probabilistic Sharpe ratio against the best of as many trials without skill as were counted (Bailey and López "
        "de Prado 2014)"
    ),
    "distinct trials": (
        "clusters among all trials on a data set, over all runs: trials that behave alike count as one; if other runs "
        "add clusters, the gate takes the champion as the best of several selections"
    ),
    "drawdown": "loss since the highest equity so far",
    "edge": (
        "return above the reference that chance, selection and market risk do not explain: the gate tests the mean "
        "active return and alpha"
    ),
    "effective trials": (
        "number of independent trials whose best gains as much by chance as the selection of the champion does; the "
        "p-value of the gate allows for it. Not the number of distinct trials: trials of one cluster still differ"
    ),
    "ensemble": "agents that trade as one: the weights of the portfolio are the mean of theirs",
    "equal risk contribution": "a portfolio in which each asset adds the same risk",
    "equal weight": (
        "the same value in each asset: as a baseline restored every month or only at the start (buy and hold), as a "
        "base slowly"
    ),
    "excess return": "return less the return of cash",
    "factor": (
        "market beta (over 252 bars), 12-1 momentum, 5-day return or 252-bar volatility (as z-scores across the "
        "assets); its return in a bar is the slope of a regression of the returns of all assets"
    ),
    "gate": "the rules that a champion must pass before it may trade ([evaluation](evaluation.md#the-gate))",
    "hierarchical risk parity": "a portfolio that splits risk over groups of similar assets, and within each group",
    "interval": "range that contains the true value in 90 of 100 samples, if it is a 90% interval",
    "look": "an evaluation that shows results of the test years; each one makes the gate stricter",
    "look-back": "number of past bars that the encoder of a policy reads",
    "mandate": "bounds on what an agent may hold and trade",
    "mandate at tilt zero": (
        "the account that only holds the base, under the same trading rules; the gate compares with it"
    ),
    "inverse volatility": "weights in inverse proportion to the volatility of each asset",
    "mean variance": "the portfolio with the best return for its variance, both estimated from past returns",
    "minimum variance": "the portfolio with the smallest variance, estimated from past returns",
    "momentum": "to hold more of what rose before; momentum 12-1 counts twelve months without the last one",
    "minimum track record": (
        "number of bars after which a Sharpe ratio of this size is significant at 5% (Bailey and López de Prado 2012)"
    ),
    "nothing shown": (
        "chance or market risk explain the return above the base. This does not prove that there is no edge; the "
        "verdict states how large an edge would have been missed"
    ),
    "p-value": (
        "probability of a result at least as good as this one by luck alone. The gate takes the larger one of "
        "mean active return and alpha, each on test and validation together, after subtracting what selection explains "
        "on validation ([the test](verdict.md#the-test-for-an-edge))"
    ),
    "panel": (
        "stored prices under a name: [T, N] for N symbols on T bars, with volumes, spreads and sectors if there are any"
    ),
    "pod": "one agent in training, with its own accounts",
    "practically its base": (
        "a champion that uses less than a quarter of the active share that its mandate allows, or whose tracking error "
        "is below 0.5% per year ([cases](verdict.md#what-the-verdict-says))"
    ),
    "probabilistic Sharpe ratio (PSR)": (
        "one less the p-value of a Sharpe ratio of zero, given length, skewness and kurtosis of the returns"
    ),
    "probability of backtest overfitting (PBO)": (
        "share of splits of the data in which the best trial of one half is below the median of the other"
    ),
    "promoted": "allowed to trade: the champion passed every rule of the gate",
    "residual momentum": "momentum of the part of past returns that the market does not explain",
    "reversal": "to hold more of what fell before",
    "root": "the first ancestor in the lineage of an agent",
    "shard": "a worker that trains one assignment of a tournament at a time",
    "selection bias": (
        "what the best of several trials gains by chance; the gate lowers the z-score on validation accordingly"
    ),
    "slippage": "difference of the fill price from the price at the decision",
    "test period": "the last years of the data, which training and selection do not see",
    "stop rule": (
        "lower edge of the active return in the backtest: 1 in 20 resampled years falls below it, and paper trading "
        "then alerts"
    ),
    "tilt": "base weights are multiplied by factors between e^-tilt and e^tilt, then scaled to their sum",
    "too little data": (
        "a test that would miss a usual edge: it shows one with a probability of 80% only if its information ratio is "
        "above 1, as about eight years at a first look do"
    ),
    "transfer coefficient": "correlation of the active weights that an agent wants with those it holds",
    "trial": "a trained and scored agent, or the champion of a run; every one is counted",
    "validation period": "years between training and test: agents are selected by their results on them",
    "z-score": "difference from zero in units of its standard error",
}


NOTE_PLACE = "<!-- terms -->"


def explain(sections: Iterable[str]) -> list[str]:
    """Sections of a page as HTML, each with a note on the terms that the page uses there for the first time.

    A term is explained already if a section defines it, as `definition_texts` does. The note ends the section, or is at
    its `NOTE_PLACE`.
    """
    explained_terms: set[str] = set()
    explained_sections = []
    for section in sections:
        explained_terms |= {label.lower() for label in _DEFINED.findall(section)}
        meanings: dict[str, str] = {}
        texts = [html.unescape(_MARKUP.sub(" ", section))]
        for text in texts:  # meanings have terms as well
            for term in (_TERM_BY_WORD[_singular(match[0])] for match in _WORDS.finditer(text)):
                if term.lower() not in explained_terms:
                    explained_terms.add(term.lower())
                    meanings[term] = _short(_MEANINGS[term])
                    texts.append(meanings[term])
        note = f'<p class="note terms">{definition_texts(meanings)}.</p>' if meanings else ""
        start, tag, end = section.rpartition("</")
        whole = section.replace(NOTE_PLACE, note) if NOTE_PLACE in section else f"{start}{note}{tag}{end}"
        explained_sections.append(whole)
    return explained_sections


def definition_texts(meanings: Mapping[str, str]) -> str:
    """Labels in bold with their meanings, escaped, for a paragraph."""
    texts = (f"<strong>{html.escape(label)}</strong>: {html.escape(meaning)}" for label, meaning in meanings.items())
    return "; ".join(texts)


def _short(meaning: str) -> str:
    """The first part of a meaning without links."""
    return re.split(r"[.;:] ", _LINK.sub("", meaning))[0]


def _singular(word: str) -> str:
    word = word.lower()
    return word if word in _TERM_BY_WORD else word.removesuffix("s")


_METRICS = (*METRICS, *COMPARISON_METRICS, *TEAR_SHEET_METRICS)
_MEANINGS = TERMS | {metric.label: metric.explanation for metric in _METRICS}
# "Annual return (CAGR)" is found by either of its names.
_TERM_BY_WORD = {word.lower(): term for term in _MEANINGS for word in re.split(r" \(|\)", term) if word}
_WORDS = re.compile(
    rf"\b(?:{'|'.join(sorted(map(re.escape, _TERM_BY_WORD), key=len, reverse=True))})s?\b", re.IGNORECASE
)
_LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")
_DEFINED = re.compile(r"<strong>([^<]+)</strong>:")
_MARKUP = re.compile(r"<script.*?</script>|<svg.*?</svg>|<[^>]+>", re.DOTALL)
