"""SASL on a connection: handshake, one mechanism's messages, and how long the authentication is valid.

Place: behind SaslHandshake and SaslAuthenticate.
Invariant: a mechanism says who a client is or that it failed, never why it failed: a client learns neither which users
exist nor which part was wrong. The agent's log has the reason, without secrets.
"""
