"""The view of the data page on a feature: what it says about later returns."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import features as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import show_figure, show_table

DEFAULT = "momentum_252_21"


def show_features(panel: Any) -> None:
    """Draw the choice of a feature, its information coefficients, returns by quantile, and turnover."""
    from finrl_pod.data import features

    names = list(features.available(panel))
    index = names.index(DEFAULT) if DEFAULT in names else 0
    name = st.selectbox("Feature", names, index=index, key=f"data: feature {panel.name}")
    try:
        document = cached.feature_analysis(panel.name, panel.sha256, name)
    except FinrlPodError as error:
        st.info(theme.escape_markdown(error), icon=":material/info:")
        return
    feature, training = document["features"][0], ", the training bars" * (document["split"] == "train")
    st.caption(
        f"{' to '.join(document['period'])}{training}. The feature is known on {feature['coverage']:.0%} of tradable "
        f"bars; its ranks of one bar and the next correlate with {feature['rank_autocorrelation']:.2f}, and "
        f"{feature['top_turnover']:.1%} of the highest quantile is new each bar."
    )
    if meaning := document.get("bars"):
        st.warning(theme.escape_markdown(meaning))
    left, right = st.columns(2)
    with left:
        meaning = (
            "Mean rank correlation with the return from the decision's fill to that of a decision so many bars later."
        )
        st.markdown("Information coefficient, 90% interval", help=meaning)
        figure = figures.information_coefficients(feature)
        show_figure(figure, f"information coefficient of {name}", alt=f"Information coefficient of {name} by horizon.")
    with right:
        st.markdown("Returns by quantile", help="Assets sorted by the feature at each bar.")
        figure = figures.quantile_returns(feature)
        show_figure(figure, f"returns by quantile of {name}", alt=f"Returns by quantile of {name}.")
    _show_table(feature)


def _show_table(feature: dict[str, Any]) -> None:
    column: Any = st.column_config
    columns = {
        "horizon": column.NumberColumn("Bars ahead"),
        "information_coefficient": column.NumberColumn("IC", format="%+.3f", help="Information coefficient."),
        "low": column.NumberColumn("IC, low", format="%+.3f", help="90% interval, stationary bootstrap."),
        "high": column.NumberColumn("IC, high", format="%+.3f"),
        "risk_adjusted": column.NumberColumn("IC / std", format="%+.2f", help="Over its standard deviation by bar."),
        "positive": column.NumberColumn("Bars above 0", format="percent"),
        "spread": column.NumberColumn("Spread, bp a bar", format="%+.2f", help="Highest less lowest quantile."),
        "spread_low": column.NumberColumn("Spread, low", format="%+.2f"),
        "spread_high": column.NumberColumn("Spread, high", format="%+.2f"),
    }
    alt = f"Information coefficient and spread of {feature['feature']} by horizon, with intervals."
    show_table(pd.DataFrame(feature["horizons"]), columns, "data: feature horizons", alt=alt)
