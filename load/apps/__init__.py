"""Round trips as applications make them: a task queue, a Node producer that waits for each send."""
