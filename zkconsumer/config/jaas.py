"""Reads one entry of a JAAS configuration, the value of ``sasl.jaas.config``. Pure; any thread."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from zkconsumer.config.values import DIGEST, KERBEROS, OAUTH, PLAIN, SCRAM, Password

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign>[=;])|(?P<word>[^\s=;"']+))"""
)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_NAMES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": PLAIN,
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": OAUTH,
    "org.apache.zookeeper.server.auth.DigestLoginModule": DIGEST,
    "com.sun.security.auth.module.Krb5LoginModule": KERBEROS,
}
_KRB5_TEXTS: Final = ("keyTab", "principal", "ticketCache", "serviceName")
_KRB5_SWITCHES: Final = ("useKeyTab", "useTicketCache", "renewTGT", "renewTicket")
_KRB5_NO_EFFECT: Final = ("debug", "doNotPrompt", "refreshKrb5Config", "storeKey", "isInitiator")
"""Options of the JVM's Krb5LoginModule without effect in this client: it never prompts, reads
krb5.conf as libkrb5 does, and only logs in to others."""


class JaasEntry(NamedTuple):
    """A login module by its short name, and its options, whose values may be secrets."""

    module: str
    options: dict[str, Password]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, {sorted(self.options)})"


def parse_jaas(text: str) -> JaasEntry:
    """Return the one entry of ``text``: ``MODULE required NAME="VALUE" ...;``.

    Raises ValueError. Its text names the fault and the fix, but never a value.
    """
    tokens: list[tuple[str, str]] = []
    rest = text.strip()
    at = 0
    while at < len(rest):
        match = _TOKEN.match(rest, at)
        if match is None:
            raise ValueError("a quotation mark is not closed")
        at = match.end()
        kind = match.lastgroup or "word"
        token = match[kind]
        if kind == "quoted":
            token, kind = re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL), "word"
        tokens.append((kind, token))
    if len(tokens) > 1 and tokens[1][1] == "{":
        raise ValueError(
            f"is a section of a JAAS file: use only the text inside the braces of {tokens[0][1]}"
        )
    if not tokens or tokens[-1] != ("sign", ";"):
        raise ValueError("must end with ';'")
    tokens.pop()
    if ("sign", ";") in tokens:
        raise ValueError("has more than one login module: use only one")
    if len(tokens) < 2 or tokens[0][1] not in _NAMES or tokens[1][1].lower() not in _FLAGS:
        raise ValueError(
            "must begin with a login module and the word required; the modules are "
            + ", ".join(_NAMES)
        )
    options: dict[str, Password] = {}
    pairs = tokens[2:]
    while pairs:
        if len(pairs) < 3 or pairs[0][0] != "word" or pairs[1][1] != "=" or pairs[2][0] != "word":
            raise ValueError('an option is not NAME="VALUE"; put values in double quotes')
        options[pairs[0][1]] = Password(pairs[2][1])
        pairs = pairs[3:]
    return JaasEntry(_NAMES[tokens[0][1]], options)


class KerberosLogin(NamedTuple):
    """The credentials of a ``Krb5LoginModule``: a keytab or, without one, a credential cache."""

    principal: str | None
    """``None``: the principal of the credential cache."""
    keytab: str | None
    cache: str | None
    """``None`` without a keytab: the default credential cache (``KRB5CCNAME``)."""
    service: str | None
    """The servers' service name, if the entry names one."""
    renew: bool
    """Whether a JVM would renew the ticket in the cache. This client does not."""


def kerberos_login(entry: JaasEntry) -> KerberosLogin:
    """Return the login that an entry with the module ``KERBEROS`` describes.

    If the entry has both a keytab and a cache, the keytab is used. Raises ValueError. Its text
    names the option and the fix.
    """
    known = (*_KRB5_TEXTS, *_KRB5_SWITCHES, *_KRB5_NO_EFFECT)
    for name in entry.options:
        if name not in known:
            raise ValueError(
                f"{KERBEROS}: this client does not know the option {name}, only {', '.join(known)}"
            )
    texts: dict[str, str] = {
        name: entry.options[name].value for name in _KRB5_TEXTS if name in entry.options
    }
    switches = {}
    for name in _KRB5_SWITCHES:
        value = entry.options[name].value.lower() if name in entry.options else "false"
        if value not in ("true", "false"):
            raise ValueError(f"{KERBEROS}: {name} must be true or false")
        switches[name] = value == "true"
    if switches["useKeyTab"]:
        for name in ("keyTab", "principal"):
            if not texts.get(name):
                raise ValueError(f'{KERBEROS} with useKeyTab=true needs {name}="..."')
    elif not switches["useTicketCache"]:
        raise ValueError(
            f'{KERBEROS} needs useKeyTab=true keyTab="PATH" principal="NAME", or '
            "useTicketCache=true"
        )
    with_keytab = switches["useKeyTab"]
    return KerberosLogin(
        principal=texts.get("principal"),
        keytab=texts["keyTab"] if with_keytab else None,
        cache=None if with_keytab else texts.get("ticketCache"),
        service=texts.get("serviceName"),
        renew=not with_keytab and (switches["renewTGT"] or switches["renewTicket"]),
    )
