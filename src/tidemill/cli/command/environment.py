"""Which variables of a person's environment a command gets: what finds software, never what is secret or of a session.

Pure: the environment is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import ConfigError, did_you_mean
from tidemill.octets import carried, shown

ALWAYS = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONNOUSERSITE")
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX", "PIXI_PROJECT_ROOT", "SPACK_ENV")
"""Variables that hold the place of an activated environment of packages."""

SOFTWARE = re.compile(
    r"ROOTSYS|ROOT_INCLUDE_PATH|CLING_.*|CONDA_(PREFIX|DEFAULT_ENV|SHLVL|PYTHON_EXE)(_\d+)?|LHAPDF_DATA_PATH|LHAPATH"
    r"|PYTHIA8DATA|PYTHIA8|G4[A-Z0-9]*DATA|GEANT4_.*|RIVET_[A-Z_]*PATH|CMAKE_PREFIX_PATH|PKG_CONFIG_PATH|MANPATH"
    r"|PERL5LIB|R_LIBS(_USER|_SITE)?|JULIA_DEPOT_PATH|GSL_.*|BOOST_ROOT|LCG_.*|BINARY_TAG|CMTCONFIG|CUDA_(HOME|PATH)"
    r"|ROCM_PATH|MODULEPATH|MODULESHOME|LOADEDMODULES|_LMFILES_|OMP_NUM_THREADS|JAVA_HOME|CVMFS_.*|SITECONFIG_PATH"
)
"""Software of the field that is found by variables: ROOT, Geant4, LHAPDF, Pythia, Rivet, LCG releases, modules."""

SECRET = re.compile(
    r".*(TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY$|COOKIE|_AUTH$|^AUTH_).*",
    re.IGNORECASE,
)
"""Names that hint at a secret: a job is stored and shown, so --env-all leaves them out."""

SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOME|USER|LOGNAME|MAIL|HOSTNAME|TERM.*|COLUMNS|LINES|TMP|TMPDIR|TEMP|DISPLAY|WAYLAND_.*|SSH_.*"
    r"|XDG_.*|DBUS_.*|XAUTHORITY|GPG_.*|TMUX.*|STY|WINDOWID|VTE_.*|SUDO_.*|KRB5CCNAME|X509_USER_PROXY|BASH_FUNC_.*"
    r"|BASH_ENV|ENV|PS[0-4]|PROMPT_COMMAND|HIST.*|LESS.*|LS_COLORS|EDITOR|VISUAL|PAGER|SHELL|TIDEMILL_.*|SLURM_.*"
    r"|PBS_.*|SGE_.*|JOB_ID|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_.*|NOTIFY_SOCKET|MANAGERPID|LISTEN_.*"
)
"""What belongs to the terminal, the login or the batch job in which `run` is typed; a slot has its own."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


class Captured(NamedTuple):
    """Variables for the command; `environment`: the activated one, for people; `left_out`: names that --env-all drops
    because they hint at a secret."""

    variables: dict[str, str]
    environment: str
    left_out: list[str]


def captured(environ: Mapping[str, str], named: Sequence[str], *, everything: bool = False) -> Captured:
    """The variables of a command: what finds software, what is named (`NAME` or `NAME=VALUE`), or everything that is
    neither secret nor of this session, as jobs hold them.

    Raises ConfigError for a name that is not set, and for a variable that execve(2) does not accept.
    """
    legal = {name: value for name, value in environ.items() if VARIABLE.fullmatch(name)}
    roots = [legal[name] for name in ENVIRONMENTS if legal.get(name)]
    left_out: list[str] = []
    chosen: dict[str, str] = {}
    for name, value in legal.items():
        if name in ALWAYS or SOFTWARE.fullmatch(name):
            chosen[name] = value
        elif SESSION.fullmatch(name):
            continue
        elif SECRET.match(name):
            left_out += [name] if everything else []
        elif everything or _is_below(value, roots):
            chosen[name] = value
    for text in named:
        name, separator, value = text.partition("=")
        if not name:
            raise ConfigError(f"--env `{shown(text)}`: the name is missing", hint="write --env NAME=VALUE")
        if not separator and name not in environ:
            near = did_you_mean(name, environ)
            hint = f"write --env {name}=VALUE" + (f"; {near}" if near.startswith("did") else "")
            raise ConfigError(f"--env {name}: the variable is not set here", hint=hint)
        chosen[name] = value if separator else environ[name]
    return Captured(_as_jobs_hold(chosen), _described(legal), sorted(left_out))


def _as_jobs_hold(variables: Mapping[str, str]) -> dict[str, str]:
    """Encode bytes that are not UTF-8 as `octets` does. Raises ConfigError that names the first illegal variable."""
    from tidemill.model.legal import variable_fault

    result = {}
    for name, value in variables.items():
        result[name] = carried(value)
        wrong = variable_fault(shown(name), result[name])
        if wrong is not None:
            raise ConfigError(f"--env {shown(name)}: {wrong.text}", hint=wrong.hint)
    return result


def _is_below(value: str, roots: Sequence[str]) -> bool:
    """Whether a value names a place in an activated environment: its activation scripts have set it."""
    return any(part == root or part.startswith(f"{root}/") for part in value.split(":") for root in roots)


def _described(environ: Mapping[str, str]) -> str:
    if environ.get("VIRTUAL_ENV"):
        return f"virtual environment `{environ['VIRTUAL_ENV']}`"
    if environ.get("CONDA_PREFIX"):
        name = environ.get("CONDA_DEFAULT_ENV") or Path(environ["CONDA_PREFIX"]).name
        return f"conda environment `{name}` (`{environ['CONDA_PREFIX']}`)"
    return ""
