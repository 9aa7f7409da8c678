"""What `make kubernetes` shows: each scenario is a function of a Release, in a file by its subject."""
