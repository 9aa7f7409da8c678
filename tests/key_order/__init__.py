"""Simulations in memory: is the order of each key kept while a topic's partition count changes?"""
