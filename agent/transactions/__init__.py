"""Requests of transactional producers and of tools for transactions (decisions/0060).

Place: between the listener and metastore/api/transactions.py, which any agent may ask for any transactional id.
Invariant: nothing of a transaction is remembered here. A request that may have happened is answered
COORDINATOR_NOT_AVAILABLE: clients repeat it, and the metastore answers what it answered first.
"""
