"""An agent and a controller, composed: the broker, its request paths, and the row of each API with its handler."""
