"""Object stores behind one small protocol, and decorators for them."""
