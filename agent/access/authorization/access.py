"""What one principal may do from one address, by one index of ACLs. Decisions are remembered.

Place: made by authorizer.py, kept with the client's connection, asked by rules and handlers.
Invariant: the same question has the same answer as long as the object is used; a changed ACL makes another object.
Clients ask for names of any number and length: the decisions of all clients together have a limit in bytes, and one
about a longer name than any resource has is not remembered.
"""

from __future__ import annotations

from typing import Protocol

from headrace.agent.access.authorization.acl_index import AclIndex, AclVerdict, Subject
from headrace.agent.access.authorization.operations import CLUSTER_NAME, SUPPORTED, AclOperation, AclResource, bits
from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES

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
