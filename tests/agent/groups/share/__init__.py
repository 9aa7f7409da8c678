"""Share groups: the records in flight, members, acknowledgements, and who owns them."""
