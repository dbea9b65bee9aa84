"""Python calls on nodes: the wire between an Executor and its workers, the worker, and the pool of workers.

`channel` and `worker` run in payloads: standard library only, so that a worker starts as quickly as Python does.
"""
