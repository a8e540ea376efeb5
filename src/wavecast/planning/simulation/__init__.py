"""Simulation: what becomes of jobs on a fleet if a rule decides what runs next."""
