"""Object stores behind one small protocol, and decorators around it."""
