#!/usr/bin/env bash
# Clean environments for tests, in target/environments: `core` has the core, what its tests need and no extension, NAME
# has the extension NAME besides. Quick when nothing has changed: uv links the files from its cache.
#   scripts/environments.sh core study
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p target/environments
exec 9>target/environments/lock
flock 9

extras_of() { # the extras of the core that bring no extension but $1
  .venv/bin/python - "$1" <<'END'
import re, sys, tomllib
from pathlib import Path
extensions = {path.parent.name for path in Path("extensions").glob("*/pyproject.toml")}
extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
for name, wanted in extras.items():
    if extensions.intersection(re.findall(r"tidemill-([a-z]+)", " ".join(wanted))) <= {sys.argv[1]}:
        print("--extra", name, end=" ")
END
}

wanted=$(cat pyproject.toml uv.lock extensions/*/pyproject.toml scripts/environments.sh | sha256sum)
for name in "$@"; do
  place=target/environments/$name
  if [ -x "$place/bin/python" ] && [ "$(cat "$place/wanted" 2>/dev/null)" = "$wanted" ]; then continue; fi
  read -ra extras <<<"$(extras_of "$name")"
  rm -f "$place/wanted"
  UV_PROJECT_ENVIRONMENT=$place UV_PYTHON_DOWNLOADS=never .uv/venv/bin/uv sync --quiet --frozen --link-mode hardlink \
    --python .venv/bin/python --group dev "${extras[@]}" --no-install-package tidemill-node
  printf '%s' "$wanted" >"$place/wanted"
done
for name in "$@"; do # the node part comes from .venv, where `make setup` has put it, also when only it is new
  place=target/environments/$name
  ln -f .venv/bin/tidemill-node "$place/bin/tidemill-node"
  cp -a .venv/lib/python3.*/site-packages/tidemill_node-*.dist-info "$place"/lib/python3.*/site-packages/
done
