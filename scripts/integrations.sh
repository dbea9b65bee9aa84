#!/bin/bash
# An environment with the workflow tools that Tidemill's plugins are for, and the plugins: integrations/.venv.
# Nothing of it is a dependency of Tidemill. Does nothing when nothing has changed.
set -eu -o pipefail
cd "$(dirname "$0")/.."
venv=integrations/.venv
wanted=$(cat integrations/requirements.txt integrations/*/pyproject.toml pyproject.toml extensions/calls/pyproject.toml scripts/integrations.sh | sha256sum)
if [ -x $venv/bin/python ] && [ "$(cat $venv/wanted 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
uv=.uv/venv/bin/uv
$uv venv --quiet --clear --python .venv/bin/python $venv
plugins=()
for each in integrations/*/pyproject.toml; do plugins+=(--editable "$(dirname "$each")"); done
# the binary comes from .venv, where `make setup` has put it
$uv pip install --quiet --python $venv/bin/python -r integrations/requirements.txt google-re2 jinja2 starlette msgspec rich urllib3 uvicorn
$uv pip install --quiet --python $venv/bin/python --no-deps --editable . --editable extensions/calls "${plugins[@]}"
ln -sf "$PWD/.venv/bin/tidemill-node" $venv/bin/tidemill-node
echo "$wanted" >$venv/wanted
