"""The boundary that orders everything, and Postgres behind it.

Callers use `metastore.api` and the values beside it; nothing of Postgres leaves this package.
"""
