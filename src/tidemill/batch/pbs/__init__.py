"""PBS Professional and OpenPBS. Tested on fixtures made after real recordings and on complete fake commands only."""

from tidemill.batch.pbs.adapter import PbsBatchSystem

__all__ = ["PbsBatchSystem"]
