"""The names of the SDK, for type checkers: `__init__.py` imports them when they are used."""

from tidemill.client.client import Client as Client
from tidemill.client.client import Submission as Submission
from tidemill.client.jobfile import JobFile as JobFile
from tidemill.client.jobfile import load_job_file as load_job_file
from tidemill.client.outputs import Member as Member
from tidemill.client.outputs import OutputFile as OutputFile
from tidemill.client.progress import progress as progress
from tidemill.errors import ConfigError as ConfigError
from tidemill.errors import JobError as JobError
from tidemill.errors import SiteError as SiteError
from tidemill.errors import TidemillError as TidemillError
from tidemill.model.job import Input as Input
from tidemill.model.job import InputKind as InputKind
from tidemill.model.job import JobSpec as JobSpec
from tidemill.model.job import Output as Output
from tidemill.model.job import OutputKind as OutputKind
from tidemill.model.job import Resources as Resources
from tidemill.model.retry.changes import JobChanges as JobChanges
from tidemill.model.retry.changes import limits as limits
from tidemill_calls.executor import CallError as CallError
from tidemill_calls.executor import CallFuture as CallFuture
from tidemill_calls.executor import CallTimeoutError as CallTimeoutError
from tidemill_calls.executor import Executor as Executor
from tidemill_report import frames as frames

__version__: str
__all__: list[str]
