"""Block caches in front of far storage: XRootD's XCache, set up, supervised, measured and studied."""
