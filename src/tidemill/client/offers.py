"""Whether any site would take a job, asked before it is submitted; a wrong name is answered with the nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidemill.errors import ConfigError, JobError, did_you_mean
from tidemill.model.handed import inputs_fault
from tidemill.model.job import JobSpec
from tidemill.model.parameter import check_value, legal_text
from tidemill.model.width import check_allowed
from tidemill.wire.api import AppOffer, SiteApplication, SiteRow


def check_offered(
    spec: JobSpec,
    offers: Sequence[SiteApplication],
    *,
    where: str = "",
    sites: Callable[[], Iterable[SiteRow]] = tuple,
) -> None:
    """Refuse a job whose application no site offers with such parameters.

    `where` starts the message, such as `jobs.toml: job[3]: `; `sites`: asked where no site offers it, for the reason of
    one that refuses it. Raises ConfigError.
    """
    if spec.app is None:
        return
    here = [each.app for each in offers if spec.site is None or each.site == spec.site]
    fitting = [each for each in here if each.name == spec.app]
    if not fitting:
        refused = _refused(spec, sites())
        who = "no site offers" if spec.site is None else f"site `{spec.site}` does not offer"
        raise ConfigError(
            f"{where}{who} the application `{spec.app}`" + (f": {refused}" if refused else ""),
            hint=None if refused else _offered(spec, {each.name for each in here}),
        )
    refusals = [_refusal(spec, each, where) for each in fitting]
    if None not in refusals:
        raise next(each for each in refusals if each is not None)


def _refused(spec: JobSpec, sites: Iterable[SiteRow]) -> str:
    """Which sites refuse the application, and why; empty = none does."""
    whys = {
        row.name: each.why
        for row in sites
        if spec.site in (None, row.name)
        for each in row.refused
        if spec.app in (each.name, None if each.name else each.file.removesuffix(".toml"))
    }
    return "; ".join(f"site `{site}` refuses it: {why}" for site, why in whys.items())


def _offered(spec: JobSpec, names: set[str]) -> str:
    """A hint for an application that is not offered."""
    if names or spec.app is None:
        return did_you_mean(spec.app or "", names)
    return "your sites offer no application" if spec.site is None else f"site `{spec.site}` offers none"


def _refusal(spec: JobSpec, app: AppOffer, where: str) -> ConfigError | None:
    for name, value in spec.params.items():
        parameter = app.parameters.get(name)
        if parameter is None:
            return ConfigError(
                f"{where}application `{app.name}` has no parameter `{name}`",
                hint=did_you_mean(name, app.parameters),
            )
        try:
            check_value(name, parameter, value)
        except JobError as error:
            return ConfigError(where + error.message, hint=error.hint or legal_text(name, parameter))
    missing = [n for n, each in app.parameters.items() if each.default is None and n not in spec.params]
    if missing:
        return ConfigError(
            f"{where}application `{app.name}` needs parameter `{missing[0]}`",
            hint=legal_text(missing[0], app.parameters[missing[0]]),
        )
    fault = inputs_fault(app.name, app.inputs, (each.name for each in spec.inputs))
    if fault is not None:
        return ConfigError(where + fault.text, hint=fault.hint)
    width = spec.resources.width
    why = width and check_allowed(width, app=app.name, nodes_max=app.nodes_max, ranks_max=app.ranks_max)
    return ConfigError(where + why, hint="`tidemill app show` lists what it may ask for") if why else None
