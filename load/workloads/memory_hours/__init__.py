"""Whether an agent's memory stays flat for hours, and which part of it grows."""
