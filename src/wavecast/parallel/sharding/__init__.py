"""Shardings that follow the values of a trace: placements, one rule a kind of op, propagation."""
