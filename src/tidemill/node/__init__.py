"""Meets the node part at a process boundary: fleet directories, journals, bundles, the binary."""
