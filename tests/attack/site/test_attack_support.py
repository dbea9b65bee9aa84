"""Secrets in everything that `tidemill support` collects: none leaves with a bundle, and a bundle stays readable.

`planted_secrets.toml` holds texts of 44 kinds of systems. It was written before the filter, and not from it.
"""

from __future__ import annotations

import json
import random
import re
import string
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidemill.confidential import CUT, cut, cut_assignments, cut_lines

HERE = Path(__file__).parent
HARMLESS = (HERE / "harmless_texts.txt").read_text().splitlines()
LETTERS = string.ascii_letters + string.digits
SHAPES = {
    "hex": "0123456789abcdef", "b64": LETTERS + "+/", "b64url": LETTERS + "-_", "alnum": LETTERS,
    "digits": string.digits, "upper": string.ascii_uppercase + string.digits, "mixed": LETTERS + "!%+_.~*",
    "word": string.ascii_lowercase,
}  # fmt: skip
SHAPE = re.compile(rf"\{{({'|'.join(SHAPES)}|uuid):(\d+)\}}")
WRITE_LOG = """
import json, pathlib, sys
from tidemill import log
log.to_file(pathlib.Path(sys.argv[1])) if sys.argv[1] != "-" else log.to_stderr("INFO", "text")
for text in json.load(sys.stdin):
    log.Log("agent").warning("batch.away", reason=text, job=7)
"""


class Planted(NamedTuple):
    kind: str
    text: str
    secrets: tuple[str, ...]

    def is_in(self, content: str) -> bool:
        """Whether a secret, or a piece of one that would help, is there."""
        return any(piece in content for each in self.secrets for piece in {each, each[:16], each[-16:]})


def planted() -> list[Planted]:
    draw = random.Random(29)
    found: list[Planted] = []
    kinds: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "planted_secrets.toml").read_text())
    for kind, of in kinds.items():
        for template in of["texts"]:
            secrets: list[str] = []

            def made(shape: re.Match[str], secrets: list[str] = secrets) -> str:
                if shape[1] == "uuid":
                    secret = "-".join("".join(draw.choices(SHAPES["hex"], k=k)) for k in (8, 4, 4, 4, 12))
                else:
                    secret = "".join(draw.choices(SHAPES[shape[1]], k=int(shape[2])))
                if shape[1] == "mixed":  # as rules for passwords want them
                    secret = f"aB{secret[2:-2]}7x"
                secrets.append(secret)
                return secret

            text = SHAPE.sub(made, template)
            found.append(Planted(kind, text, tuple(secrets)))
    return found


PLANTED = planted()


