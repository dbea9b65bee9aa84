"""The verbs of the command line: the group, the file and the parser of each. Imports a file when its verb is used.

Those of extensions are added to the groups; a name that the core has stays the core's.
"""

from __future__ import annotations

import importlib

from tidemill import extensions
from tidemill.cli.arguments import Command, Parser, add_common

Groups = dict[str, dict[str, tuple[str, str]]]
"""By group and verb: the module (the core's relative to `tidemill.cli`), and what `tidemill --help` says of it."""

CORE: Groups = {
    "start here": {
        "quickstart": ("start.quickstart", "a real campaign on this machine: server, site, jobs, report"),
        "run": ("start.run", "run one command many times; starts what is needed"),
        "up": ("start.up", "keep a server and a site running on this machine, for yourself"),
        "doctor": ("start.doctor", "check this machine, and say what is wrong"),
        "support": ("start.support", "collect what support staff need in one file, with secrets cut out"),
        "clean": ("start.clean", "remove what ended jobs and old starts have left"),
        "completion": ("start.completion", "print the completion script of a shell: bash, zsh or fish"),
        "man": ("start.man", "show the manual page of a verb, or write all pages into a directory"),
    },
    "jobs": {
        "submit": ("jobs.submit", "submit a job file, or one job of an application"),
        "jobs": ("jobs.jobs", "list jobs"),
        "wait": (
            "jobs.wait",
            "wait until jobs or campaigns have ended; exits with 0 if all went well, 1 if not, 3 at a timeout",
        ),
        "attach": (
            "jobs.attach",
            "follow a campaign to its end, and exit with the code of the `run` that started it",
        ),
        "job show": ("jobs.job", "everything about one job"),
        "job explain": ("jobs.explain", "why a job waits, how it goes on, or how it ended, and what to do"),
        "job cancel": ("jobs.job", "cancel jobs or a campaign"),
        "job retry": ("jobs.job", "run what failed or was not done; what is done stays done"),
        "job accept": ("jobs.job", "take what is done of failed or canceled jobs, and deliver it"),
        "job discard": ("jobs.job", "delete what sites keep of ended jobs and have not delivered"),
        "job logs": ("jobs.logs", "stdout and stderr of a payload"),
        "top": ("jobs.top", "campaigns as they run"),
        "outputs ls": ("jobs.outputs", "list outputs: at the site, under way, delivered"),
        "outputs get": ("jobs.outputs", "copy delivered outputs and verify them"),
        "errors": ("jobs.errors", "failures grouped by class and cause"),
        "web": ("server.web", "print a URL of the server's pages for your browser"),
    },
    "applications": {
        "app list": ("software.applications", "the applications that sites offer"),
        "app show": ("software.applications", "one application with its parameters"),
        "app check": (
            "software.applications",
            "check an application file before you put it into SITE/apps, which approves it",
        ),
        "app approve": ("software.applications", "approve a program as it is now, after it has changed"),
    },
    "server": {
        "server run": ("server.service", "run the server"),
        "server init": ("server.service", "write a commented server.toml"),
        "server upgrade": ("server.service", "bring the database to this version"),
        "server notify": ("server.service", "send a test message to an addressee"),
        "owner list": ("server.owners", "what submitters have had of the fair share"),
        "owner shares": ("server.owners", "give a submitter a weight in the fair share"),
        "downtimes list": ("server.downtimes", "when sites are out of service, as the server knows it"),
        "audit": ("server.audit", "who ran what in an allocation or on a node; verify the log of changes"),
        "certs init": ("server.certs", "make a small CA for a collaboration that has none"),
        "certs issue": ("server.certs", "make a key pair for the server, a submitter, a site or an operator"),
        "certs show": ("server.certs", "what certificates say and when they end"),
        "certs revoke": ("server.certs", "take certificates back"),
    },
    "sites": {
        "site init": ("site.init", "inspect the machine and write a commented site.toml"),
        "site check": (
            "site.check",
            "check a site.toml, and whether the files, programs, endpoints and caches that it names are there",
        ),
        "site enable": ("site.check", "let a site that observes submit jobs, and set its bounds"),
        "site run": ("site.agent", "run a site's agent"),
        "site status": ("site.status", "what a site does"),
        "site drain": ("site.agent", "stop a site: nothing new starts, nodes are released"),
        "site resume": ("site.agent", "let a stopped site work again"),
        "site reset-epoch": (
            "site.epoch",
            "at the server: let a site's agent connect again after a stolen credential locked it out",
        ),
        "site deny": ("site.agent", "stop a submitter's jobs from running at a site"),
        "site allow": ("site.agent", "let a submitter's jobs run there again"),
        "site harm": (
            "site.harm",
            "how long other users' jobs waited because of Tidemill, with the evidence",
        ),
        "windows": ("site.windows", "idle nodes, and how long no other job needs them"),
    },
}


def _joined() -> tuple[Groups, dict[str, str]]:
    """The groups with the verbs of extensions, and which extension has each of those."""
    groups = {group: dict(verbs) for group, verbs in CORE.items()}
    taken = {verb for verbs in CORE.values() for verb in verbs}
    owners: dict[str, str] = {}
    for name, table in extensions.tables(extensions.VERBS):
        for group, verbs in table.items():
            for verb, each in verbs.items():
                first = verb.partition(" ")[0]
                is_known = verb in extensions.KNOWN.get(name, extensions.Brings()).verbs
                if verb in taken or (first != verb and first in taken and not is_known):
                    whose = f"the extension `{owners[verb]}`" if verb in owners else "Tidemill's own"
                    extensions.warn(name, f"its verb `{verb}` is left out: that name is {whose}")
                    continue
                groups.setdefault(group, {})[verb] = each
                owners[verb] = name
                taken.add(verb)
    return groups, owners


GROUPS, OWNERS = _joined()
VERBS: dict[str, tuple[str, str]] = {verb: each for group in GROUPS.values() for verb, each in group.items()}


def family_of(word: str) -> list[str]:
    """The verbs of two words that start with this one."""
    return [verb for verb in VERBS if verb.startswith(f"{word} ")]


def load(verb: str) -> Command:
    """The command of a verb; imports its file. Raises ConfigError for one of an extension that cannot be imported."""
    module = VERBS[verb][0]
    owner = OWNERS.get(verb)
    found = (
        extensions.import_module(owner, module)
        if owner
        else importlib.import_module(f"tidemill.cli.{module}")
    )
    commands: dict[str, Command] = found.COMMANDS
    return commands[verb]


def groups_of(extension: str) -> Groups:
    """The verbs of one extension, by group; those of the core for the empty name."""
    found = {
        group: {verb: each for verb, each in verbs.items() if OWNERS.get(verb, "") == extension}
        for group, verbs in GROUPS.items()
    }
    return {group: verbs for group, verbs in found.items() if verbs}


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
