"""How the shipped fits came to be: `python -m training --data FOLDER`, or one command each."""
