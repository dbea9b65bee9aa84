"""The table of rights: whatever is asked, nothing outside it is allowed."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.identity import LOCAL, RIGHTS, SCOPES, Act, Identity, Reach, Role, Via, may, own_name

NAMES = st.sampled_from(["ada", "bob", "lrz", ""])
IDENTITIES = st.builds(
    Identity,
    role=st.sampled_from(Role),
    name=st.sampled_from(["ada", "lrz"]),
    via=st.sampled_from([Via.CERTIFICATE, Via.TOKEN]),
    scopes=st.frozensets(st.sampled_from([*SCOPES.values(), "storage.read:/"])),
)


def test_the_table_has_every_cell() -> None:
    assert set(RIGHTS) == set(Act)
    assert all(set(row) == set(Role) for row in RIGHTS.values())


@given(IDENTITIES, st.sampled_from(Act), NAMES | st.none(), NAMES | st.none())
def test_what_is_allowed_stands_in_the_table_and_within_the_scopes(
    identity: Identity, act: Act, owner: str | None, site: str | None
) -> None:
    if not may(identity, act, owner=owner, site=site).allowed:
        return
    cell = RIGHTS[act][identity.role]
    assert cell is not Reach.NONE
    if identity.via is Via.TOKEN and act in SCOPES:
        assert SCOPES[act] in identity.scopes
    thing = site if identity.role is Role.SITE else owner
    assert cell is Reach.ALL or thing in (None, identity.name)
    assert own_name(identity, act) == (identity.name if cell is Reach.OWN else None)


@given(IDENTITIES, st.sampled_from(Act), NAMES)
def test_a_refusal_says_why_and_names_nobody_else(identity: Identity, act: Act, owner: str) -> None:
    decision = may(identity, act, owner=owner, site=owner)
    assert decision.reason
    if owner not in ("", identity.name):
        assert f"`{owner}`" not in decision.reason


def test_the_servers_own_user_is_everybody() -> None:
    for act in Act:
        assert may(LOCAL, act, owner="ada", site="lrz").allowed
        assert own_name(LOCAL, act) is None
