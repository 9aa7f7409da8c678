"""One attack per file: `async def attack(target)` does it, and returns what it observed, in words."""
