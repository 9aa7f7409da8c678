"""Share groups on agents that are killed, paused and cut off, with consumers that crash: a separate simulation."""
