"""Where S3 requests go: the service and its region, by `service` and the file of access keys. No request is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.transfer import STREAMS_S3, Endpoint
from tidemill.transfer.allowed import permit
from tidemill.transfer.contract import Direction
from tidemill.transfer.s3 import _open, region_of

KEYS = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"


@pytest.mark.parametrize(
    ("service", "region"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://s3-us-gov-west-1.amazonaws.com/", "us-gov-west-1"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("https://s3.amazonaws.com", ""),
        ("https://s3.eu-central-1.amazonaws.com.example.org", ""),
        ("https://s3.example.org", ""),
        ("", ""),
    ],
)
def test_amazons_hosts_name_their_region(service: str, region: str) -> None:
    assert region_of(service) == region


FRANKFURT = "https://s3.eu-central-1.amazonaws.com"


@pytest.mark.parametrize(
    ("service", "told", "reached", "region"),
    [
        ("", "", "https://s3.amazonaws.com", "us-east-1"),
        (
            "https://s3.eu-central-1.amazonaws.com",
            "region = gra\n",
            "https://s3.eu-central-1.amazonaws.com",
            "eu-central-1",
        ),
        ("https://s3.example.org", "", "https://s3.example.org", "us-east-1"),
        ("https://s3.example.org", "region = gra\n", "https://s3.example.org", "gra"),
    ],
)
def test_the_region_is_the_hosts_or_that_of_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, told: str, reached: str, region: str
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "of-the-agent-1")  # its environment is for other programs
    keys = tmp_path / "keys"
    keys.write_text(KEYS + told)
    endpoint = Endpoint(url="s3://bucket/", service=service, credentials_file=keys)

    client = _open(permit("s3://bucket/f", [endpoint], Direction.IN), 20.0)

    assert (client.meta.endpoint_url, client.meta.region_name) == (reached, region)
    client.close()


def test_objects_come_by_several_connections_and_other_files_by_one() -> None:
    assert Endpoint(url="s3://bucket/").connections == STREAMS_S3
    assert Endpoint(url="root://a.example.org//d/").connections == 1
