"""Callbacks for the tools people train with."""
