"""Train PPO of RLlib and print its scores. Runs in an environment of its own; market and scores are finrl_pod's.

Reads a case from each line of standard input and prints its result as one line of JSON, see rllib-protocol.md.
"""

import json
import logging
import sys
import tempfile
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import gymnasium
import numpy as np
import psutil
import ray
import torch
from finrl_pod_envs.gym import GymVectorEnv
from gymnasium.vector import AutoresetMode
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.spaces.space_utils import unsquash_action
from ray.tune.registry import register_env

from benchmarks.studies.rllib_cases import MARKET, RULES, SETTINGS, leaky_market, market_score
from benchmarks.studies.sb3_study import evaluate


class NextStepAccounts(GymVectorEnv):
    """Accounts that are reset in the step after the end of their episode, as RLlib expects. All end in the same step."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed=None, options=None):
        self._first_rows = None
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        if self._first_rows is not None:
            rows, self._first_rows = self._first_rows, None
            none = np.zeros(self.num_envs, np.bool_)
            return rows, np.zeros(self.num_envs), none, none.copy(), {}
        rows, reward, terminated, truncated, step_info = super().step(actions)
        ends = terminated | truncated
        if ends.any():
            assert ends.all()
            self._first_rows, rows = rows, np.stack([*step_info["final_obs"]])
        return rows, reward, terminated, truncated, {}


def make_config(case):
    settings = SETTINGS[case["env"]]
    is_market = case["env"] == MARKET
    if is_market:
        register_env(MARKET, lambda options: NextStepAccounts(leaky_market()[0], RULES))
    return (
        PPOConfig()
        .environment(case["env"])
        .framework("torch")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=settings.envs,
            rollout_fragment_length=settings.horizon,
            batch_mode="truncate_episodes",
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT if is_market else gymnasium.VectorizeMode.SYNC,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            lr=settings.learning_rate,
            gamma=settings.gamma,
            lambda_=settings.gae_lambda,
            train_batch_size_per_learner=settings.envs * settings.horizon,
            minibatch_size=settings.minibatch_size,
            num_epochs=settings.epochs,
            clip_param=settings.clip_range,
            entropy_coeff=settings.entropy_coefficient,
            vf_loss_coeff=settings.value_coefficient,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            grad_clip=settings.max_grad_norm,
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(settings.hidden), fcnet_activation="tanh", vf_share_layers=False, free_log_std=True
            )
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
        .debugging(seed=case["seed"], log_level="ERROR")
    )


def cpu_seconds():
    """Processor time of this process and of those that Ray started."""
    process = psutil.Process()
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def train(case):
    """Train and score one agent. case: env, budget ("samples" or "cpu"), limit and seed."""
    algorithm = make_config(case).build_algo()
    steps = 0
    wall_start = time.perf_counter()
    cpu_start = cpu_seconds()
    spent = {"samples": lambda: steps, "cpu": lambda: cpu_seconds() - cpu_start}[case["budget"]]
    while spent() < case["limit"]:
        steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
    seconds = {
        "seconds": round(time.perf_counter() - wall_start, 2),
        "cpu_seconds": round(cpu_seconds() - cpu_start, 2),
    }
    module = algorithm.get_module()
    space = algorithm.env_runner.env.single_action_space

    def act(row):
        with torch.no_grad():
            output = module.forward_inference({"obs": torch.from_numpy(np.asarray(row, np.float32)).unsqueeze(0)})
        mean = output["action_dist_inputs"][0, : space.shape[0]].numpy()
        return unsquash_action(mean, space)

    score = market_score(act) if case["env"] == MARKET else float(np.mean(evaluate(act, case["env"])))
    algorithm.stop()
    versions = {name: version(name) for name in ("ray", "torch", "gymnasium", "numpy")}
    return {**seconds, "steps": steps, "score": score, "versions": versions}


def main():
    """Start Ray once, then answer each case."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        for line in sys.stdin:
            sys.stdout.write(json.dumps(train(json.loads(line))) + "\n")
            sys.stdout.flush()
        ray.shutdown()


if __name__ == "__main__":
    main()
