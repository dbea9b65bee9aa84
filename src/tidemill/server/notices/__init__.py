"""What people are to be notified of, who and when: notices, digests, the outbox. Sends nothing; knows no HTTP."""
