"""Share groups (KIP-932): members, and what each of them has acquired (decisions/0086-share-groups.md)."""
