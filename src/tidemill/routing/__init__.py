"""By which way payloads read far files: what was measured, where copies are, and the choice."""
