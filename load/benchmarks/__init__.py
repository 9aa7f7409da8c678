"""One benchmark a module: what it measures, its arguments, and the function that measures (load/harness.py)."""
