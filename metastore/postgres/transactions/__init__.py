"""Transactions: the rows of transactional ids, and the statement that ends a transaction.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
