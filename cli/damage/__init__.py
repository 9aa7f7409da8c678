"""`headrace damage`: what the bucket has damaged, and the ways past it."""
