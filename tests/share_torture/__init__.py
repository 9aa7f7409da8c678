"""Java's share consumers under faults: `make torture-shares`."""

from pathlib import Path

MEMBER = Path(__file__).with_name("ShareMember.java")
"""A member of a share group that says what it gets and what became of its acknowledgements; tests use it, too."""
