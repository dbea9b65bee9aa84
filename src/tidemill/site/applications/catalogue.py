"""The site's approved applications: read from `SITE/apps/*.toml`, checked, offered, and applied to jobs.

Parameters become whole arguments after validation; nothing of a user ever reaches a shell. Knows no fleet.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec

from tidemill import octets
from tidemill.config import load
from tidemill.config.hidden import why_hidden
from tidemill.config.site import SiteConfig
from tidemill.errors import (
    ConfigError,
    JobError,
    SiteError,
    TidemillError,
    UnfitError,
    did_you_mean,
    is_transient,
)
from tidemill.files import why_unseen
from tidemill.log import Log
from tidemill.model.application import (
    DEFAULT_CORES,
    DEFAULT_EVENT_S,
    DEFAULT_MEMORY_MB,
    Application,
    Container,
    Mode,
    Parameter,
    ParameterType,
)
from tidemill.model.job import NAME_PATTERN, OutputKind
from tidemill.model.legal import shown
from tidemill.model.parameter import check_value
from tidemill.model.pattern import pattern_fault
from tidemill.model.quantities import digest_text
from tidemill.model.trouble import RefusedApplication
from tidemill.model.width import NODES_MAX, RANKS_MAX
from tidemill.site.applications.approval import check_contained, container_files
from tidemill.site.applications.checksums import Digests, PendingError, check_digest
from tidemill.site.applications.handed.intake import check_lines, taken_inputs
from tidemill.site.applications.images import FOLDER, ApprovedImage, resolve_images, why_changed
from tidemill.site.applications.templates import Template, check_templates
from tidemill.site.setup.ownership import check_application_file
from tidemill.wire.api import AppOffer
from tidemill.wire.node import ApprovedFile

APPLICATIONS_MAX = 1000
_log = Log("applications")


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """An application, its argument templates and the digests of its files as they were when it was read."""

    app: Application
    templates: list[Template]
    files: dict[str, str]  #: path -> `sha256:...` that it must have
    images: list[ApprovedImage] = []
    store: Path = Path()  #: where its images are
    digest: str = ""  #: `sha256:...` of the executable, or of the container that it is in
    inputs: list[str] = []  #: names of the inputs that it takes, with `*` for any characters


def load_application(
    path: Path,
    digests: Digests | None = None,
    *,
    store: Path | None = None,
    site: SiteConfig | None = None,
) -> Approved:
    """An application file, checked whole. `store`: where its images are, if not beside the directory of the file;
    `site`: its site, if not the one in whose `apps` it lies. Raises ConfigError naming file, key and the nearest legal
    word, SiteError where its files cannot be read just now (PendingError: are being read)."""
    app = load(path, Application)
    _check_names(path, app)
    _check_width(path, app)
    known = [*app.parameters]
    templates = check_templates(app.arguments, known, source=path, merge=True)
    for output in app.outputs:
        check_templates([output.path], [], source=path, merge=False)
        if output.path.startswith("/") or ".." in Path(output.path).parts:
            raise ConfigError(
                f"{path}: path `{output.path}` of output `{output.name}` leaves the work directory"
            )
        if (output.kind is OutputKind.MERGE) != (output.merge is not None):
            raise ConfigError(
                f"{path}: output `{output.name}` has kind `{output.kind.value}`"
                f"{' but names no' if output.merge is None else ' and names a'} `merge` application",
                hint="`kind` merge and `merge` belong together",
            )
    for name, parameter in app.parameters.items():
        _check_parameter(path, name, parameter)
    inputs = taken_inputs(path, app)
    check_lines(path, app)
    _check_place(path, app)
    _check_named(path, app)
    digests = digests or Digests()
    store = store or path.absolute().parent.parent / FOLDER
    images = _images(path, app, digests, store)
    check_contained(path, app, [area for image in images for area in image.use.areas], site=site)
    if app.container is None:
        files = _files(path, app, digests)
        digest = files[app.executable]
    else:
        files, digest = container_files(path, app, digests.digest)
    return Approved(
        app=app, templates=templates, files=files, images=images, store=store, digest=digest, inputs=inputs
    )


def _check_names(path: Path, app: Application) -> None:
    for what, name in [("name", app.name), *(("output", output.name) for output in app.outputs)]:
        if not re.fullmatch(NAME_PATTERN, name):
            raise ConfigError(
                f"{path}: {what} `{name}` is not a name", hint="letters, digits and `._+-`, at most 100"
            )
    for name in app.parameters:
        if not (name.isascii() and name.isidentifier()):
            raise ConfigError(f"{path}: parameter `{name}` is not a name", hint="letters, digits and `_`")


def _check_width(path: Path, app: Application) -> None:
    if app.resources.width is not None:
        raise ConfigError(
            f"{path}: `resources` of an application has no `nodes` and `ranks`: jobs ask for them",
            hint="`nodes_max` and `ranks_max` say how many they may ask for",
        )
    for key, number, least, most in (
        ("nodes_max", app.nodes_max, 1, NODES_MAX),
        ("ranks_max", app.ranks_max, 0, RANKS_MAX),
    ):
        if not least <= number <= most:
            raise ConfigError(f"{path}: `{key}` is {number}, legal is {least} to {most}")
    if app.nodes_max > 1 and app.ranks_max < app.nodes_max:
        raise ConfigError(
            f"{path}: `nodes_max` is {app.nodes_max} and `ranks_max` {app.ranks_max}: every node needs a rank"
        )
    if app.ranks_max and app.mode is Mode.RANGE:
        raise ConfigError(
            f'{path}: `ranks_max` and `mode = "range"` do not go together',
            hint='a launcher starts ranks for one chunk of events at a time: take `mode = "command"`',
        )


def _check_place(path: Path, app: Application) -> None:
    """A slot hides the site directory and shows only the executable of it again. Raises ConfigError."""
    site = path.absolute().parent.parent
    if app.script is None or app.container is not None or not (site / "site.toml").is_file():
        return
    for directory, script in ((site, Path(app.script)), (site.resolve(), Path(os.path.realpath(app.script)))):
        if script.is_relative_to(directory):
            raise ConfigError(
                f"{path}: `script` `{app.script}` is below the site directory, which payloads do not see",
                hint=f"put it outside of `{directory}`, where staff keep the programs of this site",
            )


def _check_named(path: Path, app: Application) -> None:
    """Refuse to show credentials, and what is the site's own. Raises ConfigError."""
    site = path.absolute().parent.parent
    is_site = (site / "site.toml").is_file()
    for key, paths in (("show", app.show), ("write", app.write)):
        for each in paths:
            real = Path(os.path.realpath(each))  # Path.resolve raises for links that lead in a circle
            why = why_hidden(each) or why_hidden(real)
            if why is None and is_site and any(_overlap(one, site.resolve()) for one in (each, real)):
                why = "holds the site directory, or is in it"
            if why is None and not why_unseen(real) and not (real.is_dir() or real.is_file()):
                why = "is neither a directory nor a regular file"
            if why is not None:
                raise ConfigError(
                    f"{path}: `{key}`: `{each}` {why}",
                    hint="payloads see no credentials, sockets or state of the site: name what the program reads",
                )


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _images(path: Path, app: Application, digests: Digests, store: Path) -> list[ApprovedImage]:
    """The application's images. Raises ConfigError where one is missing, changed, or hides what it may not."""
    site = path.absolute().parent.parent
    try:
        return resolve_images(
            app.images, store, digests.digest, site=site if (site / "site.toml").is_file() else None
        )
    except TidemillError as error:
        if is_transient(error):
            raise
        raise ConfigError(f"{path}: `images`: {error.message}", hint=error.hint) from error


