"""finrl_pod: vectorised market environments, population-based training of agents, and honest backtests.

The public names below are imported on first use, so `import finrl_pod` is fast and loads neither torch nor pandas:

    import finrl_pod as fp

    setup = fp.prepare()                        # the built-in sample: prices, splits, features, market
    agent = fp.train(setup, samples=500_000)
    fp.save_agent(agent, "agents/first", setup)
    print(fp.backtest(setup, fp.load_agent("agents/first")).metrics["sharpe"])
"""

from importlib import import_module

__version__ = "0.1.0"

# Public name -> "module:attribute". Names are strings so that the core does not import the packages built on it.
_PUBLIC = {
    # settings
    "RunConfig": "finrl_pod.settings.run:RunConfig",
    "load_config": "finrl_pod.settings.run:load",
    # data and markets
    "Panel": "finrl_pod.types:Panel",
    "MarketTensor": "finrl_pod.types:MarketTensor",
    "Store": "finrl_pod.data.store:Store",
    "make_panel": "finrl_pod.data.panel:make_panel",
    "register_feature": "finrl_pod.data.features:register",
    # environments
    "VecEnv": "finrl_pod.protocols:VecEnv",
    "make_env": "finrl_pod_envs.trading_envs:make_env",
    "PortfolioEnv": "finrl_pod_envs.trading_envs:PortfolioEnv",
    "StockTradingEnv": "finrl_pod_envs.trading_envs:StockTradingEnv",
    "DiscreteTradingEnv": "finrl_pod_envs.trading_envs:DiscreteTradingEnv",
    "GymMarketEnv": "finrl_pod_envs.gym:GymMarketEnv",
    "GymVectorEnv": "finrl_pod_envs.gym:GymVectorEnv",
    # training and evaluation
    "Setup": "finrl_pod_app.api:Setup",
    "prepare": "finrl_pod_app.api:prepare",
    "train": "finrl_pod_app.api:train",
    "backtest": "finrl_pod_app.api:backtest",
    "save_agent": "finrl_pod_app.api:save",
    "load_agent": "finrl_pod_app.api:load",
    "Learner": "finrl_pod.rl.training.learner:Learner",
    "Strategy": "finrl_pod.protocols:Strategy",
    "PolicyStrategy": "finrl_pod_strategies.policy:PolicyStrategy",
    "BacktestResult": "finrl_pod.types:BacktestResult",
    "FinrlPodError": "finrl_pod.errors:FinrlPodError",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name].split(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
