from tests.fake_alpaca.serving import client, panel, start

__all__ = ["client", "panel", "start"]
