"""finrl_pod: vectorised market environments, population-based training of agents, and honest backtests.

The public names below are imported on first use, so `import finrl_pod` is fast and loads neither torch nor pandas:

    import finrl_pod as fp

    market = fp.make_market("sample")           # prices, splits, features; also from a DataFrame or a file
    agent = fp.train(market, samples=500_000)
    agent.save("agents/first")
    print(fp.backtest(agent, market).metrics["sharpe"])
"""

from importlib import import_module

__version__ = "1.0.0rc1"

# Public name -> "module:attribute". Names are strings so that the core does not import the packages built on it.
_PUBLIC = {
    # settings
    "RunConfig": "finrl_pod.settings.run:RunConfig",
    "load_config": "finrl_pod_app.api.markets:load_config",
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
    "Setup": "finrl_pod_app.api.setup:Setup",
    "prepare": "finrl_pod_app.api.setup:prepare",
    "load_prices": "finrl_pod_app.api.markets:load_prices",
    "make_market": "finrl_pod_app.api.markets:make_market",
    "train": "finrl_pod_app.api.training:train",
    "train_env": "finrl_pod_app.api.environments:train_env",
    "load_env_agents": "finrl_pod_app.api.environments:load_env_agents",
    "EnvAgents": "finrl_pod_app.api.environments:EnvAgents",
    "backtest": "finrl_pod_app.api.evaluation:backtest",
    "orders": "finrl_pod_app.api.evaluation:orders",
    "run_tournament": "finrl_pod_app.api.evaluation:run_tournament",
    "audit": "finrl_pod_app.api.evaluation:audit",
    "check": "finrl_pod_app.api.evaluation:check",
    "walkforward": "finrl_pod_app.api.evaluation:walkforward",
    "judge": "finrl_pod_app.api.evaluation:judge",
    "judge_returns": "finrl_pod.promotion.edge:judge_returns",
    "load_run": "finrl_pod_app.api.evaluation:load_run",
    "TrainedAgent": "finrl_pod_app.api.training:TrainedAgent",
    "Backtest": "finrl_pod_app.api.results:Backtest",
    "open_logger": "finrl_pod_app.setup.training_loggers:open_logger",
    "register_algorithm": "finrl_pod.settings.algorithm_registry:register_algorithm",
    "register_policy": "finrl_pod.rl.networks.policies:register_policy",
    "LossAlgorithm": "finrl_pod.rl.algorithms.a2c:LossAlgorithm",
    "BasePolicy": "finrl_pod.rl.networks.policies:BasePolicy",
    "BaseVecEnv": "finrl_pod_envs.custom.base_env:BaseVecEnv",
    "save_agent": "finrl_pod_app.api.setup:save",
    "load_agent": "finrl_pod_app.api.setup:load",
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
    return list(__all__)
