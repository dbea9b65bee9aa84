"""Configuration files: what is wrong is named with its key, and what would be legal."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from tidemill.client.home import ClientConfig
from tidemill.client.jobfile import load_job_file
from tidemill.config import describe, load, loads, parse_size, repeated
from tidemill.config.keys import Place, path_in, url_in
from tidemill.config.server import ServerConfig
from tidemill.config.site import Account, SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError
from tidemill.model.application import Application

SOURCE = Path("/etc/tidemill/site.toml")
BASE = 'name = "x"\nserver = "unix:/run/api.sock"\n'


def refusal(text: str, record: type = SiteConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text, record, source=SOURCE)
    assert str(SOURCE) in caught.value.message
    return caught.value


def test_unknown_key_names_the_nearest() -> None:
    error = refusal(BASE + 'waltime_s = "90m"')
    assert "`waltime_s`" in error.message
    assert error.hint == "did you mean `walltime_s`?"


def test_unknown_key_of_a_table_is_named_with_its_dotted_path() -> None:
    assert "`local.node`" in refusal(BASE + "[local]\nnode = 2").message
    app = 'name = "x"\nexecutable = "/bin/true"\n[parameters.energy]\nmux = 2'
    error = refusal(app, Application)
    assert "`parameters.energy.mux`" in error.message
    assert error.hint == "did you mean `max`?"


def test_an_unknown_key_that_is_like_no_other_names_the_page_or_a_short_list() -> None:
    page = "docs/configuration.md lists the keys of this file"
    assert refusal(BASE + 'spill = "/scratch"').hint == page  # not `stop_file`, whose letters are alike
    assert refusal(BASE + 'burst_buffer = "x"').hint == page
    assert refusal(BASE + "[limits]\nbytes = 3").hint == page  # the table has no settings
    assert refusal(BASE + '[containers.podman]\nimage = "x"').hint == "known: `command`, `options`"
    assert (refusal('name = "x"\nexecutable = "/bin/true"\nzzz = 2', Application).hint or "").startswith(
        "known: "
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("node_hours_max = 4", "`node_hours_max` is a key of `[harvest]`"),  # and not `nodes_max`
        ('[harvest]\ncommand = ["x"]', "`command` is a key of `[containers.NAME]`"),
        (
            "[transfer]\nwalltime_s = 7200",
            "`walltime_s` belongs to the top of the file: write it above the first `[table]`",
        ),
        ('[harvest.mail]\nto = "x"', "write `[mail]`"),
    ],
)
def test_a_key_or_table_in_the_wrong_place_is_sent_to_its_own(text: str, hint: str) -> None:
    assert refusal(BASE + text).hint == hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[endpoints]\nurl = "x"', "write `[[endpoints]]`"),
        ("[[harvest]]\nnodes_max = 3", "write `[harvest]` instead of `[[harvest]]`"),
        ('[containers.podman]\ncommand = "/usr/bin/podman"', 'write `command = ["/usr/bin/podman"]`'),
    ],
)
def test_a_table_or_text_in_place_of_a_list_is_answered_with_what_to_write(text: str, hint: str) -> None:
    assert refusal(BASE + text).hint == hint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[harvest]\nwidth = 2\n[harvest]\nwidth = 4", 5),
        ("[harvest]\nwidth = 2\nwidth = 4", 5),
        ('[[io]]\nname = "a"\n[[io]]\nname = "b"\nname = "c"', 7),
        ("[harvest]\nwidth = 3\n[harvest.width]\nx = 2", 5),
    ],
)
def test_a_key_or_table_that_a_file_has_twice_names_the_line_of_the_second(text: str, line: int) -> None:
    error = refusal(f"{BASE}{text}\n")
    assert "is not TOML" in error.message
    assert f"(at line {line}, " in error.message
    assert error.hint == "a line above has the same key or table: keep one of the two"


def test_a_value_that_is_none_of_those_offered_is_told_once() -> None:
    error = refusal(BASE + 'isolation = "zzz"')
    assert (error.hint, error.message.count("`auto`")) == (None, 1)
    assert refusal(BASE + 'isolation = "atuo"').hint == "did you mean `auto`?"
    ward = '[[wards]]\nname = "a"\nfailures = ["memory"]\n[wards.cure]\nread = "zzz"'
    assert refusal(ward, ServerConfig).message.endswith("expected one of empty, `cache`, `file`")


def test_the_table_whose_program_is_wrong_is_named() -> None:
    good, bad = '[containers.a]\ncommand = ["/bin/a"]\n', '[containers.podman]\ncommand = ["podman"]\n'
    message = refusal(BASE + good + bad).message
    assert "`containers.podman`: `command` is `podman`, expected a program's absolute path" in message


def test_wrong_type_names_key_found_and_expected() -> None:
    error = refusal(BASE + 'nodes_max = "many"')
    assert '`nodes_max` is the text "many", expected integer' in error.message
    assert "expected true or false" in refusal(BASE + "shared = 1").message


def test_value_out_of_limits_names_the_limit() -> None:
    assert refusal(BASE + "nodes_max = 0").message.endswith(
        "`nodes_max` is `0`, expected integer, at least 1, at most 100,000"
    )
    assert "expected a duration (seconds, or a text such as `90m` or `HH:MM:SS`), at least 10" in (
        refusal(BASE + "walltime_s = 3").message
    )
    assert refusal("names = []", Placed).message.endswith(
        "is a list, expected list of text, of length 1 or more"
    )


def test_everything_that_is_wrong_in_a_file_is_told_at_once() -> None:
    text = BASE + (
        'waltime_s = "90m"\nspill_dir = "/scratch"\nnodes_max = "many"\n[harvest]\npolicy = "yeild"\n'
        '[[accounts]]\nname = "a"\n[[caches]]\nnam = "c"\n'
    )
    error = refusal(text)
    keys = {each.key: each for each in describe(Account)}
    node_hours = keys["node_hours"].doc
    assert error.message.split("\n") == [
        f"{SOURCE}: 6 errors",
        "unknown key `waltime_s` (did you mean `walltime_s`?)",
        "unknown key `spill_dir` (docs/configuration.md lists the keys of this file)",
        '`nodes_max` is the text "many", expected integer, at least 1, at most 100,000',
        '`harvest.policy` is the text "yeild", expected one of `capped`, `demand`, `preempt`, `windows`, `yield` '
        "(did you mean `yield`?)",
        f"key `accounts[0].node_hours` is missing (number: {node_hours})",
        "unknown key `caches[0].nam` (did you mean `name`?)",
    ]
    assert error.hint is None
    limit = refusal(BASE + "nodes_max = 0\nwaltime_s = 3")
    assert limit.message.split("\n")[1:] == [
        "unknown key `waltime_s` (did you mean `walltime_s`?)",
        "`nodes_max` is `0`, expected integer, at least 1, at most 100,000",
    ]
    many = refusal(BASE + "".join(f"xxx{k} = 1\n" for k in range(30)))
    assert (many.message.count("\n"), many.message.endswith("\nand 10 more")) == (21, True)


def test_each_wrong_key_of_a_job_is_told_with_the_number_of_its_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('campaign = "c"\n[[job]]\napp = "a"\n[[job]]\napp = 3\nevents = "many"\n')
    with pytest.raises(ConfigError) as caught:
        load_job_file(path)
    assert caught.value.message.split("\n") == [
        f"{path}: 2 errors",
        "`job[1].app` is `3`, expected text",
        '`job[1].events` is the text "many", expected integer',
    ]


def test_a_wrong_name_is_refused_in_words_and_not_by_a_regular_expression() -> None:
    names = (
        (
            'name = "a b"\nserver = "x"',
            '`name` is the text "a b", expected a name of at most 31 characters: letters, digits and `_.-`',
        ),
        (
            BASE + '[[caches]]\nname = "-"\nurl = "root://h:1"',
            '`caches[0].name` is the text "-", expected a name of at most 61',
        ),
        (BASE + '[[io]]\nname = "."\nprefixes = ["/a"]', "expected a name of at most 31 characters"),
    )
    for text, why in names:
        message = refusal(text).message
        assert why in message
        assert "regex" not in message


def test_the_element_of_a_list_that_is_wrong_is_named() -> None:
    assert "`data_roots[1]` is `3`, expected path" in refusal(BASE + 'data_roots = ["/a", 3]').message
    rule = '[[notify.rules]]\nto = "mail:a@example.org"\nwhen = ["done", "failed"]'
    assert "`notify.rules[0].when[0]` is " in refusal(rule, ServerConfig).message
    members = "[roles.members]\n'/CN=a' = 'operator a'\n'/CN=b' = 4"
    assert "`roles.members./CN=b` is `4`, expected text" in refusal(members, ServerConfig).message
    assert "`accounts[0]` is `3`, expected a table" in refusal(BASE + "accounts = [3]").message
    assert "`containers.podman` is `1`, expected a table" in refusal(BASE + "containers.podman = 1").message


def test_a_path_is_refused_that_no_file_can_have() -> None:
    assert "`output_dir`: a path cannot hold a NUL" in refusal(BASE + 'output_dir = "a\\u0000b"').message
    assert "`output_dir`: " in refusal(BASE + 'output_dir = "~no-such-user-here/x"').message


def test_what_is_wrong_in_a_table_is_told_beside_what_is_wrong_elsewhere() -> None:
    message = refusal(BASE + 'nodes_max = 0\n[containers.podman]\ncommand = ["podman"]\n').message
    assert message.startswith(f"{SOURCE}: 2 errors\n`nodes_max` is `0`, ")
    assert "`containers.podman`: `command` is `podman`" in message


def test_missing_key_tells_what_it_is_for() -> None:
    error = refusal('name = "x"')
    assert "`server` is missing" in error.message
    assert "address" in (error.hint or "")


def test_durations_and_sizes_are_read_from_texts_and_numbers() -> None:
    text = BASE + 'walltime_s = "1-00:00:30"\noutput_bytes_max = "2GB"'
    config = loads(text, SiteConfig, source=SOURCE)
    assert (config.walltime_s, config.output_bytes_max) == (86430.0, 2_000_000_000)
    assert loads(BASE + "walltime_s = 90.5", SiteConfig, source=SOURCE).walltime_s == 90.5
    assert parse_size("64KiB") == 65536
    assert "is not a size" in refusal(BASE + 'output_bytes_max = "2 elephants"').message
    assert "is not a duration" in refusal(BASE + 'walltime_s = "soon"').message


def test_paths_are_relative_to_the_file() -> None:
    config = loads(BASE + 'data_roots = ["data", "/abs"]', SiteConfig, source=SOURCE)
    assert config.data_roots == [Path("/etc/tidemill/data"), Path("/abs")]


class Placed(msgspec.Struct, frozen=True):
    """A file with keys of kinds that only extensions have."""

    where: Place = ""
    names: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["a"])


def test_a_key_takes_a_path_or_a_url_and_only_the_path_is_made_absolute() -> None:
    def read(value: str) -> str:
        return loads(f'where = "{value}"', Placed, source=SOURCE).where

    assert read("https://cric.example.org/x?a=1") == "https://cric.example.org/x?a=1"
    assert (url_in(read("https://a.org")), path_in(read("https://a.org"))) == ("https://a.org", None)
    assert path_in(read("down.toml")) == Path("/etc/tidemill/down.toml")
    assert path_in(read("/abs/times: all.ics")) == Path("/abs/times: all.ics")
    assert read("https:/slip.org") == "https:/slip.org", "a slip, which is refused as a URL, and no file"
    assert (read(""), path_in("")) == ("", None)


def test_a_token_file_is_a_path_or_discover() -> None:
    def endpoint(token: str) -> Endpoint:
        text = f'{BASE}[[endpoints]]\nurl = "https://a.example.org/"\ntoken_file = "{token}"'
        return loads(text, SiteConfig, source=SOURCE).endpoints[0]

    assert (endpoint("discover").finds_token, endpoint("discover").token_path) == (True, None)
    assert endpoint("./discover").token_path == Path("/etc/tidemill/discover")
    assert not endpoint("dav.token").finds_token
    types = {each.key: each.type for each in describe(SiteConfig, inside=True)}
    assert types["endpoints[].token_file"] == "path or `discover`"


def test_what_an_endpoint_is_for_is_one_choice() -> None:
    ways = {
        access: (
            Endpoint(url="s3://b/", access=access).is_read,
            Endpoint(url="s3://b/", access=access).is_written,
        )
        for access in ("read", "write", "both")
    }
    assert ways == {"read": (True, False), "write": (False, True), "both": (True, True)}
    assert not Endpoint(url="s3://b/").is_written


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "absent.toml", SiteConfig)
    assert "is not TOML" in refusal("name =").message


def test_every_key_is_documented() -> None:
    for record in (SiteConfig,):
        keys = describe(record, inside=True)
        assert len(keys) > 30
        assert [key.key for key in keys if not key.doc] == []
        assert {key.unit for key in keys if key.key.endswith("_s") and "_per_" not in key.key} == {"s"}


def test_keys_of_tables_in_lists_are_described_with_their_units() -> None:
    units = {key.key: key.unit for key in describe(SiteConfig, inside=True)}
    assert units["io[].bytes_per_s"] == "bytes/s"
    assert units["io[].ops_per_s"] == "1/s"
    assert {"accounts[].node_hours", "containers.NAME.command"} <= set(units)
    assert not any("[]" in key.key or "NAME" in key.key for key in describe(SiteConfig))


def test_tables_that_a_file_may_have_several_of_are_described_but_are_no_keys() -> None:
    tables = {key.key: key for key in [*repeated(SiteConfig), *repeated(ServerConfig)]}
    assert {"accounts", "containers", "notify.hooks"} <= set(tables)
    assert all(key.doc for key in tables.values())
    keys = {key.key for record in (SiteConfig, ServerConfig) for key in describe(record, inside=True)}
    assert keys.isdisjoint(tables)


def test_credentials_are_recognised_by_the_last_part_of_their_key() -> None:
    keys = {key.key: key.is_credential for key in describe(ServerConfig, inside=True)}
    assert keys["secret_file"]
    assert keys["tls.ca"]
    assert keys["notify.hooks[].secret_file"]
    assert not keys["tls.other_ca"]
    assert not keys["listen"]


@pytest.mark.parametrize("url", ["dtn01:1094", "root:/dtn01:1094", "xrd://h:1", "root://me:geheim@h:1094"])
def test_a_caches_url_is_refused_in_words_with_an_example(url: str) -> None:
    text = f'{BASE}[[caches]]\nname = "c"\nurl = "{url}"'
    message = refusal(text).message
    assert "cache `c`: `url` is `" in message
    assert "such as `root://dtn01:21094`" in message
    assert "regex" not in message
    assert "geheim" not in message


@pytest.mark.parametrize("record", [SiteConfig, ClientConfig])
@pytest.mark.parametrize(
    "server",
    [
        '"AMQPS://me:geheim@h:1/v"',
        '"amqps://lrz:geheim@b.example.org/tidemill"',
        '"https://me:geheim@h:1"',
        '["https://a:1", "https://me:geheim@h:1"]',
        '"amqp+tls://me:geheim@h/v"',
        '"me:geheim@h"',
        '"https://me:ge/he?im@h"',
        '"https://a@b:geheim@h"',
        '"amqps://a@b:geheim@h/v"',
        '"amqps://a@b:ge/he?im@h/v"',
    ],
)
def test_a_password_in_an_address_is_refused_whatever_its_scheme(record: type, server: str) -> None:
    with pytest.raises(ConfigError, match="holds a password") as caught:
        loads(f'name = "x"\nserver = {server}', record, source=SOURCE)
    said = f"{caught.value} {caught.value.hint}"
    assert not any(each in said for each in ("geheim", "he?im", "me:ge"))


@pytest.mark.parametrize("server", ["unix:/srv/a:b@c/api.sock", "https://h:8443", "amqps://me@h:5671/v@w"])
def test_an_address_without_a_password_is_taken(server: str) -> None:
    assert loads(f'server = "{server}"', ClientConfig, source=SOURCE).server == server


def test_what_follows_a_question_mark_in_a_url_is_not_repeated() -> None:
    message = refusal(f'{BASE}[[caches]]\nname = "c"\nurl = "root://h:1?k=geheim"').message
    assert "geheim" not in message
    assert "?..." in message


def test_a_hooks_url_that_holds_a_password_is_refused_without_repeating_it() -> None:
    text = '[[notify.hooks]]\nname = "chat"\nurl = "https://me:geheim@h.example.org/path"\nsecret_file = "s"'
    with pytest.raises(ConfigError, match="without user and password") as caught:
        loads(text, ServerConfig, source=SOURCE)
    assert "geheim" not in str(caught.value)
    assert "https://h.example.org" in str(caught.value)
