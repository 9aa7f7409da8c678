"""`headrace doctor`: looks at everything that a cluster depends on, and says what to change."""
