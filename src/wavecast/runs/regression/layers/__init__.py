"""Models of single layers, summed over a network."""
