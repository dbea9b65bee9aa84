"""The gateway: jobs in and state changes out by message, and the transport of `sync` (wire/amqp.py has the names)."""