def _check_parameter(path: Path, name: str, parameter: Parameter) -> None:
    if parameter.type is ParameterType.CHOICE and not parameter.choices:
        raise ConfigError(f"{path}: `parameters.{name}` has type choice, but no `choices`")
    if parameter.pattern is not None:
        fault = pattern_fault(parameter.pattern)
        if fault is not None:
            quoted = f"`parameters.{name}.pattern` is `{shown(parameter.pattern)}`"
            raise ConfigError(f"{path}: {quoted}, which cannot be used: {fault.text}", hint=fault.hint)
    if parameter.default is not None:
        try:
            check_value(name, parameter, parameter.default)
        except JobError as error:
            raise ConfigError(f"{path}: `parameters.{name}.default`: {error}") from error


def is_offered(path: Path) -> bool:
    """Whether a site reads the application file at `path`."""
    return (path.absolute().parent.parent / "site.toml").is_file()


def _files(path: Path, app: Application, digests: Digests) -> dict[str, str]:
    """The executable and script with their digests. Raises ConfigError where one is missing or another one."""
    files: dict[str, str] = {}
    for key, file, wanted in (
        ("executable", app.executable, app.digest),
        ("script", app.script, app.script_digest),
    ):
        if file is None:
            continue
        if not file.startswith("/"):
            raise ConfigError(f"{path}: `{key}` is `{file}`, expected an absolute path")
        check_digest(path, key, wanted)
        try:
            found = digests.digest(file)
        except SiteError as error:
            if error.transient:
                raise
            raise ConfigError(f"{path}: `{key}`: {error}") from error
        if wanted is not None and found != wanted:
            raise ConfigError(
                f"{path}: `{key}` `{file}` has digest {digest_text(found)}, approved is {digest_text(wanted)}",
                hint=f"it was changed: `tidemill app approve {path.absolute()}` approves it as it is now, or put the "
                "old one back"
                + ("" if is_offered(path) else "; no site reads this copy: copy it to SITE/apps/ then"),
            )
        if key == "executable" and not os.access(file, os.X_OK):
            raise ConfigError(f"{path}: `{key}` `{file}` is not executable")
        files[file] = wanted or found
    return files


