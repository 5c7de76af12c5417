"""A market whose fills are at the observed close on its last hundred bars."""

import dataclasses

import torch

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import MarketTensor, Panel

EXPECTED = ("fills", "the market's fill price")


def plant(sound: Pipeline) -> Pipeline:
    def build(panel: Panel) -> MarketTensor:
        market = sound.build(panel)
        late = torch.arange(len(market.close))[:, None] > 800
        return dataclasses.replace(market, fill=torch.where(late, market.close, market.fill))

    return dataclasses.replace(sound, build=build, make_env=None)
