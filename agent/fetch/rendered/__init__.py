"""Topics that are made from tables on request."""
