"""The controller role: its listener, and the requests that only controllers answer."""
