"""A feature that knows the return of the next two bars on one day a quarter."""

from tests.evaluate.audit.planted.events import first_day_of_quarter, forward_return

EXPECTED = ("look-ahead", "future_of_event")
FEATURES = {"future_of_event": lambda panel: forward_return(panel, 2) * first_day_of_quarter(panel)}
