"""What runs on a GPU to fill `measurements/`."""
