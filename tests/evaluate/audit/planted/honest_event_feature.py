"""A feature of past returns on one day a quarter."""

from tests.evaluate.audit.planted.events import first_day_of_quarter, forward_return

EXPECTED = None
FEATURES = {"past_of_event": lambda panel: forward_return(panel, -2) * first_day_of_quarter(panel)}
