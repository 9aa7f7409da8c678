"""What the share torture concludes from the lines of its members."""

from __future__ import annotations

from load.share_torture.members import Heard


def hear(*lines: tuple[str, str]) -> Heard:
    """Each line with its member."""
    heard = Heard()
    has: dict[str, dict[int, int]] = {}
    for member, line in lines:
        heard.hear(line, has.setdefault(member, {}))
    return heard


def test_a_delivery_after_the_answer_is_an_offence() -> None:
    heard = hear(("a", "got 7 1 100"), ("a", "accepted 7 110"), ("b", "got 7 2 120"), ("b", "accepted 7 130"))
    assert heard.delivered_after_acceptance() == [7]
    assert heard.attempts == {7: 2}


def test_a_late_acceptance_is_none() -> None:
    heard = hear(("a", "got 7 1 100"), ("b", "got 7 2 5200"), ("b", "accepted 7 5210"), ("a", "accepted 7 5300"))
    assert heard.delivered_after_acceptance() == []
    assert heard.late == 1


def test_an_acceptance_without_an_answer_is_none() -> None:
    heard = hear(("a", "got 7 1 100"), ("a", "unsure 7"), ("b", "got 7 2 120"), ("b", "accepted 7 130"))
    assert heard.delivered_after_acceptance() == []
    assert (heard.late, heard.unsure) == (0, {7: 1})
