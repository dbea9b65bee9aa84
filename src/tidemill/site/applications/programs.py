"""From a job's specification to what a fleet needs: a program, argument templates, inputs. Bad jobs are refused here.

Resolves applications and validates parameters; knows no lease and no lead. About 20 us per job of a known kind.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, JobError, SiteError, TidemillError, UnfitError, did_you_mean
from tidemill.model.application import (
    DEFAULT_CORES,
    DEFAULT_EVENT_S,
    Application,
    Mode,
    Parameter,
)
from tidemill.model.devices import merged
from tidemill.model.far import OPENED
from tidemill.model.handed import inputs_fault
from tidemill.model.job import JobSpec, Output, OutputKind, Width
from tidemill.model.parameter import check_value
from tidemill.model.width import check_allowed, check_asked, check_place
from tidemill.site.applications.adhoc_containers import adhoc_container
from tidemill.site.applications.approval import runtime_of
from tidemill.site.applications.catalogue import Applications, Approved, adhoc
from tidemill.site.applications.checksums import PendingError
from tidemill.site.applications.compatibility import may_trace
from tidemill.site.applications.containers import environment_of, wrap_words
from tidemill.site.applications.handed.intake import PythonPlaces, line_rules, python_places
from tidemill.site.applications.launching import ENV, PASSED, Launching, launcher_words, rank_environment
from tidemill.site.applications.memory import has_room, images_mb, slot_memory
from tidemill.site.applications.named import named_paths, places_of
from tidemill.site.applications.profiles import Profiles, with_costs
from tidemill.site.applications.setup_lines import setup_of
from tidemill.site.applications.templates import INPUTS, MANY_EVENTS, Template, doubled
from tidemill.site.staff.denials import Denials
from tidemill.site.state import site_state
from tidemill.wire.node import ApprovedFile, ImageUse, InputDef, JobDef, NamedPaths, OutputDef, Program

CHUNK_MAX = 1_000_000
"""Events per range where nothing else limits them."""

CLIENT_ENVIRONMENT = {
    # a server that went is asked again for 5 s at a time, not 120: a cache that restarts costs seconds; what hangs ends
    # within two minutes, and the event is tried by another way
    "XRD_CONNECTIONWINDOW": "5",
    "XRD_CONNECTIONRETRY": "5",
    "XRD_REQUESTTIMEOUT": "120",
    "XRD_STREAMTIMEOUT": "60",
}
"""Of payloads whose program opens inputs: defaults that application and job may set otherwise."""

PROGRAMS_MAX = 10_000
COMMANDS_MAX = 1_000
STDOUT = "stdout"
T = TypeVar("T")
_encode = msgspec.json.encode


class NodeShape(msgspec.Struct, frozen=True):
    """What the widest slot of the site can have."""

    cores: int
    memory_mb: int
    devices: dict[str, int]


class Preparer:
    """Turns jobs into definitions for fleets. Programs are numbered for the life of the agent. `profiles`: what was
    traced; None = nothing is; `denials`: whom the site's staff deny; None = no submitter."""

    def __init__(
        self,
        config: SiteConfig,
        applications: Applications,
        shape: NodeShape,
        *,
        profiles: Profiles | None = None,
        denials: Denials | None = None,
    ) -> None:
        self._config = config
        self._applications = applications
        self._shape = shape
        self._profiles = profiles
        self._denials = denials
        self._launching = Launching()
        self._programs: dict[tuple[str, str, bytes, bytes, bool], Program] = {}
        self._arguments: dict[str, _Arguments] = {}
        self._checked: dict[str, TidemillError | None] = {}  #: applications in this tick, and what was wrong
        self._files_of: dict[str, list[ApprovedFile]] = {}  #: of applications, as they were read last
        self._commands: dict[tuple[str, ...], Approved] = {}
        self._next_program = 1

    def begin(self, launching: Launching | None = None) -> None:
        """A new tick: digests are checked again when an application is next used. `launching`: how payloads that span
        nodes are started from now on; None = as before."""
        self._launching = launching or self._launching
        self._checked.clear()

    def take_memory(self, memory_mb: int) -> None:
        """The memory that pilots have on the widest node, as it is known now."""
        if memory_mb != self._shape.memory_mb:
            self._shape = msgspec.structs.replace(self._shape, memory_mb=memory_mb)
            self._programs.clear()  # slots get other defaults

    def misfit(self, spec: JobSpec, measured_s: float | None, memory_mb: int) -> str | None:
        """Why slots as they are defined now for such a job are too large for nodes with this memory; None = they fit,
        or cannot be defined now."""
        try:
            program = self.program(spec, measured_s)
        except UnfitError as error:
            return error.message
        except TidemillError:
            return None
        if has_room(program, memory_mb, spills=bool(self._config.fast_dir)):
            return None
        return (
            f"a slot of {program.memory_mb} MB of memory and {program.scratch_mb} MB for its work directory is asked "
            f"for, an allocation has {memory_mb} MB on a node here"
        )

    def check_owner(self, job: site_state.SiteJob) -> None:
        """Raises JobError for a submitter whom the site's staff deny."""
        why = (
            None if self._denials is None or job.id >= site_state.STEP_BASE else self._denials.why(job.owner)
        )
        if why is not None:
            raise UnfitError(why)

    def app_error(self, name: str) -> SiteError | None:
        """What is wrong with an application at this site just now, for jobs of all owners; None = nothing is."""
        try:
            self._refresh(name)
        except PendingError:
            return None
        except SiteError as error:
            return error
        except TidemillError:  # it does not pass by itself
            return None
        return None

    def program(self, spec: JobSpec, measured_s: float | None) -> Program:
        """The program of a job. Raises JobError (class `dispatch`), SiteError where a file system fails briefly."""
        if spec.app is not None and spec.inputs:
            self._check_inputs(spec.app, spec)
        name = spec.app if spec.app is not None else "\0" + (spec.command or [""])[0]
        shape = (
            _encode([spec.command, None if spec.container is msgspec.UNSET else spec.container])
            if spec.app is None
            else b""
        )
        if spec.app is not None:
            self._refresh(spec.app)
        mark = self._traced_mark(spec)
        key = (name, mark, _encode(spec.resources), shape + _encode(spec.outputs), spec.keep_stdout)
        known = self._programs.get(key)
        if known is not None:
            return known
        if len(self._programs) >= PROGRAMS_MAX:
            self._programs.clear()
        program = self._make(spec, self._approved(spec), measured_s)
        self._programs[key] = program
        self._next_program += 1
        return program

    def job(self, job: site_state.SiteJob, program: Program, inputs: list[InputDef]) -> JobDef:
        """The job's definition for a fleet. Raises JobError (class `dispatch`)."""
        spec = job.spec
        if spec.app is None:
            approved = self._approved(spec)
            cores = self._cores_of_rank(spec, approved)
            argv = [template.fill(_known(cores)) for template in approved.templates]
            params = "{}"
        else:
            arguments = self._arguments.get(spec.app)
            if arguments is None:
                arguments = self._arguments[spec.app] = _Arguments(self._approved(spec))
            argv, params = arguments.fill(
                spec.params, inputs, cores=self._cores_of_rank(spec, arguments.approved)
            )
            if spec.env and not self._config.allow_adhoc:
                raise UnfitError(
                    f"environment variable `{min(spec.env)}`: this site lets no job set any for approved applications",
                    hint="use the application's parameters",
                )
        width = spec.resources.width
        if width is not None:
            words = [*launcher_words(self._launching.launcher, width), self._approved(spec).app.executable]
            argv = [*(doubled(word) for word in words), *argv]
        shell = None if spec.shell is msgspec.UNSET else spec.shell
        return JobDef(
            job=job.id,
            program=program.program,
            argv=argv,
            env=self._client_environment(spec, program) | spec.env,
            params=params,
            seed_base=job.seed_base,
            events=spec.events,
            inputs=inputs,
            at_once=spec.running_max,
            umask=None if shell is None else shell.umask,
            limits=None if shell is None else shell.limits,
        )

    def opening(self, spec: JobSpec) -> tuple[list[str], str]:
        """Schemes of URLs that the job's program opens, and why its payloads reach no network (empty = they do). Raises
        JobError."""
        app = self._approved(spec).app
        needed = app.network if app.network is not None else app.batch_commands or None
        if network_of(self._config, needed) == "open" or spec.resources.width is not None:
            why = ""
        elif app.network is None:
            why = (
                "its payloads have no network here: `network = true` in the application's file permits it, "
                'or `network = "open"` in site.toml'
            )
        else:
            why = "the application says `network = false`"
        opens: list[str] = list(OPENED if spec.app is None else app.opens)
        return opens, why

    def outputs(self, spec: JobSpec) -> list[Output]:
        """The outputs of a job, stdout included where it is kept. Raises JobError."""
        outputs = spec.outputs
        if outputs is None:
            outputs = [] if spec.app is None else self._approved(spec).app.outputs
        if spec.keep_stdout and not any(map(_is_stdout, outputs)):
            outputs = [*outputs, Output(name=STDOUT, path=STDOUT, kind=OutputKind.EACH)]
        return outputs

    def digest(self, spec: JobSpec) -> str:
        """Digest of the job's application, for the manifest of its outputs."""
        if spec.app is None:
            return ""
        approved = self._applications.by_name.get(spec.app)
        return approved.digest if approved else ""

    def _check_inputs(self, name: str, spec: JobSpec) -> None:
        """Raises UnfitError for an input that the application does not take."""
        taken = self._applications.known(name).inputs
        fault = inputs_fault(name, taken, (each.name for each in spec.inputs))
        if fault is not None:
            raise UnfitError(fault.text, hint=fault.hint)

    def _refresh(self, name: str) -> None:
        """Read the application's files, once in a tick; after a change of the application forget what was made of
        it. Raises JobError, SiteError."""
        if name in self._checked:
            wrong = self._checked[name]
            if wrong is not None:
                raise wrong.with_traceback(None)
            return
        try:
            approved = self._applications.get(name)
        except TidemillError as error:
            self._checked[name] = error
            raise
        self._checked[name] = None
        arguments, files = self._arguments.get(name), self._applications.approved_files(approved)
        is_changed = arguments is not None and arguments.approved is not approved
        if is_changed or self._files_of.get(name, files) != files:
            self._arguments.pop(name, None)
            for key in [key for key in self._programs if key[0] == name]:
                del self._programs[key]
        self._files_of[name] = files

    def _traced_mark(self, spec: JobSpec) -> str:
        """Changes when traces show another cost of a start: then there is a new program."""
        approved = None if spec.app is None else self._applications.by_name.get(spec.app)
        if self._profiles is None or approved is None:
            return ""
        return str(self._profiles.mark(approved.app.name, approved.app.version))

    def _approved(self, spec: JobSpec) -> Approved:
        if spec.app is not None:
            return self._applications.known(spec.app)
        if not self._config.allow_adhoc:
            raise UnfitError(
                "this site runs approved applications only, no commands",
                hint=did_you_mean("", self._applications.by_name),
            )
        image = _image(spec)
        key = (image, *(spec.command or ()))
        known = self._commands.get(key)
        if known is None:
            if len(self._commands) >= COMMANDS_MAX:
                self._commands.clear()
            container = adhoc_container(image, self._config)[0] if image else None
            known = self._commands[key] = adhoc(
                [*(spec.command or ())], path=os.environ.get("PATH"), container=container
            )
        return known

    def _make(self, spec: JobSpec, approved: Approved, measured_s: float | None) -> Program:
        app, resources = approved.app, spec.resources
        cores = _first(resources.cores, app.resources.cores, DEFAULT_CORES)
        images = [image.use for image in approved.images]
        memory_mb, scratch_mb = slot_memory(
            _given(resources.memory_mb, app.resources.memory_mb),
            _given(resources.scratch_mb, app.resources.scratch_mb),
            share_mb=self._memory_share(cores, images),
        )
        devices = merged(resources.devices, app.resources.devices)
        self._check_fits(cores, devices)
        timeout_s = resources.timeout_s or app.resources.timeout_s
        event_s = _first(resources.event_s, measured_s, app.resources.event_s, DEFAULT_EVENT_S)
        env, python_first = self._environment(app, adhoc=spec.app is None)
        program = Program(
            program=self._next_program,
            app=spec.app or "command",
            version=app.version,
            executable=app.executable,
            mode=app.mode.value,
            env=env,
            cores=cores,
            memory_mb=memory_mb,
            devices=devices,
            scratch_mb=scratch_mb,
            # commands of the batch system talk to its daemons
            network=network_of(
                self._config, app.network if app.network is not None else app.batch_commands or None
            ),
            processes_max=app.processes_max,
            event_s=event_s,
            chunk_max=_chunk_max(app, approved.templates),
            range_s=app.range_s,
            timeout_s=None if timeout_s is None else float(timeout_s),
            looping_s=None if app.looping_s is None else float(app.looping_s),
            ready_timeout_s=float(app.ready_timeout_s),
            log_bytes_max=app.log_bytes_max,
            outputs=[OutputDef(name=each.name, path=each.path) for each in self._files(spec)],
            stdout_output=spec.keep_stdout,
            batch_commands=app.batch_commands,
            pass_env=[],
            images=images,
            files=self._applications.approved_files(approved),
            wrap=self._wrap(app, adhoc=spec.app is None),
            setup=setup_of(app, self._applications.site_dir.absolute()),
            trace_first=False,
            trace_every=0,
            start_ops={},
            start_bytes={},
            named=self._named(approved, adhoc=spec.app is None),
            # a command is its submitter's, lines and names of inputs are, too
            inputs_apart=spec.app is not None,
            lines=None if spec.app is None else line_rules(app),
            python_first=python_first,
        )
        if self._profiles is not None and spec.app is not None:
            program = self._profiles.outfit(program, self._trace_every(app))
        program = with_costs(program, self._config, app)
        width = resources.width
        if width is not None:
            return self._widen(program, spec, approved, width)
        self._check_memory(program)
        return program

    def _widen(self, program: Program, spec: JobSpec, approved: Approved, width: Width) -> Program:
        """The program of a payload that spans nodes: its launcher, in the only slot of the allocation's first node.
        The batch system bounds the memory of its ranks. Raises JobError."""
        app, cores = approved.app, program.cores
        place = self._launching
        why = (
            check_asked(spec.resources)
            or check_allowed(width, app=app.name, nodes_max=app.nodes_max, ranks_max=app.ranks_max)
            or check_place(
                width,
                cores=cores,
                nodes=place.nodes,
                cores_per_node=self._shape.cores,
                launcher=place.launcher,
            )
        )
        if why is not None:
            raise UnfitError(why)
        if approved.images:
            raise UnfitError(
                f"application `{app.name}` uses images, and the launcher's ranks on other nodes do not see them",
                hint="ask for one payload per node, or approve the application without `images` for such jobs",
            )
        if spec.app is None and self._config.needs_namespaces:
            raise UnfitError(
                "ranks cannot be isolated from the site: this site starts them for approved applications only"
            )
        return msgspec.structs.replace(
            program,
            executable=ENV,
            env={**rank_environment(width, cores), **program.env},
            cores=1,
            memory_mb=0,
            scratch_mb=0,
            network="open",  # a launcher reaches the other nodes by it
            looping_s=None,
            batch_commands=True,
            pass_env=PASSED,
            trace_first=False,  # of ranks on other nodes the launcher's trace would see nothing
            trace_every=0,
            start_ops={area: ops * width.ranks for area, ops in program.start_ops.items()},
            start_bytes={area: read * width.ranks for area, read in program.start_bytes.items()},
        )

    def _wrap(self, app: Application, *, adhoc: bool) -> list[str]:
        if app.container is None:
            return []
        try:
            if adhoc:
                runtime = adhoc_container(app.container.image, self._config)[1]
            else:
                runtime = runtime_of(app.container, self._config)
            return wrap_words(app, runtime, namespaces=self._config.isolation != "off")
        except ConfigError as error:
            raise UnfitError(f"application `{app.name}`: {error.message}", hint=error.hint) from error

    def _named(self, approved: Approved, *, adhoc: bool) -> NamedPaths:
        """What the application's slot shows. A command is its submitter's: nothing follows from it."""
        if adhoc:
            return NamedPaths(show=[], write=[], may_mount=approved.app.container is not None)
        places = places_of(self._config, self._applications.site_dir)
        return named_paths(approved.app, self._config, approved.templates, places)

    def _trace_every(self, app: Application) -> int:
        """0 where the kernel does not permit tracing it."""
        container = app.container
        runtime = None if container is None else self._config.containers.get(container.runtime.value)
        return app.trace_every if may_trace(app, runtime, self._config.isolation) else 0

    def _environment(self, app: Application, *, adhoc: bool) -> tuple[dict[str, str], str | None]:
        """Variables, and the directory that begins Python's search path."""
        passed = {name: os.environ[name] for name in app.pass_environment if name in os.environ}
        needed = {} if app.container is None else environment_of(app.container, getpass.getuser, os.getuid())
        given = {**needed, **passed, **app.environment}
        places = PythonPlaces({}, None) if adhoc else python_places(app, given)
        return {**given, **places.environment}, places.first

    def _client_environment(self, spec: JobSpec, program: Program) -> dict[str, str]:
        """What clients of far files need to give up in time; the application's own settings win."""
        if not any(each.is_opened for each in spec.inputs):
            return {}
        return {name: value for name, value in CLIENT_ENVIRONMENT.items() if name not in program.env}

    def _cores_of_rank(self, spec: JobSpec, approved: Approved) -> int | None:
        """What `{cores}` is for a payload that spans nodes; None = the slot fills it in."""
        if spec.resources.width is None:
            return None
        return _first(spec.resources.cores, approved.app.resources.cores, DEFAULT_CORES)

    def _files(self, spec: JobSpec) -> list[Output]:
        files = [each for each in self.outputs(spec) if not (spec.keep_stdout and _is_stdout(each))]
        for each in files:
            if each.path.startswith("/") or ".." in each.path.split("/") or not each.path:
                raise JobError(f"path `{each.path}` of output `{each.name}` leaves the work directory")
        return files

    def _memory_share(self, cores: int, images: list[ImageUse]) -> int:
        """Memory in MB for `cores` cores when all cores of the node are used."""
        memory_mb = max(0, self._shape.memory_mb - images_mb(images))
        return max(1, memory_mb * cores // max(1, self._shape.cores))

    def _check_fits(self, cores: int, devices: Mapping[str, int]) -> None:
        shape = self._shape
        for what, wanted, there in [
            ("cores", cores, shape.cores),
            *((kind, number, shape.devices.get(kind, 0)) for kind, number in devices.items()),
        ]:
            if wanted > there:
                raise UnfitError(f"a slot of {wanted} {what} is asked for, a node of this site has {there}")

    def _check_memory(self, program: Program) -> None:
        """Work directories count: they are in memory, unless the site has a place for large ones."""
        fast_dir, there_mb = self._config.fast_dir, self._shape.memory_mb
        if has_room(program, there_mb, spills=bool(fast_dir)):
            return
        if program.memory_mb > there_mb:
            raise UnfitError(
                f"a slot of {program.memory_mb} MB of memory is asked for, a node of this site has {there_mb}"
            )
        image_mb = images_mb(program.images)
        images = f", its images {image_mb} MB" if image_mb else ""
        raise UnfitError(
            f"a slot needs {program.memory_mb} MB of memory, its work directory {program.scratch_mb} MB{images}: "
            f"together more than the {there_mb} MB that a node of this site has",
            hint="lower `resources.scratch_mb` or `resources.memory_mb`"
            + ("" if fast_dir else "; or the site names a `fast_dir` for large work directories"),
        )


def network_of(config: SiteConfig, needed: bool | None = None) -> str:
    """What payloads see of the network, in the words of `Program.network`. `needed`: what their application says."""
    if needed or (needed is None and config.network == "open"):
        return "open"
    if config.network == "closed":
        return "closed"
    return "preferred" if config.serves_others or needed is False else "open"


class _Arguments:
    """The argument templates of one application, and what its parameters make of them."""

    def __init__(self, approved: Approved) -> None:
        self.approved = approved
        app = approved.app
        self._parameters: dict[str, Parameter] = app.parameters
        self._script = (
            [] if app.script is None else [Template([(app.script.replace("{", "{{"), None)]).fill({})]
        )
        self._templates = approved.templates
        self._is_fixed = not any(
            name in app.parameters for each in approved.templates for name in each.names()
        )
        self._has_inputs = any(INPUTS in each.names() for each in approved.templates)
        self._fixed: list[str] | None = None

    def fill(
        self,
        given: Mapping[str, str | int | float | bool],
        inputs: list[InputDef],
        *,
        cores: int | None = None,
    ) -> tuple[list[str], str]:
        """The arguments, and the parameters as JSON; `cores` fills in `{cores}`. Raises JobError naming the parameter
        that is wrong."""
        is_fixed = self._is_fixed and not self._has_inputs and cores is None
        if not given and not self._parameters and is_fixed and self._fixed is not None:
            return self._fixed, "{}"
        values = self._values(given)
        texts = {**_known(cores), **{name: _text(value) for name, value in values.items()}}
        argv = [*self._script]
        for template in self._templates:
            if self._has_inputs and template.names() == [INPUTS]:
                argv += ["{input." + each.name + "}" for each in inputs]
            else:
                argv.append(template.fill(texts))
        if is_fixed:
            self._fixed = argv
        return argv, _encode(values).decode()

    def _values(self, given: Mapping[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        values: dict[str, str | int | float | bool] = {}
        for name in given:
            if name not in self._parameters:
                raise JobError(
                    f"application `{self.approved.app.name}` has no parameter `{name}`",
                    hint=did_you_mean(name, self._parameters),
                )
        for name, parameter in self._parameters.items():
            value = given.get(name, parameter.default)
            if value is None:
                raise JobError(
                    f"application `{self.approved.app.name}` needs parameter `{name}`",
                    hint=parameter.help or None,
                )
            values[name] = check_value(name, parameter, value)
        return values


def _known(cores: int | None) -> dict[str, str]:
    return {} if cores is None else {"cores": str(cores)}


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _chunk_max(app: Application, templates: list[Template]) -> int:
    if app.events_per_range_max is not None:
        return app.events_per_range_max
    takes_many = app.mode is Mode.RANGE or any(MANY_EVENTS & set(each.names()) for each in templates)
    return CHUNK_MAX if takes_many else 1


def _given(*values: T | None) -> T | None:
    """The first that is given, if any."""
    return next((value for value in values if value is not None), None)


def _image(spec: JobSpec) -> str:
    """The image in which a command runs; empty for none."""
    return "" if spec.container is msgspec.UNSET else spec.container


def _is_stdout(output: Output) -> bool:
    """Whether an output is what payloads print, not one of their files. Jobs name it to choose how it is packed."""
    return output.name == STDOUT and output.path == STDOUT


def _first(*values: T | None) -> T:
    """The first that is given; the last always is."""
    return next(value for value in values if value is not None)
