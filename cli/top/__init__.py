"""`headrace top`: one screen of a running cluster that refreshes, for a terminal."""
