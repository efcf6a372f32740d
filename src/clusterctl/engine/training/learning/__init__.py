"""What `[train]` chooses in any training: losses, metrics, optimizers, schedules, a running mean of the weights."""
