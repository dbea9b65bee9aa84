"""Notifications: what happened is gathered, put into digests, and sent; each step durable before the next."""
