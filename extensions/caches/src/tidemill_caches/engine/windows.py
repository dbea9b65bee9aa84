"""How long XRootD's client waits for what: for payloads that read through a cache, and for the cache itself.

Pure. The client library reads XRD_* from the environment (xrdcp(1), XrdClConstants.hh of 5.5). With its own defaults
(connection window 120 s, five tries) one try that began while the cache was down outlasts the restart, and the read
fails although the cache is back: measured with 5.5.3. Short windows and many tries follow a restart within seconds.
"""

from __future__ import annotations

import math

from tidemill_caches import constants
from tidemill_caches.settings import CacheConfig

TRY_S = 5
"""One try to connect, of a payload: a cache on the same site answers within milliseconds."""
PREFIX = "XRD_"


def client_environment() -> dict[str, str]:
    """The XRD_* variables with which a payload survives a restart of the cache of up to `restart_s`.

    For every program that uses XRootD's client: xrdcp, xrdfs, uproot by fsspec-xrootd, ROOT. A cold read waits for the
    origin inside of the cache, so a request may take as long as the cache waits for that.
    """
    patience_s = math.ceil(constants.ORIGIN_WAIT_S + constants.ORIGIN_STALL_S)
    return {
        "XRD_CONNECTIONWINDOW": str(TRY_S),
        "XRD_CONNECTIONRETRY": str(max(2, math.ceil(constants.RESTART_S / TRY_S))),
        "XRD_STREAMERRORWINDOW": str(math.ceil(constants.RESTART_S)),
        "XRD_REQUESTTIMEOUT": str(max(patience_s, math.ceil(constants.RESTART_S))),
        "XRD_STREAMTIMEOUT": str(patience_s),
        "XRD_TIMEOUTRESOLUTION": "1",
    }


def server_environment(config: CacheConfig) -> dict[str, str]:
    """The XRD_* variables of the cache's own reads from origins, and where its credential is."""
    made = {
        "XRD_CONNECTIONWINDOW": str(math.ceil(constants.ORIGIN_WAIT_S)),
        "XRD_CONNECTIONRETRY": "2",
        "XRD_STREAMERRORWINDOW": str(math.ceil(constants.ORIGIN_WAIT_S)),
        "XRD_REQUESTTIMEOUT": str(math.ceil(constants.ORIGIN_STALL_S)),
        "XRD_STREAMTIMEOUT": str(math.ceil(constants.ORIGIN_STALL_S)),
        "XRD_TIMEOUTRESOLUTION": "1",
        "XRD_REDIRECTLIMIT": str(config.redirects_max),
    }
    credential = config.credential
    if credential.certificate is not None:
        made["X509_USER_PROXY"] = str(credential.certificate)
    if credential.token_file is not None:
        made["BEARER_TOKEN_FILE"] = str(credential.token_file)
    if credential.ca is not None:
        made["X509_CERT_DIR"] = str(credential.ca)
    return made
