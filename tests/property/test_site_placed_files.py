"""Files that arrive, are made again, lose, and meet crashes: in the end there is what counts, and nothing else."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.site.data.test_site_outputs import Place

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Output, OutputKind, Pack
from tidemill.site.data.outputs import OutputDelivery
from tidemill.site.data.placed.manifests import ARRIVED, JobManifest
from tidemill.site.state.site_state import KeptPart
from tidemill.wire.node import OutputRef

GOES_ON = threading.Event()  #: nothing is canceled
EVENTS, VERSIONS = 4, 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrives", "arrives, and then a crash", "loses"]),
        st.sets(st.integers(0, EVENTS - 1), min_size=1),
        st.integers(0, VERSIONS - 1),
    ),
    max_size=8,
)


class Results:
    """Several results of each event, in one bundle, and where their files go."""

    def __init__(self, directory: Path) -> None:
        self.place = Place(directory)
        self.folder = self.place.base / "c" / "7-hits"
        self.parts: dict[tuple[int, int], KeptPart] = {}
        content = b""
        for event in range(EVENTS):
            for version in range(VERSIONS):
                data = text(event, version).encode()
                ref = OutputRef(
                    name="hits", bundle="p.tar", offset=len(content), length=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                )  # fmt: skip
                self.parts[event, version] = KeptPart(event, 1, "e1-1", [ref])
                content += data
        (self.place.bundle / "p.tar").write_bytes(content)

    def delivery(self, results: dict[int, int], number: int) -> OutputDelivery:
        parts = [self.parts[each] for each in sorted(results.items())]
        done = str(IntervalSet((event, event + 1) for event in results))
        made = self.place.delivery(parts, done=done, kind=OutputKind.EACH)
        spread = Output(name="hits", path="hits-{event}.txt", pack=Pack.FILES)
        return msgspec.structs.replace(made, outputs=[spread], number=number)

    def arrive(self, results: dict[int, int], *, crashes: bool) -> None:
        """Files arrive. A crash before they have their names leaves what was there, and the manifest."""
        before = self.texts()
        self.place.deliverer.arrive(self.delivery(results, ARRIVED), GOES_ON)
        for event in results if crashes else ():
            path = self.folder / f"hits-{event}.txt"
            if path.name in before:
                path.write_text(before[path.name])
            else:
                path.unlink()

    def texts(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.glob("*.txt")}


def text(event: int, version: int) -> str:
    return f"event {event}, result {version}\n"


@given(STEPS)
def test_whatever_happened_to_files_before_the_end_there_are_those_of_the_results_that_count(
    steps: list[tuple[str, set[int], int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        it, counts = Results(Path(directory)), dict[int, int]()
        for what, events, version in steps:
            results = dict.fromkeys(events, version)
            if what == "loses":
                it.place.deliverer.take_back(it.delivery(results, ARRIVED), GOES_ON)
                counts = {event: made for event, made in counts.items() if event not in events}
                assert not {f"hits-{event}.txt" for event in events} & it.texts().keys()
            else:
                it.arrive(results, crashes=what != "arrives")
                counts |= results
        if not counts:
            assert not it.folder.exists()
            return
        it.place.deliverer.deliver(it.delivery(counts, 1))
        assert it.texts() == {f"hits-{event}.txt": text(event, made) for event, made in counts.items()}
        manifest = msgspec.json.decode((it.folder / "manifest-7.json").read_bytes(), type=JobManifest)
        assert sorted(each.file for each in manifest.files) == sorted(it.texts())
