"""Make the file with which Tidemill is installed where there is no network: `bundle.py WHEELS OUT`.

WHEELS holds the wheels of `make dist`, of each processor architecture. The packages that they need come from the Python
registry in the versions of uv.lock, for each Python of PYTHONS and each architecture, as wheels only. The result is
`OUT/tidemill-VERSION-offline.sh`: `offline_install.sh` with an archive of the wheels behind it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV_PYTHON = ROOT / ".uv/venv/bin/python"  #: of `make setup`; it has pip and uv
SCRIPT = ROOT / "scripts/offline_install.sh"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("all", "certs")
"""Extras that a site or server may need: extensions, certificates."""
PLATFORMS = {
    "x86_64": ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"),
    "aarch64": ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"),
}
"""Platform tags by which a package's wheels are chosen: glibc 2.17 to 2.28, so RHEL 8 and later."""


def download(requirements: Path, folder: Path, *, python: str, architecture: str) -> None:
    """Put the wheels of the locked requirements into `folder`, for one Python and architecture."""
    platforms = [word for tag in PLATFORMS[architecture] for word in ("--platform", tag)]
    abi = f"cp{python.replace('.', '')}"
    subprocess.run(
        [UV_PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--abi", abi, "--abi", "abi3",
         "--abi", "none", *platforms, "--require-hashes", "-r", str(requirements), "-d", str(folder)],
        check=True,
    )  # fmt: skip


def locked(uv: Path, target: Path) -> None:
    """Write what Tidemill needs, with versions and hashes, for pip."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    text = subprocess.run(
        [uv, "export", "--frozen", "--quiet", "--no-dev", "--no-emit-workspace", "--no-header", *extras],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    target.write_text(text)


def archive_of(wheels: Sequence[Path]) -> bytes:
    """A gzipped archive with the files as `wheels/NAME`; the same files give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for wheel in sorted(wheels, key=lambda path: path.name):
            entry = tarfile.TarInfo(f"wheels/{wheel.name}")
            entry.size = wheel.stat().st_size
            entry.mode = 0o644
            with wheel.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(packed.getvalue(), compresslevel=1, mtime=0)  # wheels are compressed already


def write_bundle(
    wheels: Sequence[Path], target: Path, *, version: str, extras: Sequence[str] = EXTRAS
) -> None:
    """Write the installer with these wheels behind it."""
    content = archive_of(wheels)
    script = SCRIPT.read_text()
    for name, value in (
        ("VERSION", version),
        ("SHA256", hashlib.sha256(content).hexdigest()),
        ("LINES", str(script.count("\n") + 1)),
        ("EXTRAS", ",".join(extras)),
        ("PYTHONS", f"{PYTHONS[0]} to {PYTHONS[-1]}"),
    ):
        script = script.replace(f"@{name}@", value)
    target.write_bytes(script.encode() + content)
    target.chmod(0o755)


def main() -> int:
    """Download, pack, and print the path of the result."""
    own, out = Path(sys.argv[1]), Path(sys.argv[2])
    mine = sorted(own.glob("tidemill-*.whl")) + sorted(own.glob("tidemill_*.whl"))
    (pure,) = own.glob("tidemill-*-py3-none-any.whl")
    version = pure.name.split("-")[1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "wheels"
        folder.mkdir()
        requirements = Path(temporary) / "requirements.txt"
        locked(UV_PYTHON.with_name("uv"), requirements)
        present = [name for name in PLATFORMS if any(name in wheel.name for wheel in mine)]
        for architecture in present:
            for python in PYTHONS:
                download(requirements, folder, python=python, architecture=architecture)
        subprocess.run(
            [UV_PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", folder, "pip"],
            check=True,
        )  # fmt: skip
        target = out / f"tidemill-{version}-offline.sh"
        write_bundle([*mine, *folder.glob("*.whl")], target, version=version)
    print(
        f"{target}: {target.stat().st_size / 1e6:.0f} MB, for {', '.join(present)}, Python {', '.join(PYTHONS)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
