"""What jobs may take of the server: of one submitter, and of all together."""
