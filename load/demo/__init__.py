"""`make demo`: a real data set through real clients and two agents, one of them killed half-way."""
