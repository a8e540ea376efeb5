"""Planning: prices, what a whole training takes, and which GPUs to choose for it."""
