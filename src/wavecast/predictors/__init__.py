"""Predictors: the time of an op on a GPU. Scalers: a measured call on another GPU."""
