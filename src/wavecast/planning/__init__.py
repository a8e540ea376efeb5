"""Planning: the prices of cloud GPUs, and the order in which GPUs are listed."""
