"""What the share torture concludes from the lines of its members."""

from __future__ import annotations

from tests.share_torture.members import Got, Heard


def hear(*lines: tuple[str, str]) -> Heard:
    """Each line with its member."""
    heard = Heard()
    has: dict[str, dict[int, Got]] = {}
    for member, line in lines:
        heard.hear(line, has.setdefault(member, {}))
    return heard


def test_a_delivery_after_the_answer_is_an_offence() -> None:
    heard = hear(("a", "got 7 1 90 100"), ("a", "accepted 7 110"), ("b", "got 7 2 111 120"), ("b", "accepted 7 130"))
    assert heard.delivered_after_acceptance().keys() == {7}
    assert heard.attempts == {7: 2}


def test_the_same_attempt_again_is_an_offence() -> None:
    """A new owner of the group that lost the acceptance counts on from what was stored before."""
    heard = hear(("a", "got 7 1 90 100"), ("a", "accepted 7 110"), ("b", "got 7 1 111 120"), ("b", "accepted 7 130"))
    assert heard.delivered_after_acceptance().keys() == {7}


def test_a_late_acceptance_is_none() -> None:
    first = (("a", "got 7 1 90 100"), ("b", "got 7 2 5100 5200"), ("b", "accepted 7 5210"))
    assert hear(*first, ("a", "accepted 7 5300")).delivered_after_acceptance() == {}
    assert hear(*first, ("a", "accepted 7 5300")).again == 1


def test_a_late_poll_is_none() -> None:
    """Member a fetched the record before member b did."""
    heard = hear(
        ("b", "got 7 2 5100 5200"), ("b", "accepted 7 5210"), ("a", "got 7 1 90 5220"), ("a", "accepted 7 5300")
    )
    assert heard.delivered_after_acceptance() == {}


def test_an_acceptance_without_an_answer_is_none() -> None:
    heard = hear(("a", "got 7 1 90 100"), ("a", "unsure 7"), ("b", "got 7 2 101 120"), ("b", "accepted 7 130"))
    assert heard.delivered_after_acceptance() == {}
    assert (heard.again, heard.unsure) == (0, {7: 1})