class Applications:
    """The applications of a directory; files that change are read again. `beside`: large files are read in a
    thread, and what needs their digests is pending until then. `site`: as for `load_application`."""

    def __init__(self, directory: Path, *, site: SiteConfig | None = None, beside: bool = False) -> None:
        self._directory = directory
        self._site = site
        self.site_dir = directory.parent
        self._seen: dict[str, tuple[int, ...]] = {}
        self._by_file: dict[str, Approved] = {}
        self.digests = Digests(beside=beside)
        self.pending: set[str] = set()  #: files of applications that are read again with the next `refresh`
        self.by_name: dict[str, Approved] = {}
        self.problems: dict[str, str] = {}
        self._named: dict[str, str] = {}  #: files with problems -> the application that they name
        self._changed: dict[str, str] = {}  #: applications whose files are not the approved ones -> why

    def refresh(self) -> bool:
        """Read what is new or changed; whether the offers changed. A wrong file is logged and not offered."""
        listed = self._list()
        found = self._marked(listed)
        if found == self._seen:
            return False
        before = self.by_name, dict(self.problems)
        for name in [*self._by_file, *self.problems]:
            if found.get(name) != self._seen.get(name):
                self._by_file.pop(name, None)
                self.problems.pop(name, None)
        self.pending.clear()
        for name, mark in found.items():
            if self._seen.get(name) != mark:
                self._read(name)
        marked = self._marked(listed)
        self._seen = {name: mark for name, mark in marked.items() if name not in self.pending}
        self.by_name = {}
        for name, approved in sorted(self._by_file.items()):
            if approved.app.name in self.by_name:
                self.problems[name] = f"a second file names application `{approved.app.name}`"
                _log.error("application.refused", file=name, reason=self.problems[name])
            else:
                self.by_name[approved.app.name] = approved
        self._changed = {
            name: why for name, why in self._changed.items() if self.by_name.get(name) is before[0].get(name)
        }
        return (self.by_name, self.problems) != before

    def _read(self, name: str) -> None:
        path = self._directory / name
        try:
            check_application_file(path)
            self._by_file[name] = load_application(path, self.digests, site=self._site)
        except PendingError as error:
            self.pending.add(name)
            _log.info("application.pending", file=name, reason=error.message)
        except TidemillError as error:
            if is_transient(error):
                self.pending.add(name)
                _log.warning("application.unread", file=name, reason=error.message, hint=error.hint)
                return
            self.problems[name] = _error_text(error)
            self._named[name] = _name_in(path)
            _log.error("application.refused", file=name, reason=error.message, hint=error.hint)

    def _list(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(".toml") and not entry.name.startswith("."):
                        status = entry.stat()
                        found[entry.name] = (
                            status.st_mtime_ns,
                            status.st_size,
                            status.st_mode,
                            status.st_uid,
                        )
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SiteError(f"failed to list `{self._directory}`: {error.strerror}") from error
        if len(found) > APPLICATIONS_MAX:
            raise ConfigError(f"`{self._directory}` holds more than {APPLICATIONS_MAX} applications")
        return found

    def _marked(self, listed: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """A file that is refused is read again when the images change, too: one that lacked may be there now."""
        if not self.problems:
            return listed
        try:
            changed_ns = (self._directory.absolute().parent / FOLDER).stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        return {name: (*mark, changed_ns) if name in self.problems else mark for name, mark in listed.items()}

    def known(self, name: str) -> Approved:
        """The application; its files are not read. Raises JobError (class `dispatch`), and PendingError while
        it is read."""
        approved = self.by_name.get(name)
        if approved is None and self.pending:
            raise PendingError(f"files of applications are being read: {', '.join(sorted(self.pending))}")
        if approved is None:
            raise UnfitError(
                f"application `{name}` is not approved here", hint=did_you_mean(name, self.by_name)
            )
        return approved

    def get(self, name: str) -> Approved:
        """The application, whose files still have their digests. Raises JobError (class `dispatch`), and SiteError
        where that is unknown just now (PendingError: they are being read)."""
        approved = self.known(name)
        try:
            _check(approved, self._file(name), self.digests)
        except UnfitError as error:
            self._changed[name] = _error_text(error)
            raise
        self._changed.pop(name, None)
        return approved

    def comparison(self) -> FilesComparison:
        """All applications as they are approved now, to be compared with their files in another thread."""
        files = self._directory.absolute()
        return FilesComparison(
            [
                (approved, files / file)
                for file, approved in self._by_file.items()
                if self.by_name.get(approved.app.name) is approved
            ],
            self.digests.copy(),
        )

    def apply_comparison(self, comparison: FilesComparison) -> None:
        """What a comparison has found, for `refused`; of applications that were read again since it says nothing."""
        self.digests.learn(comparison.digests)
        for approved, why in comparison.results:
            name = approved.app.name
            if self.by_name.get(name) is approved:
                self._changed.pop(name, None)
                if why is not None:
                    self._changed[name] = why

    def refused(self) -> list[RefusedApplication]:
        """Files that name no application of the site now, and applications whose files have changed since."""
        found = [
            RefusedApplication(name=self._named_alone(file), file=file, why=why)
            for file, why in sorted(self.problems.items())
        ]
        return found + [
            RefusedApplication(name=name, file=self._file(name).name, why=why)
            for name, why in sorted(self._changed.items())
        ]

    def _named_alone(self, file: str) -> str:
        """The application that a file with a problem names; empty where it names none, or one that another file offers:
        that one runs, and it is the file that is refused."""
        name = self._named.get(file, "")
        return "" if name in self.by_name else name

    def _file(self, name: str) -> Path:
        """Where an application is written."""
        files = (file for file, each in self._by_file.items() if each.app.name == name)
        return self._directory.absolute() / next(files, f"{name}.toml")

    def approved_files(self, approved: Approved) -> list[ApprovedFile]:
        """What a slot compares before every start, as the files were when `get` last read them."""
        result = []
        for path, digest in approved.files.items():
            size, mtime_ns, ctime_ns, _ = self.digests.mark(path)
            sha256 = digest.removeprefix("sha256:")
            result.append(
                ApprovedFile(path=path, sha256=sha256, bytes=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns)
            )
        return result

    def offers(self, event_s: dict[str, float]) -> list[AppOffer]:
        """The applications as they are offered to the server."""
        return [
            AppOffer(
                name=name,
                version=each.app.version,
                digest=each.digest,
                mode=each.app.mode.value,
                parameters=each.app.parameters,
                outputs=[output.name for output in each.app.outputs],
                cores=each.app.resources.cores or DEFAULT_CORES,
                memory_mb=each.app.resources.memory_mb or DEFAULT_MEMORY_MB,
                event_s=event_s.get(name) or each.app.resources.event_s or DEFAULT_EVENT_S,
                help=each.app.help,
                nodes_max=each.app.nodes_max,
                ranks_max=each.app.ranks_max,
                images=[f"{image.use.name}@sha256:{image.use.file.sha256}" for image in each.images],
                container="" if each.app.container is None else _container_text(each.app.container),
                setup=each.app.setup,
                inputs=each.inputs,
            )
            for name, each in self.by_name.items()
        ]


class FilesComparison:
    """A comparison of the files of all applications with what was approved: one look-up for each file, and files that
    changed are read. It may hang with a file system. `found`: those that were compared, and why jobs of them are
    refused."""

    def __init__(self, approved: list[tuple[Approved, Path]], digests: Digests) -> None:
        self._approved = approved
        self.digests = digests
        self.results: list[tuple[Approved, str | None]] = []

    def compare(self) -> None:
        """Raises nothing that a file may be the reason of: what cannot be read just now is left out."""
        for approved, file in self._approved:
            try:
                _check(approved, file, self.digests)
                self.results.append((approved, None))
            except UnfitError as error:
                self.results.append((approved, _error_text(error)))
            except TidemillError:
                continue


def _check(approved: Approved, file: Path, digests: Digests) -> None:
    """Compare with what was approved in `file`. Raises UnfitError for a file that is not the approved one, SiteError
    where that is unknown just now."""
    name = approved.app.name
    for path, wanted in approved.files.items():
        try:
            found = digests.digest(path)
        except SiteError as error:
            if error.transient:
                raise
            raise UnfitError(f"application `{name}`: {error}") from error
        if found != wanted:
            raise UnfitError(
                f"application `{name}`: `{path}` has digest {digest_text(found)}, approved is "
                f"{digest_text(wanted)}",
                hint=f"the site's operator approves it as it is now: `tidemill app approve {file}`",
            )
    for image in approved.images:
        why = why_changed(image, approved.store, digests)
        if why is not None:
            raise UnfitError(
                f"application `{name}`: {why}",
                hint="the site's staff has to approve it again: `tidemill app check`",
            )


def _error_text(error: TidemillError) -> str:
    return error.message + (f" ({error.hint})" if error.hint else "")


def _name_in(path: Path) -> str:
    """The application that a file names, whatever else is wrong with it; empty where it cannot be read."""
    try:
        return load(path, Application).name
    except TidemillError:
        return ""


def _container_text(container: Container) -> str:
    return f"{container.runtime.value}: {container.image}"


def adhoc(command: list[str], *, path: str | None, container: Container | None = None) -> Approved:
    """An ad-hoc command as an application of its own; in a container its program is the image's. Raises JobError where
    the program is not found."""
    if not command or "\0" in "".join(command):
        raise JobError("the command is empty" if not command else "the command holds a NUL character")
    program = command[0]
    if container is None:
        found = shutil.which(octets.restored(program), path=path)
        if found is None:
            raise JobError(
                f"the site has no program `{octets.shown(program)}` on its agent's PATH",
                hint="give its absolute path",
            )
        program = octets.carried(str(Path(found).absolute()))
    app = Application(
        name="command",
        executable=program,
        arguments=command[1:],
        container=container,
        nodes_max=NODES_MAX,
        ranks_max=RANKS_MAX,
    )
    templates = [Template.literal_but_known(argument) for argument in command[1:]]
    return Approved(app=app, templates=templates, files={})
