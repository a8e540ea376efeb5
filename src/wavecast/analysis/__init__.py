"""Profiles, comparisons and evaluations of predicted and measured steps."""
