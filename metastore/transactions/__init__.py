"""The rules of transactions: what each request of a transactional producer changes, and how outcomes are recorded.

Place: above metastore/api and below metastore/postgres/transactions, which carries the rules out.
state.py is what is stored of a transactional id; policy.py decides each request on it, without doing anything;
markers.py is how a partition's log says the outcome of a transaction.
Invariant: pure: no clock, no randomness, no I/O.
Source: KIP-98, KIP-360, KIP-447, KIP-890; decisions/0060-transactions-end-in-one-statement.md.
"""
