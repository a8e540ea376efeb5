"""Callbacks for training tools, which record and predict trainings, and a plugin for pytest."""
