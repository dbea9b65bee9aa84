"""`tidemill VERB ...`: finds the verb's file, and maps what happens to an exit code. Imports nothing heavy.

0   done
1   the job failed (or was canceled)
2   usage or configuration
3   site, service or network: try again
70  a bug: where the traceback was written is told
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tidemill import __version__
from tidemill.cli.arguments import Command, Parser, add_common
from tidemill.cli.terminal import discard_stdout, flush, hint, say, say_lines, show, show_lines
from tidemill.errors import ConfigError, TidemillError, did_you_mean

EXIT_DONE = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_SITE = 3
EXIT_BUG = 70

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "start here": {
        "quickstart": ("start.quickstart", "a real campaign on this machine: server, site, jobs, report"),
        "run": ("start.run", "run one command many times; starts what is needed"),
        "up": ("start.up", "keep a server and a site running on this machine, for yourself"),
        "doctor": ("start.doctor", "look for what is wrong on this machine"),
        "support": ("start.support", "collect what support staff need in one file, without secrets"),
        "clean": ("start.clean", "remove what ended jobs and old starts have left"),
    },
    "jobs": {
        "submit": ("jobs.submit", "submit a job file, or one job of an application"),
        "jobs": ("jobs.listing", "list jobs"),
        "job show": ("jobs.job", "everything about one job"),
        "job explain": ("jobs.job", "why a job waits, and what would change it"),
        "job cancel": ("jobs.job", "cancel jobs or a campaign"),
        "job retry": ("jobs.job", "run what failed or was not done; what is done stays done"),
        "job accept": ("jobs.job", "take what is done of failed or canceled jobs, and deliver it"),
        "job discard": ("jobs.job", "delete what sites keep of ended jobs and have not delivered"),
        "job logs": ("jobs.job", "stdout and stderr of a payload"),
        "top": ("jobs.top", "campaigns as they run"),
        "message submit": ("jobs.message", "submit a job file by the message broker"),
        "message follow": ("jobs.message", "state changes of your jobs, as messages tell them"),
        "outputs ls": ("jobs.outputs", "list outputs: at the site, under way, delivered"),
        "outputs get": ("jobs.outputs", "copy delivered outputs and verify them"),
        "errors": ("jobs.errors", "failures grouped by class and cause"),
        "report": ("jobs.report", "what was done, as tables or one HTML page"),
        "web": ("server.web", "print a URL of the server's pages for your browser"),
    },
    "applications": {
        "app list": ("software.applications", "the applications that sites offer"),
        "app show": ("software.applications", "one application with its parameters"),
        "app check": ("software.applications", "check an application file before it is approved"),
    },
    "shared file systems": {
        "trace": ("software.trace", "run a command and count what it asks of file systems"),
        "trace show": ("software.trace", "the table of a saved profile"),
        "trace merge": ("software.trace", "several runs as one profile"),
        "trace explain": (
            "software.trace",
            "which search paths cause the failing look-ups, and what avoids them",
        ),
        "image build": (
            "software.image",
            "pack the software that a trace used, or whole trees, into an image",
        ),
        "image list": ("software.image", "the images of a store"),
        "image inspect": ("software.image", "what an image holds and where it came from"),
        "image verify": (
            "software.image",
            "whether an image is whole, and what of its sources changed since",
        ),
        "image gc": ("software.image", "remove images that no application names"),
        "image export": ("software.image", "write an image as one squashfs file"),
        "image run": ("software.image", "run a command in an image"),
    },
    "caches": {
        "cache init": ("cache.init", "write the configuration of a block cache in front of far storage"),
        "cache run": ("cache.run", "run a cache, and start it again after a crash"),
        "cache status": ("cache.status", "whether a cache runs and is well, and what it holds"),
        "cache ls": ("cache.ls", "list what a cache holds, by dataset and by file"),
        "cache purge": ("cache.purge", "remove files from a cache"),
        "cache check": ("cache.check", "compare cached blocks with the origin, and drop damaged files"),
        "cache study": (
            "cache.study",
            "measure what a cache would do for a data set, and name the setting to use",
        ),
    },
    "stress tests": {
        "stress run": ("stress.run", "hold levels of running payloads at a site, and measure them"),
        "stress scan": ("stress.run", "measure numbers of slots per node and their placement"),
        "stress compare": ("stress.compare", "whether two runs of a stress test differ"),
        "stress schedule": ("stress.schedule", "repeat a stress test by cron, with a gate"),
    },
    "server": {
        "server run": ("server.service", "run the server"),
        "server init": ("server.service", "write a commented server.toml"),
        "server upgrade": ("server.service", "bring the database to this version"),
        "server notify": ("server.service", "send a test message to somebody"),
        "server broker-setup": ("server.broker", "users, rights and queues that RabbitMQ needs for messages"),
        "owner list": ("server.owners", "what submitters have had of the fair share"),
        "owner shares": ("server.owners", "give a submitter a weight in the fair share"),
        "downtimes list": ("server.downtimes", "when sites are out of service, as the server knows it"),
        "downtimes check": ("server.downtimes", "what a file of downtimes says, and what of it is left out"),
        "audit": ("server.audit", "who ran what in an allocation or on a node; is the log of changes whole"),
        "certs init": ("server.certs", "make a small CA for a collaboration that has none"),
        "certs issue": ("server.certs", "make a key pair for the server, a submitter, a site or an operator"),
        "certs show": ("server.certs", "what certificates say and when they end"),
        "certs revoke": ("server.certs", "take certificates back"),
    },
    "sites": {
        "site init": ("site.init", "look at the machine and write a commented site.toml"),
        "site check": ("site.check", "check a site.toml and what it names"),
        "site enable": ("site.check", "let a site that observes submit jobs, and set its bounds"),
        "site run": ("site.agent", "run a site's agent"),
        "site status": ("site.status", "what a site does"),
        "site drain": ("site.agent", "stop a site: nothing new starts, nodes are given back"),
        "site resume": ("site.agent", "let a stopped site work again"),
        "site reset-epoch": (
            "site.epoch",
            "at the server: let a site's agent come back that a stolen credential has locked out",
        ),
        "site deny": ("site.agent", "let nothing of a submitter run at a site"),
        "site allow": ("site.agent", "let a submitter's jobs run there again"),
        "site harm": ("site.harm", "how long others' jobs waited because of us, with the evidence"),
        "windows": ("site.windows", "idle nodes, and until when nobody needs them"),
        "report opportunity": (
            "site.opportunity",
            "from a machine's accounting: what a guest could harvest, what it is worth, and who would wait",
        ),
        "report accounting": (
            "jobs.accounting",
            "reconcile a month of allocations with the batch system's accounting",
        ),
        "simulate": (
            "site.simulate",
            "replay a machine's log: what would be harvested, and who would wait for it",
        ),
    },
}
VERBS: dict[str, tuple[str, str]] = {verb: each for group in GROUPS.values() for verb, each in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        flush()
    except BrokenPipeError:
        # The reader of our output has left (`| head`): that is no failure. What Python flushes at exit goes nowhere.
        discard_stdout()
        return EXIT_DONE
    except TidemillError as error:
        _tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("")
        say("interrupted")
        return EXIT_JOB_FAILED
    except SystemExit as exit_:  # argparse has printed its help
        return exit_.code if isinstance(exit_.code, int) else EXIT_DONE
    except Exception as error:  # noqa: BLE001 -- the top of the program: told as a bug
        return _bug(error)
    return code


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        show_lines(overview())
        return EXIT_DONE if words else EXIT_USAGE
    if words[0] == "--version":
        show(f"tidemill {__version__}")
        return EXIT_DONE
    is_family = words[0] not in VERBS and bool(family_of(words[0]))
    if len(words) == 2 and words[1] in ("-h", "--help") and is_family:
        for verb in family_of(words[0]):
            show(f"tidemill {verb:<20} {VERBS[verb][1]}")
        return EXIT_DONE
    verb, rest = find_verb(words)
    command = load(verb)
    args = parser_of(verb, command).parse_args(rest)
    return command.run(args)


def find_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb that a command line starts with (one or two words), and the words after it."""
    pair = " ".join(words[:2])
    if pair in VERBS:
        return pair, list(words[2:])
    if words[0] in VERBS:
        return words[0], list(words[1:])
    family = family_of(words[0])
    if family and len(words) == 1:
        raise ConfigError(f"`tidemill {words[0]}` needs one more word", hint=f"known: {_listed(family)}")
    if family:
        raise ConfigError(f"`tidemill` has no verb `{pair}`", hint=did_you_mean(pair, family))
    firsts = {verb.partition(" ")[0] for verb in VERBS}
    raise ConfigError(f"`tidemill` has no verb `{words[0]}`", hint=did_you_mean(words[0], firsts))


