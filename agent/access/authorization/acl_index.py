"""All ACLs, indexed so that a decision looks at those of one resource and one principal only. Pure.

Place: made from the ACLs of a metadata image, asked by access.py.
Invariant: the index of a set of ACLs is the same whether it was made at once or by changes. A deny ACL counts more than
any allow ACL. An index never changes; `changed` makes another one, in time proportional to what changed (and a copy of
one dictionary).
Source: Kafka's StandardAuthorizerData (findAclRule, findResult) and Authorizer.authorizeByResourceType; KIP-11,
KIP-290.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from headrace.agent.access.authorization.operations import (
    ALLOW,
    DENY,
    LITERAL,
    PREFIXED,
    WILDCARD,
    AclOperation,
    AclResource,
)
from headrace.metastore.log.kip631_records import AccessControlRecord

EVERYONE = "User:*"
_IMPLIED_BY: dict[int, frozenset[int]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""The operations that include another one, if they are allowed."""
_ANY_NAME = "hardcode"
"""The name that Kafka asks for to find out who may use any resource of a type."""


class AclVerdict(enum.Enum):
    """What the ACLs say."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no ACL"
    """No ACL includes the resource, of any principal."""


class Subject(NamedTuple):
    """The client that asks. `host` is an address as `canonical_host` writes it."""

    principal: str
    host: str


class _Rule(NamedTuple):
    host: str
    operation: int
    permission: int

    def concerns(self, subject: Subject) -> bool:
        return self.host in (WILDCARD, subject.host)

    def allows(self, operation: int) -> bool:
        if self.permission != ALLOW:
            return False
        return self.operation == AclOperation.ALL or self.operation in _IMPLIED_BY.get(operation, (operation,))

    def denies(self, operation: int) -> bool:
        return self.permission == DENY and self.operation in (AclOperation.ALL, operation)


_Pattern = tuple[int, int, str]
"""(resource type, pattern type, name)."""
_Rules = Mapping[str, tuple[_Rule, ...]]
"""Rules by principal."""
_NOTHING: Mapping[_Pattern, _Rules] = MappingProxyType({})


class AclIndex:
    """Index of one set of ACLs: `EMPTY.changed(acls)`."""

    def __init__(self, acls: frozenset[AccessControlRecord], patterns: Mapping[_Pattern, _Rules]) -> None:
        self.acls = acls
        self._patterns = patterns
        lengths = defaultdict[int, set[int]](set)
        for resource_type, pattern_type, name in patterns:
            if pattern_type == PREFIXED:
                lengths[resource_type].add(len(name))
        self._prefix_lengths = {resource_type: sorted(found) for resource_type, found in lengths.items()}

    def changed(self, acls: frozenset[AccessControlRecord]) -> AclIndex:
        """The index of `acls`."""
        touched = defaultdict[_Pattern, dict[str, list[_Rule]]](dict)

        def rules_of(acl: AccessControlRecord) -> list[_Rule]:
            pattern = (acl.resource_type, acl.pattern_type, acl.resource_name or "")
            if pattern not in touched:
                touched[pattern] = {who: list(rules) for who, rules in self._patterns.get(pattern, {}).items()}
            return touched[pattern].setdefault(acl.principal, [])

        for acl in self.acls - acls:
            rules_of(acl).remove(_rule(acl))
        for acl in acls - self.acls:
            rules_of(acl).append(_rule(acl))
        patterns = dict(self._patterns)
        for pattern, by_principal in touched.items():
            kept = {who: tuple(rules) for who, rules in by_principal.items() if rules}
            if kept:
                patterns[pattern] = kept
            else:
                patterns.pop(pattern, None)
        return AclIndex(acls, patterns)

    def decide(self, subject: Subject, operation: AclOperation, resource_type: AclResource, name: str) -> AclVerdict:
        """Return whether the subject may do this with the resource."""
        verdict = AclVerdict.NO_ACL
        for by_principal in self._including(resource_type, name):
            if verdict is AclVerdict.NO_ACL:
                verdict = AclVerdict.DENIED
            for principal in (subject.principal, EVERYONE):
                for rule in by_principal.get(principal, ()):
                    if not rule.concerns(subject):
                        continue
                    if rule.denies(operation):
                        return AclVerdict.DENIED
                    if rule.allows(operation):
                        verdict = AclVerdict.ALLOWED
        return verdict

    def decide_any(self, subject: Subject, operation: AclOperation, resource_type: AclResource) -> AclVerdict:
        """Return whether there can be a resource of the type with which the subject may do this."""
        hardcoded = self.decide(subject, operation, resource_type, _ANY_NAME)
        if hardcoded is AclVerdict.ALLOWED:
            return hardcoded
        denied, allowed = set[tuple[int, str]](), set[tuple[int, str]]()
        for pattern, rule in self._rules_of_type(subject, resource_type):
            if rule.operation in (AclOperation.ALL, operation):
                (denied if rule.permission == DENY else allowed).add(pattern)
        everything = (int(LITERAL), WILDCARD)
        if everything in denied:
            return AclVerdict.DENIED
        if everything in allowed or any(_has_room(pattern, denied) for pattern in allowed):
            return AclVerdict.ALLOWED
        return hardcoded

    def _including(self, resource_type: int, name: str) -> Iterator[_Rules]:
        """The rules of each pattern that includes the resource."""
        names = {(LITERAL, name), (LITERAL, WILDCARD)}
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            names.add((PREFIXED, name[:length]))
        for pattern_type, pattern in names:
            if (found := self._patterns.get((resource_type, pattern_type, pattern))) is not None:
                yield found

    def _rules_of_type(self, subject: Subject, resource_type: int) -> Iterator[tuple[tuple[int, str], _Rule]]:
        """The subject's rules with (pattern type, name)."""
        for (of_type, pattern_type, name), by_principal in self._patterns.items():
            if of_type == resource_type:
                for principal in {subject.principal, EVERYONE}:
                    for rule in by_principal.get(principal, ()):
                        if rule.concerns(subject):
                            yield (pattern_type, name), rule


EMPTY = AclIndex(frozenset(), _NOTHING)


def canonical_host(host: str) -> str:
    """One way to write an address: ACLs of Kafka have the long form of IPv6. A text that is no address stays."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _rule(acl: AccessControlRecord) -> _Rule:
    return _Rule(canonical_host(acl.host), acl.operation, acl.permission_type)


def _has_room(allowed: tuple[int, str], denied: Iterable[tuple[int, str]]) -> bool:
    """Return whether no denied pattern includes the whole allowed one."""
    pattern_type, name = allowed
    if pattern_type == LITERAL and allowed in denied:
        return False
    return not any((PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
