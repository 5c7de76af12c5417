"""Types of the lazily imported public names, for editors and type checkers; a test compares both lists."""

from finrl_pod_app.api import Setup as Setup
from finrl_pod_app.api import backtest as backtest
from finrl_pod_app.api import load as load_agent
from finrl_pod_app.api import prepare as prepare
from finrl_pod_app.api import save as save_agent
from finrl_pod_app.api import train as train
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
from finrl_pod.protocols import Strategy as Strategy
from finrl_pod.protocols import VecEnv as VecEnv
from finrl_pod.rl.training.learner import Learner as Learner
from finrl_pod.settings.run import RunConfig as RunConfig
from finrl_pod.settings.run import load as load_config
from finrl_pod.types import BacktestResult as BacktestResult
from finrl_pod.types import MarketTensor as MarketTensor
from finrl_pod.types import Panel as Panel

__version__: str

__all__ = [
    "BacktestResult",
    "DiscreteTradingEnv",
    "FinrlPodError",
    "GymMarketEnv",
    "GymVectorEnv",
    "Learner",
    "MarketTensor",
    "Panel",
    "PolicyStrategy",
    "PortfolioEnv",
    "RunConfig",
    "Setup",
    "StockTradingEnv",
    "Store",
    "Strategy",
    "VecEnv",
    "__version__",
    "backtest",
    "load_agent",
    "load_config",
    "make_env",
    "make_panel",
    "prepare",
    "register_feature",
    "save_agent",
    "train",
]
