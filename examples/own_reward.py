"""Train with a reward of your own. The file names itself: a reward is FILE.py:function."""

import torch

import finrl_pod as fp


def cautious(interval):
    """Log growth above the base portfolio, less a charge for trading and for losses."""
    growth = torch.log(interval.after / interval.before)
    return growth - interval.base_growth - 0.002 * interval.turnover - 2.0 * growth.clamp(max=0.0) ** 2


if __name__ == "__main__":  # a run imports this file again to find the function
    settings = {"environment.reward": f"{__file__}:cautious", "environment.envs": 16}
    market = fp.make_market("sample", "quick", settings=settings)
    agent = fp.train(market, 5_000, seed=1, progress=False)
    print(f"reward of a step: {agent.history[-1]['reward']:.5f}")
    print(fp.backtest(agent, market))
