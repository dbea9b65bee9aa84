"""Notifications: threads gather what happened, make digests of it and send them by mail, web hook or message."""
