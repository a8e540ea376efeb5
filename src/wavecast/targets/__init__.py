"""What a user asks about: a model of the suite, a script, a function, a trace; its step."""
