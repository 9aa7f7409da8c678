"""What one principal may do from one address, by an index of all ACLs.

Place: made by authorizer.py, kept with the client's connection, asked by rules and handlers. AclIndex is pure: it is
made from the ACLs of a metadata image, so that a decision looks at those of one resource and one principal only.
Invariant: the same question has the same answer as long as an Access is used; a changed ACL makes another one.
Clients ask for names of any number and length: the decisions that are remembered for all clients together have a
limit in bytes, and one about a longer name than any resource has is not remembered.
The index of a set of ACLs is the same whether it was made at once or by changes. A deny ACL counts more than any
allow ACL. An index never changes; `changed` makes another one, in time proportional to what changed (and a copy of
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
from typing import NamedTuple, Protocol

from headrace.agent.access.authorization.operations import (
    ALLOW,
    CLUSTER_NAME,
    DENY,
    LITERAL,
    PREFIXED,
    SUPPORTED,
    WILDCARD,
    AclOperation,
    AclResource,
    bits,
)
from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
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


NAME_BYTES_MAX = 8 * 1024
"""Memory of a name. Topics have up to 249 characters, groups and transactional ids up to 2,000 bytes."""
_Kind = tuple[AclOperation, AclResource]
Decisions = ClientMemory[tuple["AclAccess", AclOperation, AclResource, str], bool]


def new_decisions(limit_bytes: int = REMEMBERED_BYTES["access_decisions"]) -> Decisions:
    """A memory for the decisions of all clients."""
    return ClientMemory(limit_bytes, lambda key, _: text_bytes(key[3]), NAME_BYTES_MAX)


class Access(Protocol):
    """What a client may do."""

    is_full: bool
    """Everything: no ACL is asked."""

    def allows(self, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Return whether it may do this with the resource."""

    def allows_any(self, operation: AclOperation, resource_type: AclResource) -> bool:
        """Return whether there can be a resource of the type with which it may do this."""

    def operations(self, resource_type: AclResource, name: str = CLUSTER_NAME) -> int:
        """The bits of all that it may do with the resource."""


class FullAccess:
    """Full access of a super user, and of all clients if ACLs are not enforced."""

    is_full = True

    def allows(self, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Always."""
        return True

    def allows_any(self, operation: AclOperation, resource_type: AclResource) -> bool:
        """Always."""
        return True

    def operations(self, resource_type: AclResource, name: str = CLUSTER_NAME) -> int:
        """Every operation of the type."""
        return bits(SUPPORTED[resource_type])


FULL_ACCESS = FullAccess()


class AclAccess:
    """Access by ACLs. `allowed_without_acl`: allow.everyone.if.no.acl.found."""

    is_full = False

    def __init__(
        self, index: AclIndex, subject: Subject, *, allowed_without_acl: bool, decisions: Decisions | None
    ) -> None:
        """`decisions`: where they are remembered; None: nowhere else."""
        self.subject = subject
        self._index = index
        self._good = {AclVerdict.ALLOWED, AclVerdict.NO_ACL} if allowed_without_acl else {AclVerdict.ALLOWED}
        self._decisions = new_decisions() if decisions is None else decisions
        self._of_types: dict[_Kind, bool] = {}

    def allows(self, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Decided once, if it is remembered."""
        decision = self._decisions.get((self, operation, resource_type, name))
        return self._decide(operation, resource_type, name) if decision is None else decision

    def _decide(self, operation: AclOperation, resource_type: AclResource, name: str) -> bool:
        decision = self._index.decide(self.subject, operation, resource_type, name) in self._good
        self._decisions.put((self, operation, resource_type, name), decision)
        return decision

    def allows_any(self, operation: AclOperation, resource_type: AclResource) -> bool:
        """Decided once."""
        question = (operation, resource_type)
        if question not in self._of_types:
            self._of_types[question] = self._index.decide_any(self.subject, operation, resource_type) in self._good
        return self._of_types[question]

    def operations(self, resource_type: AclResource, name: str = CLUSTER_NAME) -> int:
        """Each operation of the type is decided."""
        return bits(each for each in SUPPORTED[resource_type] if self.allows(each, resource_type, name))
