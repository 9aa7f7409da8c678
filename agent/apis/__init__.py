"""The APIs of an agent and of a controller: one module per group of APIs, with the row of each."""
