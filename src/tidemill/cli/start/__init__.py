"""What a person types first: one command starts what it needs, and says what is wrong."""
