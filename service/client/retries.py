"""Whether a call that failed is tried again, and when.

tenacity and httpx's retrying transports were looked at: `Retry-After`, a budget of time over all
tries and the same rule for blocking and awaiting callers would each be written here all the same,
and their loop is four lines of _async/transport.py.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import httpx2

from service.client.failures import ClientError, Overloaded, Unreachable

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
"""Seconds, where the service does not say how long."""
CONNECT_SECONDS = 5.0
LONGEST_TIMEOUT = 86_400.0
"""Seconds, a day: sockets and locks overflow at some point beyond."""
FAILURES = (ClientError, httpx2.RequestError)
"""What ends a try."""
PASSING = (httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError)
"""Failures of a connection that the next one may not have."""


@dataclass(frozen=True)
class Retries:
    """How often, and how long.

    Attributes:
        retries: tries after the first one, at most.
        timeout: seconds in all, tries and pauses; above 0, up to a day.

    Raises:
        ValueError: if one of them is not that.
    """

    retries: int
    timeout: float

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it should be 0 or more")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"timeout is {self.timeout}; it should be a number of seconds above 0, up to "
                f"{LONGEST_TIMEOUT:.0f}, a day"
            )


@dataclass
class Tries:
    """One call's.

    Attributes:
        bulky: a call that may take as long as it needs, while something comes or goes: `timeout` is
            then of silence, and of a single pause.
    """

    rule: Retries
    bulky: bool = False
    _failed: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def limits(self) -> httpx2.Timeout:
        """Of the next try."""
        left = max(self._left(), 0.001)
        return httpx2.Timeout(left, connect=min(left, CONNECT_SECONDS))

    def require_time(self) -> None:
        """
        Raises:
            httpx2.ReadTimeout: if an answer is still coming in when the time is over.
        """
        if self._left() <= 0:
            raise httpx2.ReadTimeout("the answer comes in too slowly")

    def pause(self, error: ClientError | httpx2.RequestError) -> float:
        """Seconds until the next try, after one that failed: between half and all of 0.25, 0.5,
        1 … 8; or what `Retry-After` says, if that is more, and up to a quarter more still, so that
        all who were sent away do not come back at once.

        Raises:
            ClientError: the error as ours, if there is no next try.
        """
        self._failed += 1
        raised = error if isinstance(error, ClientError) else self._unreachable(error)
        cause = raised.__cause__ if isinstance(raised, Unreachable) else None
        passing = isinstance(raised, Overloaded) or isinstance(cause, PASSING)
        asked = raised.retry_after if isinstance(raised, Overloaded) else None
        longest = min(FIRST_PAUSE * 2 ** (self._failed - 1), LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - nobody's secret
        if asked is not None:
            later = asked * random.uniform(1, 1.25)  # noqa: S311
            # A hint of 0 would use up all tries at once.
            pause = max(pause, asked if later >= self._left() else later)
        if not passing or self._failed > self.rule.retries or pause >= self._left():
            raise raised
        return pause

    def _left(self) -> float:
        spent = 0.0 if self.bulky else time.monotonic() - self._begun
        return self.rule.timeout - spent

    def _unreachable(self, error: httpx2.RequestError) -> Unreachable:
        try:
            where = f" from {error.request.method} {error.request.url.copy_with(query=None)}"
        except RuntimeError:  # it has no request
            where = ""
        times = f" after {self._failed} tries" if self._failed > 1 else ""
        said = " ".join(str(error).split()) or type(error).__name__
        raised = Unreachable(f"no answer{where}{times}: {said}")
        raised.__cause__ = error
        return raised
