"""Process groups and collectives of a traced rank."""
