"""Who asks: certificates, tokens, secrets, and what has been revoked. Knows no jobs."""
