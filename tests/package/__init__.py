"""The distribution: what a wheel and an sdist install, and whether it runs without the repository."""
