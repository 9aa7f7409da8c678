"""Client quotas: who may use how much, how the agents share it, and how a client is throttled."""
