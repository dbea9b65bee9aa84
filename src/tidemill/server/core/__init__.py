"""Every change of the store: submission, leasing, settling, ending. Knows no HTTP, no page and no message broker."""
