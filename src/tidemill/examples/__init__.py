"""Applications that show how payloads are written, and write their approval files. See docs/applications.md."""

from __future__ import annotations

import hashlib
import json
import os
import string
import sys
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.files import make_readable

APPLICATIONS = {  #: name -> script, relative to this directory; its folder holds `app.toml`
    "hepmc-merge": "hepmc_merge/merge.py",
    "pi": "pi/throw.py",
    "pythia8": "pythia8/generate.py",
    "zpeak": "zpeak/analyse.py",
}
FAR = {"far-copy": "far_copy/copy.py", "skim": "skim/skim.py"}
"""Those that open far files by themselves (`read = "url"`); they need `tidemill[far]` or `xrdcp`."""
HERE = Path(__file__).resolve().parent


def install(apps_dir: Path, *, python: str = sys.executable) -> list[str]:
    """Write `NAME.toml` of each example application into a site's `apps` directory; their names.

    `python` is the interpreter that runs them; it needs the packages of `tidemill[examples]` for all but `pi` and
    `hepmc-merge`. Files of earlier versions are replaced. Raises ConfigError if `python` cannot be read.
    """
    return _install(APPLICATIONS, apps_dir, python)


def install_far(apps_dir: Path, *, python: str = sys.executable) -> list[str]:
    """Install the applications that open far files: `skim` (uproot) and `far-copy` (xrdcp).

    They are not among `install`'s: not every site has XRootD's client.
    """
    return _install(FAR, apps_dir, python)


def _install(applications: dict[str, str], apps_dir: Path, python: str) -> list[str]:
    make_readable(apps_dir)
    executable = Path(os.path.abspath(python))  # noqa: PTH100  resolve() would leave the virtual environment
    for name, script in applications.items():
        script_path = HERE / script
        template = string.Template((script_path.parent / "app.toml").read_text(encoding="utf-8"))
        text = template.substitute(
            python=json.dumps(str(executable)),
            python_digest=json.dumps(_digest(executable)),
            script=json.dumps(str(script_path)),
            script_digest=json.dumps(_digest(script_path)),
        )
        _replace(apps_dir / f"{name}.toml", text)
    return sorted(applications)


def install_mpi(apps_dir: Path, program: Path) -> str:
    """Approve `mpi/darts.c`, which the site's `mpicc` has made into `program`; the application's name.

    It is not among `install`'s: every site has its own MPI. Raises ConfigError if `program` cannot be read.
    """
    make_readable(apps_dir)
    template = string.Template((HERE / "mpi" / "app.toml").read_text(encoding="utf-8"))
    text = template.substitute(
        program=json.dumps(str(program.absolute())), program_digest=json.dumps(_digest(program))
    )
    _replace(apps_dir / "mpi-darts.toml", text)
    return "mpi-darts"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise ConfigError(
            f"failed to read `{path}` for its digest: {error.strerror}",
            hint="give the path of a Python interpreter",
        ) from error


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
