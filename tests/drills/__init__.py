"""Drills of docs/operate/DRILLS.md: something is lost, and what an operator and clients see until it is over."""
