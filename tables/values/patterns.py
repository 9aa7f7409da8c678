"""Patterns of JSON Schema, and the steps of its validator: both are limited.

    pattern   RE2's syntax and time; what RE2 does not have (look-around, back references) by Python's `re`
    steps     each keyword that is applied counts; a value has so many for its bytes

Place: under json_schema.py: the validator classes of jsonschema, with some keywords replaced.
Invariant: a pattern in RE2's syntax takes time in proportion to the text. The steps end what references multiply
(a schema of 3 KB can apply a keyword 2^30 times). What is left, one step without an end, is ended with the process
that opens values (apart/).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import re2
from jsonschema import FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

PATTERN_CHARACTERS_MAX = 4_096
PROGRAM_BYTES = 1024 * 1024
"""Memory that one pattern's program and its automaton may take."""
STEPS = 100_000
"""Steps of a value without a byte."""
STEPS_PER_BYTE = 8

Search = Callable[[str], object]
"""Returns something that is not None or false if the pattern is in the text."""


@lru_cache(maxsize=1_000)
def compiled(pattern: str) -> Search:
    """ValueError if it is no pattern. The same syntax as ECMA 262, as far as both libraries have it."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern of more than {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        found: Search = re2.compile(pattern, options).search
    except re2.error:
        try:
            found = re.compile(pattern).search
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a pattern: {error}") from error
    return found


PATTERNS = FormatChecker(formats=())
"""Checks the patterns of a schema, and no other format."""


def _is_pattern(text: object) -> bool:
    return not isinstance(text, str) or compiled(text) is not None


PATTERNS.checks("regex", raises=ValueError)(_is_pattern)


class _Steps(threading.local):
    left = 0


_steps = _Steps()


def allow_steps(value_bytes: int) -> None:
    """Begin to validate a value of this size on this thread."""
    _steps.left = STEPS + STEPS_PER_BYTE * value_bytes


def limited(kind: Any) -> Any:
    """Return the validator class with patterns of RE2, and with keywords that count. ValueError from its validation:
    too many steps.
    """
    return _limited(kind)


@lru_cache(maxsize=20)
def _limited(kind: Any) -> Any:
    replaced = {"pattern": _pattern, "patternProperties": _pattern_properties}
    if "additionalProperties" in kind.VALIDATORS:
        replaced["additionalProperties"] = _additional(kind.VALIDATORS["additionalProperties"])
    keywords = {name: _counted(replaced.get(name, run)) for name, run in kind.VALIDATORS.items()}
    made = extend(kind, validators=keywords)
    evolve = made.evolve

    def evolved(self: Any, **changes: Any) -> Any:
        """Stay limited where a part of the schema names its draft: the library takes its own class there."""
        found = evolve(self, **changes)
        if type(found) is type(self):
            return found
        return limited(type(found))(found.schema, format_checker=found.format_checker, _resolver=found._resolver)

    made.evolve = evolved
    return made


def _counted(run: Callable[..., Any]) -> Callable[..., Any]:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _steps.left -= 1
        if _steps.left < 0:
            raise ValueError("validating the value takes too many steps")
        return run(validator, value, instance, schema)

    return keyword


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not compiled(pattern)(instance):
        yield ValidationError(f"{instance[:200]!r} does not match {pattern[:200]!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        search = compiled(pattern)
        for name, value in instance.items():
            if search(name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional(run: Callable[..., Any]) -> Callable[..., Any]:
    """The keyword without patterns of Python: of names that no pattern has, the library does the rest."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if not patterns or not validator.is_type(instance, "object"):
            return run(validator, value, instance, schema)
        searches = [compiled(each) for each in patterns]
        rest = {name: each for name, each in instance.items() if not any(search(name) for search in searches)}
        return run(validator, value, rest, {key: each for key, each in schema.items() if key != "patternProperties"})

    return keyword
