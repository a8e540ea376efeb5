"""Many measurements in one run, which can be interrupted and continued."""
