"""Datasets: the directory part of a file's URL. Pure.

Matching compares them as texts, so that there is one spelling: lower-case scheme and host, no credentials, no query, no
double slashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from tidemill.model.job import Input, InputKind

DATASET_CHARACTERS_MAX = 500
DATASETS_MAX = 4  #: of one job: those with most of its inputs


def spelled(url: str) -> str | None:
    """A URL in the spelling that is compared; None for what has no host, leaves its directory or is too long."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    names = [each for each in parts.path.split("/") if each]
    if not parts.scheme or not host or "." in names or ".." in names:
        return None
    place = f"[{host}]" if ":" in host else host
    text = "/".join([f"{parts.scheme}://{place}" + (f":{port}" if port else ""), *names])
    is_clean = len(text) <= DATASET_CHARACTERS_MAX and text.isprintable()
    return text if is_clean else None


def dataset_of(url: str) -> str | None:
    """The dataset that a file belongs to; None for a file of the site, or of another job."""
    text = spelled(url)
    if text is None:
        return None
    directory, _, name = text.rpartition("/")
    return directory if name and "://" in directory and not directory.endswith(":/") else text


def origin_of(dataset: str) -> str:
    """Scheme and host of a dataset."""
    scheme, _, rest = dataset.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def datasets_of(inputs: Iterable[Input]) -> list[str]:
    """The datasets of a job, sorted: those with most of its inputs. Inputs of `each` name a list, not the data."""
    found: Counter[str] = Counter()
    for each in inputs:
        dataset = dataset_of(each.url) if each.kind is InputKind.SHARED and "://" in each.url else None
        if dataset is not None:
            found[dataset] += 1
    first = sorted(found, key=lambda dataset: (-found[dataset], dataset))
    return sorted(first[:DATASETS_MAX])


def parents(dataset: str) -> Iterable[str]:
    """The dataset, its directory, ... down to its host: the longest first."""
    origin = origin_of(dataset)
    while len(dataset) > len(origin):
        yield dataset
        dataset = dataset.rpartition("/")[0]
    yield origin
