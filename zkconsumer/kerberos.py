"""Kerberos logins with brokers and ZooKeeper: SASL GSSAPI without a security layer (RFC 4752).

libkrb5 does the work, through the library gssapi (the extra ``kerberos``). It reads
``krb5.conf`` (``KRB5_CONFIG``). Any thread.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import Any, Final

from zkconsumer.config.jaas import JaasEntry, kerberos_login
from zkconsumer.errors import AuthenticationError, ConfigError

logger = logging.getLogger("zkconsumer")

_RENEW_AT: Final = 0.8
"""Part of a ticket's lifetime after which the keytab gets a new one, as in Kafka's client."""
_RENEW_AGAIN_SECONDS: Final = 10.0
"""Seconds from a failed renewal to the next attempt, while the old ticket is valid."""
_NO_LAYER: Final = b"\1\0\0\0"
"""RFC 4752: no integrity or confidentiality layer, so the maximum message size is 0."""
_PASSING: Final = frozenset({-1765328228, -1765328164, -1765328355})
"""Codes of libkrb5 for temporary errors: no KDC is reachable, its name does not resolve, it timed
out."""
_NO_KEY: Final = -1765328189
"""Code of libkrb5 if the keytab lacks the principal; libkrb5 then looks for a credential cache."""

_caches: Final = itertools.count()


class KdcUnavailableError(Exception):
    """No ticket can be obtained at the moment. A later attempt may succeed."""


class Kerberos:
    """The identity of one client.

    With a keytab, tickets are kept in memory and renewed as long as this process runs. With a
    credential cache, the cache is read for every login, so that another program may renew it.

    Args:
        entry: the checked JAAS entry of the module ``Krb5LoginModule``.
        key: the configuration key of the entry, for errors.
        service: the servers' service name, if the entry has none.
        service_key: the configuration key of the service name, for errors.

    Raises ConfigError if the library is missing, or the keytab cannot be read.
    """

    def __init__(self, entry: JaasEntry, key: str, service: str, service_key: str) -> None:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            raise ConfigError(
                [
                    f"{key}: Kerberos needs the library gssapi ({error}): in a clone run "
                    "pip install '.[kerberos]'; it is built with libkrb5 (Debian and Ubuntu: apt "
                    "install gcc python3-dev libkrb5-dev)"
                ]
            ) from None
        self._gssapi = gssapi
        self._login = login = kerberos_login(entry)
        self._key = key
        self._service = login.service or service
        self._service_key = service_key
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        """Held by the thread that gets a new ticket, and released by it."""
        self._ticket: Any = None
        """The last ticket that was obtained with the keytab."""
        self._ends = self._renew_at = 0.0
        """When the ticket expires, and when to request a new one (``time.monotonic``)."""
        if login.renew:
            logger.warning(
                "%s: renewTGT has no effect: let another program (kinit -R, k5start, sssd) renew "
                "the credential cache, or use a keytab",
                key,
            )
        if login.keytab is not None:
            try:
                with open(login.keytab.removeprefix("FILE:"), "rb"):
                    pass
            except OSError as error:
                raise ConfigError(
                    [f"{key}: the keytab {login.keytab} cannot be read: {error.strerror}"]
                ) from None

    def __repr__(self) -> str:
        return f"Kerberos({self.principal})"

    @property
    def principal(self) -> str:
        """The client's principal as text; if it is not configured, the source from which it is
        taken."""
        return self._login.principal or f"of {self._source}"

    @property
    def short_names(self) -> tuple[str | None, ...]:
        """Names that ZooKeeper may use for this principal: with or without host and realm. None:
        any name."""
        if self._login.principal is None:
            return (None,)
        name, _, realm = self._login.principal.partition("@")
        service = name.partition("/")[0]
        return tuple(
            {f"{s}{r}" for s in (name, service) for r in ("", f"@{realm}" if realm else "")}
        )

    @property
    def _source(self) -> str:
        if self._login.keytab is not None:
            return f"the keytab {self._login.keytab}"
        return (
            f"the credential cache {self._login.cache or os.environ.get('KRB5CCNAME', '')}".strip()
        )

    def exchange(self, host: str) -> KerberosExchange:
        """Begin a login with the service on ``host``. This may contact a KDC.

        Raises KdcUnavailableError, and AuthenticationError if this identity cannot get a ticket.
        """
        gssapi = self._gssapi
        target = f"{self._service}@{host}"
        credentials = self._credentials()
        try:
            name = gssapi.Name(target, gssapi.NameType.hostbased_service)
            context = gssapi.SecurityContext(
                name=name,
                creds=credentials,
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=gssapi.RequirementFlag.mutual_authentication,
            )
            first = context.step()
        except gssapi.exceptions.GSSError as error:
            service = f"{self._service}/{host}"
            if _code(error) in _PASSING:
                raise KdcUnavailableError(self._no_kdc(error, f"for {service}")) from None
            raise AuthenticationError(
                f"{self._key}: {self.principal} cannot get a ticket for {service} "
                f"({_text(error)}): check {self._service_key}, the server's host name and the "
                "tickets"
            ) from None
        return KerberosExchange(context, first, gssapi.exceptions.GSSError)

    def renew(self) -> None:
        """Request a new ticket with the keytab in another thread, because this takes half a minute
        if no KDC answers.

        The old ticket stays in use meanwhile. Also called after a server has refused a ticket,
        because the server's key may have changed.
        """
        if self._login.keytab is not None and self._renewing.acquire(blocking=False):
            name = "zkconsumer-kerberos"
            try:
                threading.Thread(target=self._try_renewal, name=name, daemon=True).start()
            except BaseException:
                self._renewing.release()
                raise

    def _credentials(self) -> Any:
        if self._login.keytab is None:
            return self._acquired()
        with self._lock:
            now = time.monotonic()
            ticket = self._ticket if now < self._ends else None
            due = ticket is not None and now >= self._renew_at
            if due:
                self._renew_at = now + _RENEW_AGAIN_SECONDS
        if ticket is None:
            return self._renewed()
        if due:
            self.renew()
        return ticket

    def _try_renewal(self) -> None:
        try:
            self._renewed()
        except (KdcUnavailableError, AuthenticationError) as error:
            logger.warning("%s; the old ticket is good for %.0f s", error, self._left())
        finally:
            self._renewing.release()

    def _left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def _renewed(self) -> Any:
        ticket = self._acquired()
        life = ticket.lifetime
        with self._lock:
            now = time.monotonic()
            self._ticket = ticket
            self._ends, self._renew_at = now + life, now + life * _RENEW_AT
        return ticket

    def _acquired(self) -> Any:
        """Return a ticket from the keytab or the credential cache."""
        gssapi, login = self._gssapi, self._login
        store = {}
        if login.keytab is not None:
            # A cache of its own for each ticket, so that others may use the old one meanwhile.
            store["client_keytab"] = login.keytab
            store["ccache"] = f"MEMORY:zkconsumer-{os.getpid()}-{next(_caches)}"
        elif login.cache is not None:
            store["ccache"] = login.cache
        try:
            name = None
            if login.principal is not None:
                name = gssapi.Name(login.principal, gssapi.NameType.kerberos_principal)
            found = gssapi.Credentials(usage="initiate", name=name, store=store or None)
            _ = found.lifetime  # asks the KDC with the keytab's key; fails if it has ended
        except gssapi.exceptions.GSSError as error:
            if _code(error) in _PASSING:
                raise KdcUnavailableError(self._no_kdc(error, "")) from None
            why, mend = _text(error), "run kinit, or configure a keytab"
            if login.keytab is not None:
                mend = f"compare it with klist -k {login.keytab}, or export the keytab again"
                if _code(error) == _NO_KEY:
                    why = "the keytab has no key of this principal"
            raise AuthenticationError(
                f"{self._key}: {self.principal} cannot get a ticket with {self._source} ({why}): "
                f"{mend}"
            ) from None
        return found

    def _no_kdc(self, error: Any, what: str) -> str:
        return (
            f"{self._key}: {self.principal} cannot get a ticket {what}{what and ' '}now "
            f"({_text(error)}): check that the KDC in krb5.conf runs and can be reached"
        )


class KerberosExchange:
    """One login: the client's answers to the server's bytes. Used as one of kafka-python's
    mechanisms. Belongs to one thread."""

    def __init__(self, context: Any, first: bytes, fault: type[Exception]) -> None:
        self._context = context
        self._next = first or b""
        self._fault = fault
        self._last = self._sent_last = False

    def auth_bytes(self) -> bytes:
        """Return the next bytes for the server."""
        self._sent_last = self._last
        return self._next

    def receive(self, answer: bytes) -> None:
        """Process the server's answer. Raises ValueError if the sender does not have the service's
        key."""
        if self._sent_last:
            return
        try:
            if not self._context.complete:
                self._next = self._context.step(answer) or b""
                return
            offered = self._context.unwrap(answer).message
            if len(offered) != len(_NO_LAYER) or not offered[0] & 1:
                raise ValueError(
                    "the server requires integrity or confidentiality protection of all "
                    "messages, which this client does not support"
                )
            self._next = self._context.wrap(_NO_LAYER, False).message
        except self._fault as error:
            raise ValueError(str(error)) from None
        self._last = True

    def is_done(self) -> bool:
        """Whether there is nothing more to send. The server may or may not reply to the last
        message."""
        return self._sent_last

    def is_authenticated(self) -> bool:
        """Whether the server has proven that it has the service's key."""
        return self._sent_last

    def auth_details(self) -> str:
        """Return who is logged in, for kafka-python's log."""
        return f"{self._context.initiator_name} at {self._context.target_name}"


def _code(error: Any) -> int:
    """The code of libkrb5."""
    code: int = error.min_code
    return code - (1 << 32) if code >> 31 else code


def _text(error: Any) -> str:
    """Return the reason in libkrb5's words."""
    found = [str(one) for one in error.get_all_statuses(error.min_code, False)]
    if found in ([], ["Success"]):
        found = [str(one) for one in error.get_all_statuses(error.maj_code, True)]
    return " ".join(found)
