"""Commands about many jobs: plans, simulations and capacity."""
