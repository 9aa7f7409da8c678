"""The principal of a client certificate: its subject, by ssl.principal.mapping.rules.

Place: asked once per connection of a listener with SSL.
Invariant: the first rule with a pattern that matches the whole subject counts; a subject that none matches is refused.
Source: KIP-371; RFC 4514 (the text of a subject).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cryptography import x509

from headrace.config.errors import ConfigError
from headrace.protocol.request import ANONYMOUS

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")
_CASES: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}
Rule = Callable[[str], str | None]


class PrincipalRules:
    """ConfigError for text that is no list of rules."""

    def __init__(self, text: str) -> None:
        self._rules: list[Rule] = []
        position = 0
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: not RULE:pattern/replacement/[LU]: {text[position:]!r}"
                )
            self._rules.append(str if match[1] else _rule(match[2], match[3], match[4]))
            position = match.end()

    def principal(self, certificate: bytes | None) -> str | None:
        """Return the principal of a certificate in DER; ANONYMOUS without one; None if no rule matches."""
        if certificate is None:
            return ANONYMOUS
        subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
        name = self.name(subject)
        return None if name is None else f"User:{name}"

    def name(self, subject: str) -> str | None:
        """Return the name that the first rule gives that matches."""
        return next((name for rule in self._rules if (name := rule(subject)) is not None), None)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {error}: {pattern!r}") from error
    template = _GROUP.sub(r"\\g<\1>", replacement)

    def apply(subject: str) -> str | None:
        match = compiled.fullmatch(subject)
        return None if match is None else _CASES[case](match.expand(template))

    return apply
