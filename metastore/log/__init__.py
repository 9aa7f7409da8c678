"""The cluster metadata log (KIP-631): record framing and the image built from it."""
