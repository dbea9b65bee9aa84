"""Reports on what others have accounted: what a machine's past offers a guest, and whether a month's accounts agree."""
