"""What a cache holds: read from XCache's files, listed, removed, and compared with the origin."""
