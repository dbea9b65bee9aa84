"""Profiles in, images out: what programs do to shared file systems, and what keeps it away from them."""
