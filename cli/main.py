"""`headrace`: one command with one file per subcommand.

Place: the entry point; commands.py makes the parser.
Invariant: an error that the user can fix is one line on stderr and exit status 1, never a traceback. Ctrl-C is status
130 from the first import on: slow imports are inside `main`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STATUS_INTERRUPTED = 130
STATUS_SIGPIPE = 141
"""The exit status that shells use for a program that wrote to a closed pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED


def _run(words: Sequence[str]) -> int:
    from headrace.cli.commands import make_parser
    from headrace.config.errors import ConfigError
    from headrace.storage.errors import HeadraceError

    try:
        try:
            args = make_parser(words).parse_args(words)
            return int(args.run(args) or 0)
        finally:
            sys.stdout.flush()
    except (ConfigError, HeadraceError) as error:
        _complain(str(error))
        return 1
    except BrokenPipeError:  # the program that reads our output has closed the pipe
        _discard_output()
        return STATUS_SIGPIPE
    except OSError as error:
        if error.filename is not None:
            if not isinstance(error, PermissionError):
                raise
            _complain(f"no permission: {error.filename}")
        elif _is_full(error):
            _discard_output()
            _complain(f"cannot write the output: {error.strerror}")
        else:
            raise
        return 1


def _complain(text: str) -> None:
    from headrace.cli.output import write_error

    write_error(f"error: {text}")


def _is_full(error: OSError) -> bool:
    """Return whether a file takes no more bytes. Without a file name it is standard output: other files have their own
    errors (storage/errors.py)."""
    import errno

    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _discard_output() -> None:
    """What is left in the buffer goes nowhere: else Python would try to write it again at its end."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
