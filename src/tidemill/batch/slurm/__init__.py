"""Slurm, from 21.08 to today: its commands' text for every poll, its JSON where a site's text cannot be read."""

from tidemill.batch.slurm.system import SlurmBatchSystem

__all__ = ["SlurmBatchSystem"]
