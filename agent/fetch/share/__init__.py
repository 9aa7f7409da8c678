"""ShareFetch and ShareAcknowledge at the agent that a client asks: session, the owner's turn, records."""
