"""Fill histograms of muon pairs from a HepMC3 file; write a ROOT file and a summary in JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

try:
    import hist
    import numpy as np
    import pyhepmc
    import uproot
except ImportError as error:
    sys.exit(
        f"{error} in {sys.executable}; hint: install `hist`, `pyhepmc` and `uproot` there, or `tidemill[examples]`"
    )

MUON = 13
FINAL = 1
CHARGED = (
    11,
    13,
    211,
    321,
    2212,
    3112,
    3222,
    3312,
    3334,
)  # what lives long enough to reach a tracker (PDG codes)
PEAK_GEV = (80.0, 102.0)


def histograms(bins: int, mass_max: float) -> dict[str, Any]:
    """Empty histograms by name."""
    return {
        "mass": hist.Hist.new.Reg(
            bins, 0, mass_max, name="mass", label="mass of the muon pair [GeV]"
        ).Weight(),
        "pt": hist.Hist.new.Reg(
            bins, 0, 200, name="pt", label="transverse momentum of the pair [GeV]"
        ).Weight(),
        "multiplicity": hist.Hist.new.Reg(100, 0, 500, name="n", label="charged particles").Weight(),
    }


def muon_pair(momenta: Any, ids: Any) -> Any | None:
    """Sum of the four-momenta (x, y, z, energy) of the hardest muon of each charge; None without a pair."""
    transverse = np.hypot(momenta[:, 0], momenta[:, 1])
    pair = []
    for sign in (MUON, -MUON):
        candidates = np.flatnonzero(ids == sign)
        if len(candidates) == 0:
            return None
        pair.append(momenta[candidates[np.argmax(transverse[candidates])]])
    return pair[0] + pair[1]


def mass_of(momentum: Any) -> float:
    """Invariant mass of a four-momentum."""
    return float(np.sqrt(max(momentum[3] ** 2 - momentum[0] ** 2 - momentum[1] ** 2 - momentum[2] ** 2, 0.0)))


def analyse(path: Path, filled: dict[str, Any]) -> dict[str, Any]:
    """Fill the histograms; the numbers of the summary. Ends the process if the file holds no event."""
    events, masses, cross_section = 0, [], None
    with pyhepmc.open(path) as file:
        for event in file:
            events += 1
            weight = event.weights[0] if event.weights else 1.0
            cross_section = event.cross_section or cross_section
            particles = event.numpy.particles
            final = particles.status == FINAL
            ids = particles.pid[final]
            momenta = np.stack([particles.px, particles.py, particles.pz, particles.e], axis=1)[final]
            filled["multiplicity"].fill(np.count_nonzero(np.isin(np.abs(ids), CHARGED)), weight=weight)
            pair = muon_pair(momenta, ids)
            if pair is not None:
                masses.append(mass_of(pair))
                filled["mass"].fill(masses[-1], weight=weight)
                filled["pt"].fill(float(np.hypot(pair[0], pair[1])), weight=weight)
    if not events:
        sys.exit(f"`{path}` holds no event that can be read")
    peak = [mass for mass in masses if PEAK_GEV[0] < mass < PEAK_GEV[1]]
    return {
        "events": events,
        "pairs": len(masses),
        "pairs_in_peak": len(peak),
        "peak_gev": float(np.median(peak)) if peak else None,
        "cross_section_pb": cross_section.xsec() if cross_section is not None else None,
        "cross_section_error_pb": cross_section.xsec_err() if cross_section is not None else None,
    }


def main() -> int:
    """Write `zpeak.root` and `zpeak.json` in the work directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=Path)
    parser.add_argument("--bins", type=int, default=60)
    parser.add_argument("--mass-max", type=float, default=200.0)
    options = parser.parse_args()
    filled = histograms(options.bins, options.mass_max)
    summary = analyse(options.events, filled)
    with uproot.recreate("zpeak.root") as file:
        for name, each in filled.items():
            file[name] = each
    Path("zpeak.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