class World(NamedTuple):
    members: dict[str, str]
    said: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A bundle of a home whose every file holds every text."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    texts = [each.text for each in PLANTED] + HARMLESS
    lines = "\n".join(texts) + "\n"
    (home / "server").mkdir()
    comments = "".join(f"# {row}\n" for row in lines.splitlines())
    (home / "server" / "server.toml").write_text(comments)
    (home / "up.log").write_text(lines)
    (home / "server.log").write_text(repr(texts) + "\n" + "\n".join(map(repr, texts)) + "\n")
    (home / "slurm-4711.out").write_text(lines)
    write = [sys.executable, "-c", WRITE_LOG]
    subprocess.run([*write, str(home / "site.log")], input=json.dumps(texts), text=True, check=True)
    done = subprocess.run([*write, "-"], input=json.dumps(texts), text=True, check=True, capture_output=True)
    (home / "text.log").write_text(done.stderr)
    fill_site(home / "site", texts, comments)

    target = home / "bundle.tar.gz"
    ran = subprocess.run(
        [
            sys.executable, "-m", "tidemill.cli.main", "support", "--home", str(home), "-o", str(target),
            "--log", str(home / "slurm-4711.out"), "--log", str(home / "text.log"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    with tarfile.open(target) as bundle:
        files = {member.name.partition("/")[2]: bundle.extractfile(member) for member in bundle}
        members = {name: file.read().decode() for name, file in files.items() if file is not None}
    return World(members, ran.stdout + ran.stderr)


def fill_site(site: Path, texts: list[str], comments: str) -> None:
    """The files of a site that a bundle has, with the texts."""
    for folder in (site / "apps", site / "harvest"):
        folder.mkdir(parents=True)
    (site / "site.toml").write_text(f'name = "here"\n{comments}reasons = {json.dumps(texts)}\n')
    head = 'name = "a"\nexecutable = "/bin/true"\n'
    variables = "".join(f"V{number} = {json.dumps(text)}\n" for number, text in enumerate(texts))
    inline = ", ".join(f"V{number} = {json.dumps(text)}" for number, text in enumerate(texts))
    setup = json.dumps([f"export V='{text}'" if "'" not in text else text for text in texts], indent=1)
    (site / "apps" / "table.toml").write_text(f"{head}setup = {setup}\n[environment]\n{variables}")
    (site / "apps" / "inline.toml").write_text(
        f"{head}environment = {{ {inline} }}\narguments = {json.dumps(texts)}\n"
    )
    (site / "apps" / "broken.toml").write_text(f"{head}environment = {{\n{variables}\n")
    (site / "DRAINED").write_text("\n".join(texts))
    (site / "resumed.log").write_text("\n".join(texts))
    (site / "quarantine.json").write_text(json.dumps({"reasons": texts}, indent=1))
    (site / "metrics.prom").write_text("".join(f"up{{why={json.dumps(text)}}} 1\n" for text in texts))
    (site / "harvest" / "1.jsonl").write_text("".join(json.dumps({"why": text}) + "\n" for text in texts))


def test_there_are_a_hundred_secrets_of_forty_kinds() -> None:
    assert len(PLANTED) >= 100
    assert len({each.kind for each in PLANTED}) >= 40
    assert all(each.secrets for each in PLANTED)
    assert len(HARMLESS) == 100


def test_no_planted_secret_is_in_any_member_of_a_bundle(world: World) -> None:
    left = [
        f"{name}: {each.kind}: {each.text}"
        for name, content in world.members.items()
        for each in PLANTED
        if each.is_in(content)
    ]

    assert not left, "\n".join(left)
    assert not [each for each in PLANTED if each.is_in(world.said)]


def test_every_file_of_the_home_is_in_the_bundle(world: World) -> None:
    assert {
        "server/server.toml", "logs/up.log", "logs/server.log", "logs/site.log", "logs/slurm-4711.out", "logs/text.log",
        "site/site.toml", "site/apps/table.toml", "site/apps/inline.toml", "site/apps/broken.toml", "site/DRAINED",
        "site/resumed.log", "site/quarantine.json", "site/metrics.prom", "site/plans/1.jsonl",
    } <= set(world.members), world.said  # fmt: skip
    assert all(CUT in world.members[name] for name in world.members if name.startswith("site/apps/"))


def test_what_an_operator_needs_stays(world: World) -> None:
    for name in ("logs/up.log", "logs/slurm-4711.out"):
        rows = set(world.members[name].splitlines())
        assert [text for text in HARMLESS if text not in rows] == []
    logged = [json.loads(row) for row in world.members["logs/site.log"].splitlines()]  # JSON stays JSON
    reasons = {row["reason"] for row in logged}
    assert [text for text in HARMLESS if text not in reasons] == []
    assert all((row["event"], row["job"]) == ("batch.away", 7) for row in logged)
    for name in ("site/quarantine.json", "site/plans/1.jsonl"):
        for row in [world.members[name]] if name.endswith("json") else world.members[name].splitlines():
            json.loads(row)


def test_an_application_file_keeps_its_keys_and_is_read_as_before(world: World) -> None:
    table: dict[str, Any] = tomllib.loads(world.members["site/apps/table.toml"])
    inline: dict[str, Any] = tomllib.loads(world.members["site/apps/inline.toml"])

    assert set(table["environment"]) == {f"V{number}" for number in range(len(PLANTED) + len(HARMLESS))}
    assert set(table["environment"].values()) == set(inline["environment"].values()) == {CUT}
    assert (table["name"], table["executable"]) == ("a", "/bin/true")
    assert f"export V={CUT}" in table["setup"]
    assert world.members["site/apps/broken.toml"].startswith("name =")


@pytest.mark.parametrize("each", HARMLESS)
def test_a_harmless_text_stays(each: str) -> None:
    assert cut(each) == each


PUMPED = [
    'pass="', "pass=\"a pass='a ", "pass", "-pass", "a://", "a://a:", "-----BEGIN PRIVATE KEY-----", "?a=",
    "echo a", "echo a|", "login ", "login -", "mysql x x x x", "a:123:b:c:", "/hook/", "bearer ",
    "eyJ", "hf_aaaaaaa",
    "pass: |\n", "cookie: ", 'token=\\"', "x-a: ", "pass=a,", "a,", ")", "\\u0026", "-u a:", "a&", "passZ",
    "--pass,", 'a="', "//user:", "<<< '", ".", "\\", "a='", "setenv a ", "\u0130pass", 'pass=["', 'pass="""', "b'",
    'Authorization: a="b',
    '-u a:"', "-u 'a:", 'mysql -p"', "mysql -p", "sqlplus a/", "jdbc:oracle:thin:a/", '{"a":', "[",
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("piece", [*PUMPED, "".join(PUMPED)])
def test_no_text_takes_long(piece: str) -> None:
    """Half a second here; quadratic work would take an hour."""
    half = piece * (100_000 // len(piece))
    text = f"{half}password={half}"
    cut_lines(text)  # which cuts what is no JSON with `cut`
    cut_assignments(text)


@pytest.mark.timeout(120)
def test_no_text_of_a_megabyte_takes_long() -> None:
    text = "".join(piece * (1_000_000 // len(PUMPED) // len(piece)) for piece in PUMPED)
    cut_lines(text)  # which cuts what is no JSON with `cut`
    cut_assignments(text)
