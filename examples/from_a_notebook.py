# %% [markdown]
# The cells of a notebook: open this file in an editor with cells, or copy them into Jupyter.

# %%
import finrl_pod as fp

market = fp.make_market("sample", "quick", settings={"environment.envs": 16})
market  # a notebook shows splits, features and rules

# %%
agent = fp.train(market, 5_000, seed=7, progress=False)
agent  # and the metrics of the last iteration

# %%
result = fp.backtest(agent, market, start="2017-01-03", end="2017-12-29")
result.to_frame().tail()

# %%
figure = result.plot()  # of plotly: growth and drawdown beside the baselines
figure.write_html("backtest.html")

# %%
print(result)
