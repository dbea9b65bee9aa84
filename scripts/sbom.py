"""Write the software bills of materials of both distributions into a folder, `sbom.py DIR`, as CycloneDX 1.5.

From uv.lock and Cargo.lock, so without a network: names, versions, SHA-256, and licences where they are known. Two runs
from the same files write the same bytes. Scanners for known vulnerabilities read such files.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from locked_crates import PROGRAM, ROOT, linked_crates

OWN_LICENSE = "Apache-2.0"
SHORT = 60  #: characters of a licence's name; longer ones are texts
Component = dict[str, Any]


def python_components() -> list[Component]:
    """What `tidemill` needs to run (`required`), and what its extras add (`optional`)."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    packages: dict[str, list[dict[str, Any]]] = {}
    for each in lock["package"]:
        packages.setdefault(each["name"], []).append(each)
    (own,) = packages["tidemill"]
    needed = _closure(packages, own.get("dependencies", []))
    extras = [each for group in own.get("optional-dependencies", {}).values() for each in group]
    wanted = needed | _closure(packages, extras)
    return [
        _python(each, scope="required" if name in needed else "optional")
        for name in sorted(wanted)
        if name != "tidemill" and not name.startswith("tidemill-")
        for each in packages[name]
    ]


def _closure(packages: dict[str, list[dict[str, Any]]], links: list[dict[str, Any]]) -> set[str]:
    """Names that these dependencies lead to, extras of packages included."""
    seen: set[tuple[str, str]] = set()
    left = [(each["name"], extra) for each in links for extra in ("", *each.get("extra", []))]
    while left:
        here = left.pop()
        if here in seen:
            continue
        seen.add(here)
        name, extra = here
        for package in packages[name]:
            further = package.get("optional-dependencies", {}).get(extra, [])
            for each in further if extra else package.get("dependencies", []):
                left += [(each["name"], more) for more in ("", *each.get("extra", []))]
    return {name for name, _ in seen}


def _python(package: dict[str, Any], *, scope: str) -> Component:
    name, version = package["name"], package["version"]
    files = [*([package["sdist"]] if "sdist" in package else []), *package.get("wheels", [])]
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "purl": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "scope": scope,
        **_licensed(_python_license(name)),
        "externalReferences": [
            {
                "type": "distribution",
                "url": each["url"],
                "hashes": [{"alg": "SHA-256", "content": each["hash"].removeprefix("sha256:")}],
            }
            for each in files
        ],
    }


def _python_license(name: str) -> str:
    """As the installed package names it; empty where it is not installed or holds a whole text."""
    try:
        told = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    classifiers = [each for each in told.get_all("Classifier", []) if each.startswith("License ::")]
    last = classifiers[-1].rpartition(" :: ")[2] if classifiers else ""
    fields = [*told.get_all("License-Expression", []), *told.get_all("License", [])]
    for text in (*fields, last):
        if text and "\n" not in text and len(text) <= SHORT:
            return str(text)
    return ""


def rust_components() -> list[Component]:
    """What is linked into `tidemill-node`: crates, the Rust standard library, the C library."""
    found = [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{each.name}@{each.version}",
            "purl": f"pkg:cargo/{each.name}@{each.version}",
            "name": each.name,
            "version": each.version,
            "scope": "required",
            **({"hashes": [{"alg": "SHA-256", "content": each.sha256}]} if each.sha256 else {}),
            **_licensed(each.license),
        }
        for each in linked_crates()
        if each.name != PROGRAM
    ]
    rustc = subprocess.run(
        ["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name, version, terms in (
        ("rust-std", rustc.split()[1], "MIT OR Apache-2.0"),
        ("glibc", platform.libc_ver()[1], "LGPL-2.1-or-later"),
    ):
        found.append(
            {
                "type": "library", "bom-ref": f"pkg:generic/{name}@{version}", "purl": f"pkg:generic/{name}@{version}",
                "name": name, "version": version, "scope": "required", **_licensed(terms),
            }
        )  # fmt: skip
    return found


def _licensed(text: str) -> Component:
    """As an expression of SPDX where it is one, else by its name."""
    if not text:
        return {}
    if re.fullmatch(r"\(?[A-Za-z0-9.+-]+\)?( (OR|AND|WITH) \(?[A-Za-z0-9.+-]+\)?)*", text):
        return {"licenses": [{"expression": text}]}
    return {"licenses": [{"license": {"name": text}}]}


def bill(name: str, version: str, kind: str, components: list[Component]) -> str:
    """The document of one distribution."""
    about = {
        "type": kind, "bom-ref": f"pkg:pypi/{name}@{version}", "purl": f"pkg:pypi/{name}@{version}", "name": name,
        "version": version, **_licensed(OWN_LICENSE),
    }  # fmt: skip
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about, "lifecycles": [{"phase": "build"}]},
        "components": components,
        "dependencies": [{"ref": about["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{number}", **body}, indent=1, ensure_ascii=True) + "\n"


def main() -> int:
    """Write both documents."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    text = (ROOT / "src" / "tidemill" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    version = found[1] if found else ""
    for name, kind, components in (
        ("tidemill", "application", python_components()),
        (PROGRAM, "application", rust_components()),
    ):
        (folder / f"{name}.cdx.json").write_text(bill(name, version, kind, components))
    return 0


if __name__ == "__main__":
    sys.exit(main())
