"""Price of early flushes in a month.

Place: `headrace cost` and the metric of an agent both take it from here.
Invariant: prices are list prices in US dollars; a PUT to a directory costs nothing.
"""

from __future__ import annotations

MONTH_HOURS = 730
MONTH_SECONDS = MONTH_HOURS * 3600
PUT_1000_DOLLARS = 0.005
"""S3 Standard in us-east-1, as in cli/cost/prices.toml."""


def dollars_per_month(requests_s: float, price_1000: float = PUT_1000_DOLLARS) -> float:
    """Return what so many requests a second cost in a month, at the price of 1,000."""
    return requests_s * MONTH_SECONDS / 1000 * price_1000
