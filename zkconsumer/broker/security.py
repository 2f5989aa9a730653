"""Encryption of connections to brokers, and which brokers accept this client.

Owns the TLS context; ``sasl`` logs in. One object is used for all connections of a member or a
tool, on any thread. Before any broker has accepted this client, a refusal is treated as a mistake
in the configuration, and nothing is tried again. Later it is treated as a fault of that broker,
which is asked again after a pause.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from zkconsumer.broker.types import OpenConnection
from zkconsumer.config.security_keys import NO_SECURITY, SecurityKeys
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import AuthenticationError, BrokerUnavailableError

if TYPE_CHECKING:
    from zkconsumer.broker.sasl import SaslLogin

_TOKEN_SECONDS: Final = 1.0
"""Seconds after which a refused token is read again, because it may just be being renewed."""
_PAUSES: Final = (1.0, 60.0)
"""First and longest pause in seconds until a broker that refused this client is asked again."""

logger = logging.getLogger("zkconsumer.broker")


@dataclass(slots=True)
class _Fault:
    """Why a broker does not accept this client, and until when it is not asked again."""

    text: str
    pause: float
    until: float


class KafkaSecurity:
    """The security of all connections to the brokers of one cluster.

    Args:
        keys: checked configuration; without it, PLAINTEXT.

    Raises ConfigError if certificates or keys are unreadable.
    """

    def __init__(self, keys: SecurityKeys | None = None) -> None:
        self._keys = keys = NO_SECURITY if keys is None else keys
        self.protocol = keys.security_protocol
        self.listener = keys.listener
        self.sasl = keys.uses_sasl
        self.may_be_old = keys.sasl_mechanism == "GSSAPI" if self.sasl else not keys.uses_tls
        """Whether a broker that closes the connection may be too old for the first request."""
        self.context: ssl.SSLContext | None = None
        self.login: SaslLogin | None = None
        if keys.uses_tls:
            from zkconsumer.tls import for_brokers

            self.context = for_brokers(keys)
        if keys.uses_sasl:
            from zkconsumer.broker.sasl import SaslLogin

            self.login = SaslLogin(keys)
        self._refused: AuthenticationError | None = None
        """The reason why no more connections are opened, if any."""
        self._accepted = False
        """Whether any broker has accepted this client."""
        self._faults: dict[tuple[str, int], _Fault] = {}
        """By address, the brokers that have refused this client since another one accepted it."""
        self.silent_until: dict[tuple[str, int], float] = {}
        """By address, until when a broker that is too old is not asked for its versions."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"KafkaSecurity({self.protocol})"

    def check(self) -> None:
        """Raise AuthenticationError if a broker and this client failed to authenticate, and no
        other broker has accepted this client."""
        if self._refused is not None:
            raise AuthenticationError(str(self._refused)) from None

    def check_broker(self, endpoint: BrokerEndpoint) -> None:
        """Raise the errors of ``check``, or BrokerUnavailableError if this broker refused this
        client recently."""
        self.check()
        fault = self._faults.get((endpoint.host, endpoint.port))
        if fault is not None and time.monotonic() < fault.until:
            raise BrokerUnavailableError(fault.text)

    def accepted(self, endpoint: BrokerEndpoint) -> None:
        """Record that a broker has accepted this client."""
        self._accepted = True
        with self._lock:
            self._faults.pop((endpoint.host, endpoint.port), None)

    @property
    def faults(self) -> tuple[str, ...]:
        """Return a line for each broker that rejects this client now, although another broker
        accepted it."""
        now = time.monotonic()
        with self._lock:
            return tuple(
                fault.text for fault in self._faults.values() if now < fault.until + _PAUSES[1]
            )

    def refuse(self, endpoint: BrokerEndpoint, why: str) -> NoReturn:
        """Record that a broker and this client do not accept each other, for the reason ``why``.

        Raises AuthenticationError, now and in each ``check``, if no broker has accepted this client
        yet. Otherwise raises BrokerUnavailableError, until a pause has passed.
        """
        text = f"broker at {endpoint.host}:{endpoint.port}: {why}"
        if not self._accepted:
            self._refused = AuthenticationError(text)
            self.check()
        key, (first, longest) = (endpoint.host, endpoint.port), _PAUSES
        with self._lock:
            before = self._faults.get(key)
            pause = first if before is None else min(2 * before.pause, longest)
            self._faults[key] = _Fault(text, pause, time.monotonic() + pause)
        logger.warning("%s; it is asked again in %g s", text, pause)
        raise BrokerUnavailableError(text)

    def tls_failed(self, endpoint: BrokerEndpoint, error: ssl.SSLError) -> None:
        """Raise the errors of ``refuse`` for a failed handshake, unless only the connection
        broke."""
        from zkconsumer.tls import certificate_fault

        why = certificate_fault(error, "ssl.")
        if why == "it does not speak TLS at this port":
            why = f"{why}, but security.protocol={self.protocol}"
        if why is not None:
            self.refuse(endpoint, why)

    def log_in(self, connection: OpenConnection, again: bool = False) -> float | None:
        """Log in on a new connection: see ``SaslLogin``."""
        assert self.login is not None
        return self.login.log_in(connection, self.refuse, again)

    def wait_for_token(self) -> None:
        """Wait briefly, so that the source can renew a refused token."""
        time.sleep(_TOKEN_SECONDS)
