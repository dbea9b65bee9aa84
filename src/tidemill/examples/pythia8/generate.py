"""Generate collisions with Pythia 8 for the ranges that the pilot gives; one HepMC3 file per range.

An event depends on its seed alone: the generator is seeded afresh before each one, and nothing else of its state may
change from event to event. Measured with Pythia 8.317 (tests/local/examples/test_examples_pythia.py; once with 1,500
events per process, to the last bit of every particle): same events forwards, backwards and alone. What this needs is
in `FIXED` below.
"""

from __future__ import annotations

import gzip
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidemill_payload as tidemill  # type: ignore[import-not-found]  # the pilot puts it on the path

try:
    import pyhepmc
    from pythia8mc import Pythia
except ImportError as error:
    sys.exit(
        f"{error} in {sys.executable}; hint: install `pythia8mc` and `pyhepmc` there, or `tidemill[examples]`"
    )

SEED_MAX = 900_000_000  # largest Random:seed ("Random Numbers" in Pythia's manual)
TRIES_MAX = 10  # Pythia gives up an event now and then; the next try goes on with the same random numbers
PB_PER_MB = 1e9

PROCESSES = {
    "minbias": ["SoftQCD:nonDiffractive = on"],
    "inelastic": ["SoftQCD:inelastic = on"],  # with diffraction: 6 s of set-up instead of 0.4 s
    "zmumu": [
        "WeakSingleBoson:ffbar2gmZ = on",
        "23:onMode = off",
        "23:onIfAny = 13",
        "PhaseSpace:mHatMin = {mass_min}",
    ],
    "hardqcd": ["HardQCD:all = on", "PhaseSpace:pTHatMin = {pt_min}"],
}

# State that would otherwise pass from one event to later ones.
FIXED = [
    # A larger maximum of the cross section, found while generating, would change how all later events are accepted.
    "PhaseSpace:increaseMaximum = off",
    # Pythia keeps the seed's sequence only if nothing else seeds it.
    "Random:setSeed = on",
    "Random:seed = 1",
]


def set_up(parameters: dict[str, Any]) -> Any:
    """An initialised generator. Ends the process with a message if Pythia refuses."""
    pythia = Pythia("", False)
    lines = [
        "Print:quiet = on",
        f"Beams:eCM = {parameters['ecm_gev']}",
        f"Tune:pp = {parameters['tune']}",
        *(line.format(**parameters) for line in PROCESSES[parameters["process"]]),
        *FIXED,
    ]
    for line in lines:
        if not pythia.readString(line):
            sys.exit(f"Pythia refused the setting `{line}`")
    if not pythia.init():
        sys.exit(f"Pythia could not start with {lines}")
    return pythia


def generate(pythia: Any, seed: int) -> bool:
    """Make the event of this seed; False if Pythia gave it up."""
    pythia.rndm.init(1 + (seed - 1) % SEED_MAX)
    return any(pythia.next() for _ in range(TRIES_MAX))


def final_state(record: Any) -> Any:
    """The event as beams, one vertex, and everything that reaches a detector."""
    event = pyhepmc.GenEvent(pyhepmc.Units.GEV, pyhepmc.Units.MM)
    vertex = pyhepmc.GenVertex()
    beams = [_particle(record[1], 4), _particle(record[2], 4)]
    for beam in beams:
        vertex.add_particle_in(beam)
    for k in range(3, record.size()):
        if record[k].isFinal():
            vertex.add_particle_out(_particle(record[k], 1))
    event.add_vertex(vertex)
    return event


