"""What the API and the pages read of the hospital: wards with the outcomes of all stays, from running sums."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config.hospital import Ward
from tidemill.server import constants
from tidemill.server.database.store import Session
from tidemill.server.hospital import admission, ward_stays
from tidemill.wire.hospital import WardRow


def ward_rows(session: Session, rules: Sequence[Ward]) -> list[WardRow]:
    """Every ward of server.toml in its order, then those that it names no more and in which jobs were."""
    numbers: dict[str, int] = {name: number for number, name in session.rows("wards")}
    sums = ward_stays.sums(dict(session.rows("totals")))
    shown = [_row(each.name, each, sums.get(numbers.get(each.name, 0))) for each in rules]
    named = {each.name for each in rules}
    gone = [(name, sums[number]) for name, number in numbers.items() if name not in named and number in sums]
    return shown + [_row(name, None, found) for name, found in gone]


def _row(name: str, rule: Ward | None, sums: list[int] | None) -> WardRow:
    there, cured, failed, canceled, home = sums or [0] * len(ward_stays.OUTCOMES)
    return WardRow(
        ward=name, sites=[] if rule is None else rule.sites, cure="" if rule is None else ward_stays.ward_text(rule),
        admits="" if rule is None else admission.admits_text(rule),
        moves_max=0 if rule is None else constants.MOVES_MAX,
        there=there, cured=cured, failed=failed, canceled=canceled, home=home,
        share=ward_stays.share(cured, failed, canceled), is_open=rule is not None,
    )  # fmt: skip
