"""What a cache did, in bytes: XCache's own records, the kernel's counters of its connections, and sums of both."""
