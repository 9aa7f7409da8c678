"""Several agents under one command (`headrace agent --processes N`): started, summed up, drained together."""
