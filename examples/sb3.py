"""Train a model of Stable-Baselines3 on a market and backtest it under the same rules."""

from stable_baselines3 import PPO

import finrl_pod as fp

market = fp.make_market("sample", "quick")
env = market.gym(split="train")  # a Gymnasium environment on training bars
model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, seed=1, device="cpu")
model.learn(1_024)  # for a result: 100,000 and more, ten minutes on two cores
model.save("ppo.zip")

result = fp.backtest(PPO.load("ppo.zip", device="cpu"), market)  # on validation bars
print(f"PPO: Sharpe ratio {result.metrics['sharpe']:.2f}, turnover {result.metrics['turnover']:.1f} a year")
for name, baseline in result.baselines.items():
    print(f"{name}: Sharpe ratio {baseline.metrics['sharpe']:.2f}")
