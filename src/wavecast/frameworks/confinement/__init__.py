"""What the operating system forbids a process that runs a user's script."""