def full_record(record: Any) -> Any:
    """The event with all that Pythia made on the way. Vertices as in Pythia's own Pythia8ToHepMC3.h."""
    event = pyhepmc.GenEvent(pyhepmc.Units.GEV, pyhepmc.Units.MM)
    particles = [None, *(_particle(record[k], record[k].statusHepMC()) for k in range(1, record.size()))]
    end_of: dict[int, Any] = {}
    for k in range(3, record.size()):
        mothers = [mother for mother in record[k].motherList() if mother > 0]
        if not mothers:
            continue
        vertex = end_of.get(mothers[0])
        if vertex is None:
            at = record[k]
            vertex = pyhepmc.GenVertex(pyhepmc.FourVector(at.xProd(), at.yProd(), at.zProd(), at.tProd()))
            for mother in mothers:
                if mother not in end_of:
                    end_of[mother] = vertex
                    vertex.add_particle_in(particles[mother])
        vertex.add_particle_out(particles[k])
    event.add_tree(particles[1:3])  # in topological order, which Pythia's record is not: readers insist on it
    return event


RECORDS: dict[str, Callable[[Any], Any]] = {"final": final_state, "full": full_record}


def _particle(particle: Any, status: int) -> Any:
    momentum = pyhepmc.FourVector(particle.px(), particle.py(), particle.pz(), particle.e())
    made = pyhepmc.GenParticle(momentum, particle.id(), status)
    made.generated_mass = particle.m()
    return made


class Part:
    """The file of consecutive events, numbered as in the job."""

    def __init__(self, pythia: Any, parameters: dict[str, Any], first: int) -> None:
        self.first = first
        self.count = 0
        self.path = Path("events.hepmc.gz" if parameters["gzip"] else "events.hepmc")
        self._pythia = pythia
        self._to_hepmc = RECORDS[parameters["record"]]
        self._tried_before = pythia.infoPython().nTried()
        self._run_info = pyhepmc.GenRunInfo()
        self._run_info.tools = [
            ("Pythia8", str(pythia.settings.parm("Pythia:versionNumber")), parameters["process"])
        ]
        self._run_info.weight_names = ["Weight"]
        # level 1: 21 kB an event at 84 events/s; pyhepmc's own compression, level 9: 18 kB at 48 events/s
        open_sink = gzip.open if parameters["gzip"] else open
        self._sink = open_sink(self.path, "wb", 1 if parameters["gzip"] else -1)
        self._writer = pyhepmc.open(self._sink, "w")

    def add(self, number: int, seed: int) -> None:
        """Write the event that the generator holds."""
        info = self._pythia.infoPython()
        event = self._to_hepmc(self._pythia.event)
        event.run_info = self._run_info
        event.event_number = number
        event.weights = [info.weight()]
        event.attributes["seed"] = seed
        event.attributes["signal_process_id"] = info.code()
        self.count += 1
        event.cross_section = self._cross_section(info)
        self._writer.write(event)

    def _cross_section(self, info: Any) -> Any:
        """Pythia's estimate so far, with the statistical error of this part alone, so that parts can be combined."""
        tried = max(info.nTried() - self._tried_before, self.count)
        value_pb = info.sigmaGen() * PB_PER_MB
        error_pb = value_pb * math.sqrt((1 - self.count / tried) / self.count)
        cross_section = pyhepmc.GenCrossSection()
        cross_section.set_cross_section(value_pb, error_pb, self.count, tried)
        return cross_section

    def close(self, r: tidemill.Range) -> None:
        """Close the file and report its events; a range without events has no file."""
        self._writer.close()
        self._sink.close()
        if self.count:
            r.done(self.first, self.count, {"events": str(self.path)})


def main() -> None:
    """Answer ranges until there are no more."""
    given = {"process": "zmumu", "ecm_gev": 13000.0, "tune": 14, "pt_min": 20.0, "mass_min": 60.0}
    parameters = {**given, "record": "final", "gzip": False, **tidemill.params()}
    pythia = set_up(parameters)
    tidemill.ready()
    for r in tidemill.ranges():
        part = Part(pythia, parameters, r.first)
        for event in r.events():
            if generate(pythia, r.seed_of(event)):
                part.add(event, r.seed_of(event))
                continue
            part.close(r)
            r.failed(event, f"Pythia gave up {TRIES_MAX} tries with seed {r.seed_of(event)}")
            part = Part(pythia, parameters, event + 1)
        part.close(r)


if __name__ == "__main__":
    main()
