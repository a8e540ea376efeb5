"""Callbacks for training tools, which record trainings in the run store."""
