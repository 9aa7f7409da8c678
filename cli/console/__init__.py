"""`headrace console`: a cluster's pages for people, rendered on the server."""
