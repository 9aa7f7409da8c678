"""The epochs of a group, and by which topics it was judged.

Place: under membership.py, which says when members change; a kind's target adds what each member shall have.
    group epoch    rises when members, subscriptions or topics change
    target epoch   the group epoch that the target assignment was made for
    member epoch   the target epoch that the member was brought to; it shows it in every request
Invariant: epochs never go back.
Source: KIP-848 (group epoch, assignment epoch).
"""

from __future__ import annotations

from collections.abc import Callable


class GroupEpochs:
    """Both epochs of one group. The target is made again only while its epoch is behind."""

    def __init__(self, on_rise: Callable[[], None] = lambda: None) -> None:
        """`on_rise` is called with each new group epoch."""
        self._on_rise = on_rise
        self.group_epoch = 0
        self.lowest = 0
        """The least of the group epochs that begin from now on."""
        self.epoch = 0
        """The target's."""
        self.judged_by: object = None
        """The topics by which the group was judged last; None if it was not since it was loaded."""

    def raise_epoch(self) -> None:
        """Members, subscriptions or topics changed: the target has to be made again."""
        self.group_epoch = max(self.group_epoch + 1, self.lowest)
        self._on_rise()

    @property
    def is_made(self) -> bool:
        """Whether the target is of the group epoch."""
        return self.epoch == self.group_epoch

    def is_judged_by(self, topics: object) -> bool:
        """Return whether these are the topics that the group was judged by last: the same object."""
        return self.judged_by is topics

    def rename(self, member_id: str, successor_id: str) -> None:
        """Give the part of a static member to its new member id. Nothing to do here: a subclass has the parts."""

    def forget(self, member_id: str) -> None:
        """Make a new target necessary: a member left, so its part is free."""
        self.raise_epoch()
