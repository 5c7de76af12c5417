"""Writes docs/glossary.md: python -m finrl_pod_app.setup.glossary > docs/glossary.md."""

from __future__ import annotations

import sys

from finrl_pod.evaluate.active_management import COMPARISON_METRICS
from finrl_pod.evaluate.metrics import METRICS, OWNER_METRICS
from finrl_pod.evaluate.tearsheet import TEAR_SHEET_METRICS

TERMS = {  # word -> meaning, with links of the page
    "active return": (
        "return of an account less the return of its base; per year: the mean over bars, not the difference of CAGRs"
    ),
    "active return by factor": (
        "mean active return per year as a sum: active weights at each close times exposures known then times the "
        "return of the factor in the next bar, before costs; a residual with its interval; costs less costs of the base"
    ),
    "agent": (
        "one set of trained weights with its hyperparameters; `g03s05` has generation and slot, both counted from 0: "
        "the sixth agent of generation 4"
    ),
    "alpha of the gate": (
        "active return less beta times the return of the base in excess of cash; the gate tests whether it is above 0"
    ),
    "base": "the portfolio that an agent tilts, such as equal weight ([mandates](mandates.md))",
    "break-even cost": "cost of a trade, in basis points, at which the advantage over the reference is gone",
    "champion": "the ensemble that a tournament selects on validation, or the solved policy that agents started from",
    "cohort": "the pods of one algorithm in a tournament",
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
    "factor": (
        "market beta (over 252 bars), 12-1 momentum, 5-day return or 252-bar volatility (as z-scores across the "
        "assets); its return in a bar is the slope of a regression of the returns of all assets"
    ),
    "gate": "the rules that a champion must pass before it may trade ([evaluation](evaluation.md#the-gate))",
    "look": "an evaluation that shows results of a test period; each one makes the gate stricter",
    "look-back": "number of past bars that the encoder of a policy reads",
    "mandate": "bounds on what an agent may hold and trade",
    "mandate at tilt zero": (
        "the account that only holds the base, traded as slowly as agents under the mandate trade; the gate compares "
        "with it"
    ),
    "nothing shown": (
        "chance or market risk explain the return above the base. This does not prove that there is no edge; the "
        "verdict states how large an edge would have been missed"
    ),
    "p-value": (
        "probability of a result at least as good as this one if there were no edge. The gate takes the larger one of "
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
    "root": "the first ancestor in the lineage of an agent",
    "shard": "a worker that trains one assignment of a tournament at a time",
    "selection bias": (
        "what the best of several trials gains by chance; the gate lowers the z-score on validation accordingly"
    ),
    "slippage": "difference of the fill price from the price at the decision",
    "tilt": "base weights are multiplied by factors between e^-tilt and e^tilt, then scaled to their sum",
    "too little data": (
        "a test that shows an edge with a probability of 80% only if its information ratio is above 1: about eight "
        "years at a first look"
    ),
    "transfer coefficient": "correlation of the active weights that an agent wants with those it holds",
    "trial": "a trained and scored agent, or the champion of a run; every one is counted",
    "z-score": "difference from zero in units of its standard error",
}


def page() -> str:
    """The page: all terms and metrics in alphabetical order."""
    terms = dict(TERMS)
    for metric in (*METRICS, *OWNER_METRICS, *COMPARISON_METRICS, *TEAR_SHEET_METRICS):
        label = metric.label
        is_name = label.startswith(metric.heading)  # names of persons keep their capital
        terms[label if is_name else label[0].lower() + label[1:]] = metric.explanation
    items = sorted(terms.items(), key=lambda term: term[0].casefold())
    rows = "".join(f"| {word} | {meaning} |\n" for word, meaning in items)
    return f"# Glossary\n\n| word | meaning |\n|---|---|\n{rows}"


if __name__ == "__main__":
    sys.stdout.write(page())
