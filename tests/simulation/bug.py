"""What a deliberate bug is: a name, the promise it breaks, how the checker must catch it, and a patch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tests.patch import Patch
from tests.simulation.plan import Plan
from tests.simulation.problems import Kind


@dataclass(frozen=True, slots=True)
class Bug:
    """`requirement`: the promise that it breaks. `caught_as`: one of these must be reported. `may_show`: whether it may
    show in schedules of the plan; others are not run.
    """

    name: str
    what: str
    requirement: str
    caught_as: tuple[Kind, ...]
    apply: Callable[[Patch], None]
    may_show: Callable[[Plan], bool]

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The code has the bug as long as the block runs."""
        with contextlib.ExitStack() as stack:
            self.apply(Patch(stack))
            yield


def bug(
    requirement: str, *caught_as: Kind, may_show: Callable[[Plan], bool] = lambda plan: True
) -> Callable[[Callable[[Patch], None]], Bug]:
    """Makes a Bug of a function that applies it; name and docstring are the function's."""

    def make(apply: Callable[[Patch], None]) -> Bug:
        return Bug(apply.__name__, (apply.__doc__ or "").strip(), requirement, caught_as, apply, may_show)

    return make


def bugs_of(*modules: ModuleType) -> tuple[Bug, ...]:
    """Return the bugs of the modules, in their order."""
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Bug))


def name_of(bug: Bug) -> str:
    return bug.name
