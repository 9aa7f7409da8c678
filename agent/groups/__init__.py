"""Consumer groups: a pure state machine, its coordinator, and the requests that reach it."""
