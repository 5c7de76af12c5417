"""Types of the lazily imported public names, for editors and type checkers; a test compares both lists."""

from finrl_pod_app.api.environments import EnvAgents as EnvAgents
from finrl_pod_app.api.environments import load_env_agents as load_env_agents
from finrl_pod_app.api.environments import train_env as train_env
from finrl_pod_app.api.evaluation import audit as audit
from finrl_pod_app.api.evaluation import backtest as backtest
from finrl_pod_app.api.evaluation import check as check
from finrl_pod_app.api.evaluation import judge as judge
from finrl_pod_app.api.evaluation import load_run as load_run
from finrl_pod_app.api.evaluation import orders as orders
from finrl_pod_app.api.evaluation import run_tournament as run_tournament
from finrl_pod_app.api.evaluation import walkforward as walkforward
from finrl_pod_app.api.markets import load_config as load_config
from finrl_pod_app.api.markets import load_prices as load_prices
from finrl_pod_app.api.markets import make_market as make_market
from finrl_pod_app.api.results import Backtest as Backtest
from finrl_pod_app.api.setup import Setup as Setup
from finrl_pod_app.api.setup import load as load_agent
from finrl_pod_app.api.setup import prepare as prepare
from finrl_pod_app.api.setup import save as save_agent
from finrl_pod_app.api.training import TrainedAgent as TrainedAgent
from finrl_pod_app.api.training import train as train
from finrl_pod_app.setup.training_loggers import open_logger as open_logger
from finrl_pod_envs.custom.base_env import BaseVecEnv as BaseVecEnv
from finrl_pod_envs.gym import GymMarketEnv as GymMarketEnv
from finrl_pod_envs.gym import GymVectorEnv as GymVectorEnv
from finrl_pod_envs.trading_envs import DiscreteTradingEnv as DiscreteTradingEnv
from finrl_pod_envs.trading_envs import PortfolioEnv as PortfolioEnv
from finrl_pod_envs.trading_envs import StockTradingEnv as StockTradingEnv
from finrl_pod_envs.trading_envs import make_env as make_env
from finrl_pod_strategies.policy import PolicyStrategy as PolicyStrategy

from finrl_pod.data.features import register as register_feature
from finrl_pod.data.panel import make_panel as make_panel
from finrl_pod.data.store import Store as Store
from finrl_pod.errors import FinrlPodError as FinrlPodError
from finrl_pod.promotion.edge import judge_returns as judge_returns
from finrl_pod.protocols import Strategy as Strategy
from finrl_pod.protocols import VecEnv as VecEnv
from finrl_pod.rl.algorithms.a2c import LossAlgorithm as LossAlgorithm
from finrl_pod.rl.networks.policies import BasePolicy as BasePolicy
from finrl_pod.rl.networks.policies import register_policy as register_policy
from finrl_pod.rl.training.learner import Learner as Learner
from finrl_pod.settings.algorithm_registry import register_algorithm as register_algorithm
from finrl_pod.settings.run import RunConfig as RunConfig
from finrl_pod.types import BacktestResult as BacktestResult
from finrl_pod.types import MarketTensor as MarketTensor
from finrl_pod.types import Panel as Panel

__version__: str

__all__ = [
    "Backtest",
    "BacktestResult",
    "BasePolicy",
    "BaseVecEnv",
    "DiscreteTradingEnv",
    "FinrlPodError",
    "GymMarketEnv",
    "GymVectorEnv",
    "Learner",
    "LossAlgorithm",
    "MarketTensor",
    "Panel",
    "PolicyStrategy",
    "PortfolioEnv",
    "RunConfig",
    "Setup",
    "StockTradingEnv",
    "Store",
    "Strategy",
    "TrainedAgent",
    "VecEnv",
    "__version__",
    "audit",
    "backtest",
    "check",
    "judge",
    "judge_returns",
    "load_agent",
    "load_config",
    "load_prices",
    "load_run",
    "make_env",
    "make_market",
    "make_panel",
    "open_logger",
    "orders",
    "prepare",
    "register_algorithm",
    "register_feature",
    "register_policy",
    "run_tournament",
    "save_agent",
    "train",
    "walkforward",
]