def family_of(word: str) -> list[str]:
    """The verbs of two words that start with this one."""
    return [verb for verb in VERBS if verb.startswith(f"{word} ")]


def load(verb: str) -> Command:
    """The command of a verb; imports its file."""
    commands: dict[str, Command] = importlib.import_module(f"tidemill.cli.{VERBS[verb][0]}").COMMANDS
    return commands[verb]


def parser_of(verb: str, command: Command) -> Parser:
    """The parser of a verb, common options included."""
    parser = Parser(
        prog=f"tidemill {verb}",
        description=VERBS[verb][1],
        epilog=f"example: {command.example}",
        allow_abbrev=False,
    )
    command.define(parser)
    add_common(parser, talks=command.talks)
    return parser


def overview() -> str:
    """What `tidemill --help` prints."""
    lines = [
        "usage: tidemill VERB [OPTIONS]",
        "",
        "Runs a science collaboration's jobs on supercomputers that it does not own.",
    ]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {verb:<20} {about}" for verb, (_, about) in verbs.items()]
    lines += ["", "`tidemill VERB --help` explains a verb; `tidemill --version` tells the version."]
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _tell(error: TidemillError) -> None:
    first, *more = error.message.split("\n")
    say(f"error: {first}")
    for line in more:
        say(f"  | {line}")
    if error.hint:
        hint(error.hint)


def _bug(error: Exception) -> int:
    """Write the traceback to a file and say where: it helps us, not the one who met it."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="tidemill-bug-", suffix=".txt", delete=False) as file:
            file.write(f"tidemill {__version__}, Python {sys.version}\n{text}")
        path: str | None = file.name
    except OSError:
        path = None
    say(f"error: this is a bug of Tidemill: {type(error).__name__}: {error}")
    if path is None:
        hint("please report it; the traceback follows")
        say_lines(text)
    else:
        hint(f"please report it; the traceback is in `{path}`")
    return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
