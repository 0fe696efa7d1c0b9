"""The rules for retrying a failed call: whether to try again, and when.

tenacity and httpx's retrying transports were considered. With them, `Retry-After`, a time limit
over all tries and one rule for both clients would still have to be written here, and they would
replace only the four lines of the loop in _async/transport.py.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import httpx2

from service.client.failures import ClientError, Overloaded, Unreachable

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
"""Bounds of the pause between tries in seconds, if the service does not send `Retry-After`."""
CONNECT_SECONDS = 5.0
LONGEST_TIMEOUT = 86_400.0
"""Largest timeout in seconds (a day), because sockets and locks overflow at much larger values."""
FAILURES = (ClientError, httpx2.RequestError)
"""Errors that end a try."""
PASSING = (httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError)
"""Errors of a connection that may not recur with the next connection."""


@dataclass(frozen=True)
class Retries:
    """The limits of retries.

    Attributes:
        retries: largest number of tries after the first one; 0 or more.
        timeout: seconds for all tries and pauses together; above 0, up to a day.

    Raises:
        ValueError: if a value is out of range.
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
    """The tries of one call.

    Attributes:
        bulky: whether the call may take any time as long as data is transferred. `timeout` then
            limits the time without data, and a single pause.
    """

    rule: Retries
    bulky: bool = False
    _failed: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def limits(self) -> httpx2.Timeout:
        """Return the timeouts of the next try."""
        left = max(self._left(), 0.001)
        return httpx2.Timeout(left, connect=min(left, CONNECT_SECONDS))

    def require_time(self) -> None:
        """Check that there is time left, while an answer is being received.

        Raises:
            httpx2.ReadTimeout: if the time is over.
        """
        if self._left() <= 0:
            raise httpx2.ReadTimeout("the answer comes in too slowly")

    def pause(self, error: ClientError | httpx2.RequestError) -> float:
        """Return the seconds until the next try, after one that failed. The pause is a random value
        between half and all of 0.25, 0.5, 1 … 8 s. If `Retry-After` is longer, the pause is that
        time or up to a quarter more, so that rejected clients do not all return at once.

        Raises:
            ClientError: the error, converted if necessary, if there is no next try.
        """
        self._failed += 1
        raised = error if isinstance(error, ClientError) else self._unreachable(error)
        cause = raised.__cause__ if isinstance(raised, Unreachable) else None
        passing = isinstance(raised, Overloaded) or isinstance(cause, PASSING)
        asked = raised.retry_after if isinstance(raised, Overloaded) else None
        longest = min(FIRST_PAUSE * 2 ** (self._failed - 1), LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - not used for cryptography
        if asked is not None:
            later = asked * random.uniform(1, 1.25)  # noqa: S311
            # The own pause is the minimum: a `Retry-After` of 0 would use up all tries at once.
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
        except RuntimeError:  # the error has no request
            where = ""
        times = f" after {self._failed} tries" if self._failed > 1 else ""
        said = " ".join(str(error).split()) or type(error).__name__
        raised = Unreachable(f"no answer{where}{times}: {said}")
        raised.__cause__ = error
        return raised
