"""`[transfer]` and `[[endpoints]]` of site.toml: what data may be moved, where to, and how much at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import DISCOVER, TokenFile, doc

STREAMS_S3 = 10
"""As many as boto3 opens by itself (TransferConfig.max_concurrency); bench/transfer.py measures with them."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place outside the site that data may come from or go to. What no endpoint names is refused."""

    url: Annotated[
        str,
        doc(
            "What it begins with, such as `https://dav.example.org/exp/`, `root://*.example.org//store/`, "
            "`s3://bucket/`; the host may begin with `*.`"
        ),
    ]
    access: Annotated[
        Literal["read", "write", "both"],
        doc("`read`: inputs may come from there; `write`: outputs may go there"),
    ] = "read"
    near_s_per_gb: Annotated[
        Annotated[float, msgspec.Meta(ge=0)] | None,
        doc(
            "Seconds that a gigabyte takes from there, 0 = it is local: the server prefers jobs whose data are near; "
            "none = nothing is said"
        ),
    ] = None
    transfers_max: Annotated[
        int, msgspec.Meta(ge=1, le=1000), doc("Files that are moved from and to it at the same time, at most")
    ] = 4
    ca: Annotated[
        Path | None,
        doc("Certification authorities: a PEM file, or a directory as X509_CERT_DIR; none = the system's"),
    ] = None
    certificate: Annotated[
        Path | None, doc("Our certificate, or a proxy with its key (PEM); none = we show none")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600); none = in the same file")] = (
        None
    )
    token_file: Annotated[
        TokenFile | None,
        doc(
            "File (mode 0600) with a bearer token, read for each file; `discover` = the token that is found in the "
            "order of the WLCG: BEARER_TOKEN, BEARER_TOKEN_FILE ..."
        ),
    ] = None
    redirects: Annotated[
        list[str],
        doc("Where it may send us on to, written as `url`, besides other endpoints; we show those no token"),
    ] = []
    rename: Annotated[
        bool, doc("Outputs get a temporary name first (`https`: needs MOVE; `root`; `gsiftp`)")
    ] = True
    service: Annotated[
        str,
        doc(
            "`s3`: where the bucket is served, such as `https://s3.example.org` or "
            "`https://s3.eu-central-1.amazonaws.com`; empty = Amazon's, us-east-1"
        ),
    ] = ""
    credentials_file: Annotated[
        Path | None,
        doc(
            "`s3`: access keys as in ~/.aws/credentials, section `default`, which may name the `region` of a service "
            "that is not Amazon's; none = those that boto3 finds"
        ),
    ] = None

    @property
    def is_read(self) -> bool:
        """Whether inputs may come from there."""
        return self.access != "write"

    @property
    def is_written(self) -> bool:
        """Whether outputs may go there."""
        return self.access != "read"

    @property
    def finds_token(self) -> bool:
        """Whether the token comes from where the WLCG's order finds it."""
        return self.token_file == DISCOVER

    @property
    def token_path(self) -> Path | None:
        """The file of the token; None = it has none, or it is found."""
        return None if self.finds_token else self.token_file

    @property
    def connections(self) -> int:
        """Connections of one file."""
        return STREAMS_S3 if self.url.startswith("s3:") else 1


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the site moves data, and what it keeps of it."""

    where: Annotated[
        Literal["agent", "apart"],
        doc(
            "`agent`: the agent moves remote data itself; `apart`: `tidemill site run --only transfer` does, on a "
            "data-transfer node that shares the site directory"
        ),
    ] = "agent"
