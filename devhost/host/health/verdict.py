"""What the health checks so far say of a device; pure."""

from typing import Final

from devhost.immutable import immutable
from devhost.model.config import HealthChecks
from devhost.model.device import Checked

_UNCHECKED: Final = "not checked yet"


@immutable
class Verdict:
    """What the rounds so far say of a device.

    Attributes:
        healthy: ``None`` before the first round.
        trusted: It was on offer before there were checks, and stays until the first round.
        streak: Rounds in a row that contradict it.
        failure: Why a round failed the last time that one did.
        checked: The last round.
    """

    healthy: bool | None = None
    trusted: bool = False
    streak: int = 0
    failure: str | None = None
    checked: Checked | None = None

    def after(self, outcome: Checked, checks: HealthChecks) -> "Verdict":
        """Return the verdict with one more round: the first decides alone."""
        good = outcome.failure is None
        # What a command says may be new each time: the first of a streak is told.
        told = self.failure if self.healthy is False and not self.streak else None
        failure = told or outcome.failure or self.failure
        streak = 0 if good is self.healthy else self.streak + 1
        needed = checks.recoveries if good else checks.failures
        if self.healthy is None or streak >= needed:
            return Verdict(good, failure=failure, checked=outcome)
        return Verdict(self.healthy, streak=streak, failure=failure, checked=outcome)

    def reason(self, checks: HealthChecks) -> str | None:
        """Return why the device is unhealthy, or ``None``."""
        if self.healthy is None:
            return None if self.trusted else _UNCHECKED
        if self.healthy:
            return None
        if self.streak:
            return f"recovering: {self.streak} of {checks.recoveries} good rounds"
        return f"check failed: {self.failure}"

    def told(self, checks: HealthChecks) -> tuple[str | None, ...]:
        """Return what is worth telling when it changes."""
        if self.checked is None:
            return (self.reason(checks),)
        failure = None if self.healthy is False else self.checked.failure
        return (self.reason(checks), failure, self.checked.unknown)
