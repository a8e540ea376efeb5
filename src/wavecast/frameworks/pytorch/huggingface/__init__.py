"""Training steps of Hugging Face models, built from their configs with random weights."""
