"""Campaigns: many measurements in a row, which can be interrupted and continued."""
