"""Consumer groups of the next generation (KIP-848): the coordinator assigns, members follow."""
