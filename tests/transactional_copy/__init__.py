"""`make torture-transactions`: a topic is copied exactly once by transactions while everything is killed."""
