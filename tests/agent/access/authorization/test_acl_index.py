"""The index of ACLs: every decision is that of a naive reading of all ACLs, however the set came to be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.access.authorization.access import (
    EMPTY,
    AclAccess,
    AclVerdict,
    Subject,
    canonical_host,
    new_decisions,
)
from headrace.agent.access.authorization.operations import ALLOW, DENY, LITERAL, PREFIXED, AclOperation, AclResource
from headrace.metastore.log.kip631_records import AccessControlRecord
from tests.agent.access.acls import an_acl
from tests.seeds import examples

NAMES = ["a", "ab", "abc", "b", "ba", "*", "hardcode"]
HOSTS = ["10.0.0.1", "10.0.0.2", "::1", "*"]
PRINCIPALS = ["User:alice", "User:bob", "Group:alice", "User:*"]
OPERATIONS = [
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
]
ASKED = [
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
]
TYPES = [AclResource.TOPIC, AclResource.GROUP]

acls = st.builds(
    AccessControlRecord,
    resource_type=st.sampled_from([int(each) for each in TYPES]),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from([*HOSTS, "0:0:0:0:0:0:0:1"]),
    operation=st.sampled_from([int(each) for each in OPERATIONS]),
    permission_type=st.sampled_from([ALLOW, DENY]),
)
subjects = st.builds(Subject, st.sampled_from(["User:alice", "User:bob", "Group:alice"]), st.sampled_from(HOSTS[:3]))


def implies(held: int, asked: AclOperation) -> bool:
    if held in (AclOperation.ALL, asked):
        return True
    if asked is AclOperation.DESCRIBE:
        return held in (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    return asked is AclOperation.DESCRIBE_CONFIGS and held == AclOperation.ALTER_CONFIGS


def includes(acl: AccessControlRecord, name: str) -> bool:
    pattern = acl.resource_name or ""
    return name.startswith(pattern) if acl.pattern_type == PREFIXED else pattern in (name, "*")


def is_of(acl: AccessControlRecord, subject: Subject) -> bool:
    host = "::1" if acl.host == "0:0:0:0:0:0:0:1" else acl.host
    return acl.principal in (subject.principal, "User:*") and host in ("*", subject.host)


def naive(
    known: Iterable[AccessControlRecord], subject: Subject, asked: AclOperation, kind: AclResource, name: str
) -> AclVerdict:
    of_resource = [acl for acl in known if acl.resource_type == kind and includes(acl, name)]
    if not of_resource:
        return AclVerdict.NO_ACL
    own = [acl for acl in of_resource if is_of(acl, subject)]
    if any(acl.permission_type == DENY and acl.operation in (AclOperation.ALL, asked) for acl in own):
        return AclVerdict.DENIED
    allowed = any(acl.permission_type == ALLOW and implies(acl.operation, asked) for acl in own)
    return AclVerdict.ALLOWED if allowed else AclVerdict.DENIED


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.frozensets(acls, max_size=12), min_size=1, max_size=4), subjects)
def test_every_decision_is_the_naive_one(history: list[frozenset[AccessControlRecord]], subject: Subject) -> None:
    index = EMPTY
    for known in history:
        index = index.changed(known)
        for asked, kind, name in itertools.product(ASKED, TYPES, [*NAMES, "abcd", ""]):
            assert index.decide(subject, asked, kind, name) is naive(known, subject, asked, kind, name)


@settings(max_examples=examples(150), deadline=None)
@given(st.frozensets(acls, max_size=8), subjects)
def test_any_resource_is_allowed_as_kafka_says(known: frozenset[AccessControlRecord], subject: Subject) -> None:
    """Written from Authorizer.authorizeByResourceType: operations are not implied, and a deny of all counts."""
    index = EMPTY.changed(known)
    for asked, kind in itertools.product([AclOperation.READ, AclOperation.WRITE], TYPES):
        own = [
            acl
            for acl in known
            if acl.resource_type == kind and is_of(acl, subject) and acl.operation in (AclOperation.ALL, asked)
        ]
        denied = {(a.pattern_type, a.resource_name) for a in own if a.permission_type == DENY}
        allowed = {(a.pattern_type, a.resource_name or "") for a in own if a.permission_type == ALLOW}
        expected = naive(known, subject, asked, kind, "hardcode")
        if expected is not AclVerdict.ALLOWED:
            free = [
                (pattern, name)
                for pattern, name in allowed
                if (pattern, name) not in denied
                and not any((PREFIXED, name[:n]) in denied for n in range(1, len(name) + 1))
            ]
            good = (LITERAL, "*") not in denied and ((LITERAL, "*") in allowed or bool(free))
            expected = AclVerdict.ALLOWED if good else expected
        assert index.decide_any(subject, asked, kind) is expected


def test_two_acls_that_say_the_same_of_one_address_are_two() -> None:
    short, long = (AccessControlRecord(**{**vars_of(an_acl("t")), "host": host}) for host in ("::1", "0:0:0:0:0:0:0:1"))
    subject = Subject("User:alice", "::1")
    index = EMPTY.changed(frozenset({short, long})).changed(frozenset({long}))
    assert index.decide(subject, AclOperation.READ, AclResource.TOPIC, "t") is AclVerdict.ALLOWED
    assert index.changed(frozenset()).decide(subject, AclOperation.READ, AclResource.TOPIC, "t") is AclVerdict.NO_ACL


def vars_of(acl: AccessControlRecord) -> dict[str, object]:
    return {name: getattr(acl, name) for name in AccessControlRecord.__dataclass_fields__}


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("*", "*"),
        ("no address", "no address"),
    ],
)
def test_addresses_have_one_form(written: str, canonical: str) -> None:
    assert canonical_host(written) == canonical


def test_decisions_are_kept_up_to_a_limit() -> None:
    index = EMPTY.changed(frozenset({an_acl("t1")}))
    decisions = new_decisions(100_000)
    alice, bob = (
        AclAccess(index, Subject(name, "::1"), allowed_without_acl=False, decisions=decisions)
        for name in ("User:alice", "User:bob")
    )
    for number in range(2_000):
        name = f"t{number}"
        assert alice.allows(AclOperation.READ, AclResource.TOPIC, name) is (number == 1)
        assert not bob.allows(AclOperation.READ, AclResource.TOPIC, name)
        assert decisions.in_use_bytes <= 100_000
    assert alice.allows(AclOperation.READ, AclResource.TOPIC, "t1")
    assert len(decisions) > 100, "of both"


@pytest.mark.requirement("X7")
def test_a_decision_about_a_name_that_nothing_has_is_not_kept() -> None:
    decisions = new_decisions()
    index = EMPTY.changed(frozenset({an_acl("t1")}))
    access = AclAccess(index, Subject("User:alice", "::1"), allowed_without_acl=False, decisions=decisions)
    for number in range(10):
        assert not access.allows(AclOperation.READ, AclResource.TOPIC, f"{number}" + "x" * 100_000)
    assert len(decisions) == 0


def test_what_is_allowed_without_an_acl() -> None:
    index = EMPTY.changed(frozenset({an_acl("t")}))
    bob = Subject("User:bob", "::1")
    access = AclAccess(index, bob, allowed_without_acl=True, decisions=None)
    assert access.allows(AclOperation.READ, AclResource.TOPIC, "other")
    assert not access.allows(AclOperation.READ, AclResource.TOPIC, "t"), "an ACL of another principal is an ACL"


def test_a_change_leaves_the_earlier_index_as_it_was() -> None:
    rng = random.Random(1)
    names = [f"t{rng.randrange(50)}" for _ in range(100)]
    before = EMPTY.changed(frozenset(map(an_acl, names)))
    after = before.changed(frozenset(map(an_acl, names[:10])))
    alice = Subject("User:alice", "::1")
    for name in names:
        assert before.decide(alice, AclOperation.READ, AclResource.TOPIC, name) is AclVerdict.ALLOWED
        gone = AclVerdict.ALLOWED if name in names[:10] else AclVerdict.NO_ACL
        assert after.decide(alice, AclOperation.READ, AclResource.TOPIC, name) is gone
