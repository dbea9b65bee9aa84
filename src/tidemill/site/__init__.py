"""The site agent: one bounded loop between the server and the batch system. Knows no server code."""
