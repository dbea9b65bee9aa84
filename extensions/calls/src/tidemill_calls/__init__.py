"""Python calls on nodes: a `concurrent.futures.Executor`, its workers, and the wire between them.

`channel`, `worker` and `process` run in payloads: standard library only, so that a worker starts as quickly as Python.
"""
