"""`tidemill VERB ...`: finds the verb's file, and maps what happens to an exit code. Imports nothing heavy.

0   done
1   the job failed (or was canceled)
2   usage or configuration
3   site, service or network: try again
70  a bug: the message names the file with the traceback

With `--json` an error is data, too: an object `error` on stdout. `run` of one event exits as its command did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemill import __version__, extensions
from tidemill.cli.suggestions import suggested
from tidemill.cli.terminal import (
    StdoutError,
    discard_stdout,
    discard_unwritten_stderr,
    flush,
    hint,
    prepare_streams,
    say,
    say_lines,
    show,
    show_json,
    show_lines,
    stdout_encoding,
)
from tidemill.cli.verbs import GROUPS, VERBS, family_of, load, parser_of
from tidemill.errors import ConfigError, TidemillError
from tidemill.octets import is_utf8, shown

__all__ = ["GROUPS", "VERBS", "find_verb", "load", "main", "overview", "parser_of"]

EXIT_DONE = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_SITE = 3
EXIT_BUG = 70

STDIO = "tidemill_stdio"
"""An `-X` option that Python ignores: it passes on the encoding in which this program prints."""

_NOWHERE = ConfigError("the current directory no longer exists", hint="`cd` to one that exists")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None = that of this process); its exit code."""
    if argv is not None:
        return _finished(list(argv))
    _begin()
    code = _finished(sys.argv[1:])
    discard_unwritten_stderr()  # otherwise Python fails to write it at exit, and exits with 120
    return code


def _finished(words: list[str]) -> int:
    """Run a command line and flush stdout; the exit code."""
    try:
        code = _ended(words)
        flush()
    except BrokenPipeError:
        # The reader of stdout has left (`| head`), which is not a failure. What Python flushes at exit goes nowhere.
        discard_stdout()
        return EXIT_DONE
    except StdoutError as error:  # JSON cannot be written, either
        _report_error(error.error, as_json=False)
        return error.error.exit_code
    return code


def _begin() -> None:
    """Make the streams usable, and all texts of this process UTF-8.

    In a locale with another encoding, such as ISO 8859-1, Python would decode words, file names and variables by it,
    and payloads would get other bytes than the user typed. So the program starts itself again in Python's UTF-8 mode,
    and prints in the encoding of the locale.
    """
    encoding = sys._xoptions.get(STDIO)
    prepare_streams(encoding if isinstance(encoding, str) else None)
    if sys.getfilesystemencoding().lower().replace("-", "") == "utf8":
        return
    words = [sys.executable, "-X", "utf8", "-X", f"{STDIO}={stdout_encoding()}", *sys.orig_argv[1:]]
    os.execv(sys.executable, words)


def _ended(words: list[str]) -> int:
    """Run a command line and report its error; its exit code."""
    try:
        return _run(words)
    except (BrokenPipeError, StdoutError):
        raise
    except TidemillError as error:
        _report_error(error, as_json=wants_json(words))
        return error.exit_code
    except UnicodeEncodeError as error:
        if is_utf8(error.object):
            return _bug(error, as_json=wants_json(words))
        _report_error(_not_utf8(error), as_json=wants_json(words))
        return EXIT_USAGE
    except KeyboardInterrupt:
        say("")
        say("interrupted")
        return EXIT_JOB_FAILED
    except SystemExit as exit_:  # argparse has printed its help
        return exit_.code if isinstance(exit_.code, int) else EXIT_DONE
    except Exception as error:  # noqa: BLE001 -- the top of the program: reported as a bug
        if isinstance(error, FileNotFoundError) and _is_nowhere():
            _report_error(_NOWHERE, as_json=wants_json(words))
            return EXIT_USAGE
        return _bug(error, as_json=wants_json(words))


def _not_utf8(error: UnicodeEncodeError) -> ConfigError:
    """The error for a text that a verb cannot pass on because it is not UTF-8."""
    part = error.object[max(0, error.start - 60) : error.start + 20]
    return ConfigError(f"`{shown(part)}` is not valid UTF-8", hint="rename it, or write it in UTF-8")


def _is_nowhere() -> bool:
    """Whether the current directory was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; what comes after `--`, or is a command's own, does not count."""
    own = words[: words.index("--")] if "--" in words else words
    if (
        own[:1] == ["run"] and "--" not in words
    ):  # `tidemill run --json ls --json`: the first word ends its options
        own = own[: next((k for k, word in enumerate(own[1:], 1) if not word.startswith("-")), len(own))]
    return "--json" in own


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        show_lines(overview())
        _say_faults()
        return EXIT_DONE if words else EXIT_USAGE
    if words[0] in ("--version", "-V"):
        _show_version(as_json="--json" in words, is_verbose="--verbose" in words)
        return EXIT_DONE
    if words[0] == "--json" and words[1:] == ["--version"]:
        _show_version(as_json=True)
        return EXIT_DONE
    if words[0] == "--complete":  # asked by the scripts of `tidemill completion`
        from tidemill.cli.start.completion import complete

        show_lines("\n".join(complete(words[1:])))
        return EXIT_DONE
    is_family = words[0] not in VERBS and bool(family_of(words[0]))
    if len(words) == 2 and words[1] in ("-h", "--help") and is_family:
        show_lines(_family_help(words[0]))
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
    missing = extensions.missing(extensions.VERBS, pair)
    if missing is not None:
        raise missing
    if words[0] in VERBS:
        return words[0], list(words[1:])
    family = family_of(words[0])
    missing = extensions.missing(extensions.VERBS, words[0])
    # another extension may have verbs that begin with this word, one of which may be meant
    if missing is not None and (not family or len(words) == 1 or words[1].startswith("-")):
        raise missing
    if family and len(words) == 1:
        raise ConfigError(f"`tidemill {words[0]}` needs one more word", hint=f"known: {_listed(family)}")
    if family:
        raise ConfigError(f"`tidemill` has no verb `{pair}`", hint=_in_family(pair, family))
    if words[0].startswith("-"):
        raise ConfigError(
            f"`{words[0]}` comes before the verb", hint="options follow the verb: `tidemill jobs --json`"
        )
    for verb in sorted(extensions.names(extensions.VERBS)):
        absent = extensions.missing(extensions.VERBS, verb) if verb.startswith(f"{words[0]} ") else None
        if absent is not None:  # the first word of its verbs, such as `tidemill stress --help`
            raise absent
    _say_faults()
    raise ConfigError(f"`tidemill` has no verb `{words[0]}`", hint=suggested(words[0], VERBS))


