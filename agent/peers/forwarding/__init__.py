"""Requests that need one agent, passed on by the agent that received them (decisions/0042-one-shared-address.md)."""
