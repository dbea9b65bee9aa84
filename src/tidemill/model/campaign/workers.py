"""Jobs that are workers of an Executor (extension `calls`): listings fold them, for a person submitted calls, not
jobs. Pure."""

from __future__ import annotations

WORKER_NAME = "executor-worker"
"""The name of such a job."""
WORKERS_FOLDED_MIN = 2
"""A single one stands for itself."""
