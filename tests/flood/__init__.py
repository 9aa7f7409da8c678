"""Floods: more than a cluster can take, or less than it needs; what agents and clients do (docs/operate/LIMITS.md)."""
