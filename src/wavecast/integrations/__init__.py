"""Callbacks for training tools, which record trainings and predict their steps."""
