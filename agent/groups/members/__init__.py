"""What the kinds of groups have in common of which members heartbeat with an epoch: consumer and share groups."""
