"""Optional packages: which extra of finrl-pod installs them, and what they are for.

Modules that need one import it where it is used and raise SetupError with `install_command`, or leave the
ModuleNotFoundError to the command line, which looks the package up here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptionalPackage:
    """name: of the distribution; module: its top-level module; extra: of finrl-pod, "" for none."""

    name: str
    module: str
    extra: str
    purpose: str

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install 'finrl-pod[{self.extra}]'" if self.extra else f"pip install {self.name}"


OPTIONAL_PACKAGES = (
    OptionalPackage("yfinance", "yfinance", "sources", "to fetch prices from Yahoo"),
    OptionalPackage("alpaca-py", "alpaca", "sources", "to fetch bars from Alpaca"),
    OptionalPackage("tenacity", "tenacity", "sources", "to repeat failed requests"),
    OptionalPackage("TA-Lib", "talib", "indicators", "for FinRL's technical indicators as features"),
    OptionalPackage("SQLAlchemy", "sqlalchemy", "paper", "for the paper-trading daemon"),
    OptionalPackage("exchange_calendars", "exchange_calendars", "paper", "for the daemon's trading hours"),
    OptionalPackage("structlog", "structlog", "paper", "for the paper-trading daemon"),
    OptionalPackage("prometheus-client", "prometheus_client", "paper", "for the daemon's metrics"),
    OptionalPackage("apprise", "apprise", "paper", "for the daemon's alerts"),
    OptionalPackage("aiohttp", "aiohttp", "paper", "for the fake Alpaca server"),
    OptionalPackage("streamlit", "streamlit", "dashboard", "for the dashboard"),
    OptionalPackage("argon2-cffi", "argon2", "dashboard", "for the dashboard's password"),
    OptionalPackage("s3fs", "s3fs", "s3", "for a registry in an S3 bucket"),
    OptionalPackage("mujoco", "mujoco", "mujoco", "for MuJoCo environments such as gym:Hopper-v5"),
    OptionalPackage("ray", "ray", "ray", "for tournaments on a Ray cluster"),
    OptionalPackage("tensorboard", "tensorboard", "tensorboard", "to show learning curves"),
    OptionalPackage("mlflow", "mlflow", "mlflow", "to log learning curves to MLflow"),
    OptionalPackage("wandb", "wandb", "wandb", "to log learning curves to Weights & Biases"),
    OptionalPackage("onnx", "onnx", "onnx", "to export agents as ONNX"),
    OptionalPackage("onnxscript", "onnxscript", "onnx", "to export agents as ONNX"),
    OptionalPackage("pettingzoo", "pettingzoo", "pettingzoo", "for PettingZoo's interface to markets with many agents"),
)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """A sentence that says how to install the optional package whose import failed; None for any other module."""
    module = (error.name or "").partition(".")[0]
    for package in OPTIONAL_PACKAGES:
        if package.module == module:
            return f"this needs {package.name}: {package.install_command}"
    return None
