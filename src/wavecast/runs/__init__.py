"""Records of past trainings."""
