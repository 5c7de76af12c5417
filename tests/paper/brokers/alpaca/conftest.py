from tests.fake_alpaca.server_fixtures import client, panel, start_server

__all__ = ["client", "panel", "start_server"]
