"""Transfers by GridFTP (`gsiftp:`) and plain FTP (`ftp:`): the entry points of `tidemill.transfer`."""

from tidemill.transfer.schemes import TransferScheme
from tidemill_gridftp.adapter import GridFtpAdapter

GSIFTP = TransferScheme(GridFtpAdapter, 2811, ("globus-url-copy",), "globus-gass-copy-progs")  # port: IANA
FTP = TransferScheme(GridFtpAdapter, 21, ("globus-url-copy",), "globus-gass-copy-progs")  # RFC 959
