"""Tests of transactions: rules, statements on real Postgres, and planted bugs."""
