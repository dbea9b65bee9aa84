"""Read two branches of a ROOT file with uproot, wherever the file is; write a summary as a line of JSON.

The argument is what `{input.events}` became: a URL of the origin, a URL through a cache, or the path of a copy. The
program opens all three alike. uproot fetches only the baskets of the named branches, many in one vector read, so a
small part of a far file crosses the network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import uproot
except ImportError as error:
    sys.exit(f"{error} in {sys.executable}; hint: install `uproot` there, or `tidemill[far]`")


def muon_pairs(where: str, tree: str) -> dict[str, Any]:
    """Mass and momentum of the tree's muon pairs in numbers. Ends the process if the file cannot be read so."""
    start_s = time.perf_counter()
    try:
        with uproot.open(where) as file:
            found = file[tree].arrays(["mass", "pt"], library="np")
            asked = file.file.source.num_requested_bytes
    except ImportError as error:
        sys.exit(
            f"{error}; hint: uproot opens root:// URLs with `xrootd` and `fsspec-xrootd`: `tidemill[far]`"
        )
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"failed to read tree `{tree}` of `{where}`: {error}")
    hard = found["mass"][found["pt"] > 20.0]
    return {
        "events": len(found["mass"]),
        "hard_pairs": len(hard),
        "mass_gev": round(float(np.median(hard)), 3) if len(hard) else None,
        "bytes_read": int(asked),
        "seconds": round(time.perf_counter() - start_s, 3),
    }


def main() -> int:
    """Write `skim.json` in the work directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", metavar="URL|PATH")
    parser.add_argument("--tree", default="events")
    options = parser.parse_args()
    summary = json.dumps({"input": options.events, **muon_pairs(options.events, options.tree)})
    Path("skim.json").write_text(summary + "\n", encoding="utf-8")
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
