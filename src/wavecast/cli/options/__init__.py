"""The options of commands, in groups that several commands share."""
