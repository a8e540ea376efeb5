"""Schedules: which job runs on which GPUs, and when."""
