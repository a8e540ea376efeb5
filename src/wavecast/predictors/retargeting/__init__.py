"""What a traced step runs on another GPU family."""
