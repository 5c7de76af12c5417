"""Train a policy of your own: one score for each asset, linear in its features."""

import torch

import finrl_pod as fp


class Linear(fp.BasePolicy):
    """Scores and values are linear in the features of an asset. P members, K bars, A accounts, N assets."""

    def weights(self, generator):
        inputs = self.spec.inputs
        return {
            "actor_w": 0.1 * torch.randn(inputs, generator=generator),
            "critic_w": 0.1 * torch.randn(inputs, generator=generator),
        }

    def mean(self, params, features, account, tradable):
        scores = torch.einsum("pknf,pf->pkn", features, params["actor_w"])
        if self.spec.has_cash_score:  # without a mandate there is a score for cash, too
            scores = torch.cat([scores.mean(-1, keepdim=True), scores], -1)
        return scores.unsqueeze(2).expand(*account.shape[:3], -1)

    def value(self, params, features, account, tradable):
        values = torch.einsum("pknf,pf->pk", features, params["critic_w"])
        return values.unsqueeze(2).expand(account.shape[:3])


if __name__ == "__main__":  # a run imports this file again to find the class
    settings = {"agent.algorithm": "ppo", "agent.policy": f"{__file__}:Linear", "environment.envs": 16}
    market = fp.make_market("sample", "quick", settings=settings)
    agent = fp.train(market, 5_000, seed=1, progress=False)
    print(fp.backtest(agent, market))