def _say_faults() -> None:
    """A line for each installed extension that is left out, or whose verb is."""
    for name, text in extensions.faults().items():
        say(f"warning: extension `{name}`: {text}")


def _in_family(pair: str, family: Sequence[str]) -> str:
    """A hint for a wrong second word."""
    hint = suggested(pair, family)
    return hint if "did you mean" in hint else f"known: {_listed(family)}"


def overview() -> str:
    """The text that `tidemill --help` prints."""
    lines = [
        "usage: tidemill VERB [OPTIONS]",
        "",
        "Runs many-task science on supercomputers that you do not own.",
    ]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {verb:<20} {about}" for verb, (_, about) in verbs.items()]
    absent = [name for name in extensions.KNOWN if name not in extensions.installed()]
    if absent:
        lines += ["", f"Not installed: {', '.join(absent)}. `pip install 'tidemill[all]'` adds them."]
    lines += [
        "",
        "Begin with `tidemill run -- hostname`: it starts what is needed, and prints what the command prints.",
        "`tidemill VERB --help` explains a verb; `tidemill man VERB` shows its page.",
    ]
    return "\n".join(lines)


def _family_help(word: str) -> str:
    """What `tidemill app --help` prints."""
    verbs = family_of(word)
    width = max(len(verb) for verb in verbs)
    return "\n".join(
        [
            f"usage: tidemill {word} VERB [OPTIONS]",
            "",
            *(f"  tidemill {verb:<{width}}  {VERBS[verb][1]}" for verb in verbs),
            "",
            f"`tidemill {verbs[0]} --help` explains that verb.",
        ]
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _show_version(*, as_json: bool, is_verbose: bool = False) -> None:
    """The version; with `is_verbose` those of extensions, too."""
    found, faults = extensions.installed(), extensions.faults()
    if not as_json:
        show(f"tidemill {__version__}")
        if is_verbose:
            for name, each in found.items():
                show(f"{name} {each.version}" + (f" (not used: {faults[name]})" if name in faults else ""))
        return
    import platform

    show_json(
        {
            "version": __version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "extensions": {name: each.version for name, each in found.items()},
        }
    )


def _report_error(error: TidemillError, *, as_json: bool) -> None:
    if as_json:
        _show_error(type(error).__name__, error.message, error.hint, error.exit_code)
        return
    first, *more = error.message.split("\n")
    say(f"error: {first}")
    for line in more:
        say(f"  | {line}")
    if error.hint:
        hint(error.hint)


def _show_error(kind: str, message: str, hint_: str | None, exit_code: int) -> None:
    show_json({"error": {"kind": kind, "message": message, "hint": hint_, "exit_code": exit_code}})


def _bug(error: Exception, *, as_json: bool) -> int:
    """Write the traceback to a file and name it: it helps developers, not the person who met it."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="tidemill-bug-", suffix=".txt", delete=False) as file:
            file.write(f"tidemill {__version__}, Python {sys.version}\n{text}")
        path: str | None = file.name
    except OSError:
        path = None
    whose, report = _whose_bug(error)
    message = f"this is a bug of {whose}: {type(error).__name__}: {error}"
    if as_json:
        _show_error("Bug", message, f"{report}; the traceback is in `{path}`", EXIT_BUG)
        return EXIT_BUG
    say(f"error: {message}")
    if path is None:
        hint(f"{report}; the traceback follows")
        say_lines(text)
    else:
        hint(f"{report}; the traceback is in `{path}`")
    return EXIT_BUG


def _whose_bug(error: Exception) -> tuple[str, str]:
    """Whose bug this is, by the modules that the exception came through, and the request to report it."""
    name, is_of_core = extensions.at_fault(error)
    if not name or (is_of_core and name in extensions.KNOWN):
        return "Tidemill", "please report it"
    if name in extensions.KNOWN:
        return f"Tidemill's extension `{name}`", "please report it"
    whose = f"the extension `{name}`" + (", or of Tidemill" if is_of_core else "")
    return whose, f"please report it to those who make `tidemill-{name}`"


if __name__ == "__main__":
    sys.exit(main())
