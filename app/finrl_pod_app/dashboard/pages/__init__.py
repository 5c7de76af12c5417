"""The pages: each has `render(settings)`, which draws what `frames` and `figures` make and holds no logic."""
