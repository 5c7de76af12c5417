"""The algorithm MyAlgorithm: REINFORCE with a learned baseline (Williams 1992, doi:10.1007/BF00992696).

Use it in a config, [agent] algorithm = "FILE.py:MyAlgorithm"; check it with finrl-pod check FILE.py:MyAlgorithm.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from finrl_pod.rl.algorithms.a2c import Batch, LossAlgorithm
from finrl_pod.settings.algorithm_configs import OnPolicyConfig


@dataclass(frozen=True)
class Settings(OnPolicyConfig):
    """Settings of [agent]: all settings of on-policy algorithms, with other defaults."""

    gae_lambda: float = 1.0  # returns to the end of the rollout instead of advantages of a critic
    learning_rate: float = 1e-2


class MyAlgorithm(LossAlgorithm):
    """REINFORCE: the gradient of the log-probability, weighted by how much a return exceeds the baseline."""

    Config: ClassVar[type[OnPolicyConfig]] = Settings

    def loss(self, batch: Batch) -> Tensor:
        """Loss [P]; batch.returns: [P, I, A], discounted rewards."""
        log_probability, baseline, entropy = self.evaluate(batch)
        excess = batch.returns - baseline
        policy_loss = -(log_probability * excess.detach()).mean(dim=(1, 2))
        value_loss = excess.square().mean(dim=(1, 2))
        weight = self.settings["value_coefficient"]
        bonus = self.settings["entropy_coefficient"]
        return policy_loss + weight * value_loss - bonus * entropy
