"""Data in and out by URL scheme, behind one contract, with checksums."""
