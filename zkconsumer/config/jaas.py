"""Reads one entry of a JAAS configuration, the value of ``sasl.jaas.config``. Pure; any thread."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from zkconsumer.config.values import DIGEST, OAUTH, PLAIN, SCRAM, Password

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign>[=;])|(?P<word>[^\s=;"']+))"""
)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_NAMES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": PLAIN,
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": OAUTH,
    "org.apache.zookeeper.server.auth.DigestLoginModule": DIGEST,
}


class JaasEntry(NamedTuple):
    """A login module by its short name, and its options; their values may be secrets."""

    module: str
    options: dict[str, Password]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, {sorted(self.options)})"


def parse_jaas(text: str) -> JaasEntry:
    """Return the one entry of ``text``: ``MODULE required NAME="VALUE" ...;``.

    Raises ValueError, whose text names the fault and the fix but never contains a value.
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
    if not tokens or tokens[-1] != ("sign", ";"):
        raise ValueError("must end with ';'")
    tokens.pop()
    if ("sign", ";") in tokens:
        raise ValueError("has more than one login module: give one")
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
