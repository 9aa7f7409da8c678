"""`headrace shell`: browse the cluster's metadata, interactively or with one command.

Place: opens a source, builds the tree, reads lines; commands.py has the commands.
Invariant: reads only. An error in one line ends that line, not the shell; if a one-shot command fails, the exit
status is 1.
Source: KIP-631, kafka-shell.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import readline
import sys
from pathlib import Path

from headrace.cli.numbers import INT32_MAX, whole
from headrace.cli.options import add_settings, settings_from
from headrace.cli.shell.commands import GREETING, LeaveShell, Shell
from headrace.cli.shell.source import image_from_cluster, image_from_file, image_from_metastore
from headrace.cli.shell.tree import tree
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import FILE_UNPACKED_MIB, encode_snapshot
from headrace.storage.errors import HeadraceError, InvalidError

PROMPT = ">> "
DESCRIPTION = """\
Browse the cluster's metadata like a file system.

  headrace shell --controllers 127.0.0.1:9092
  headrace shell --metastore-url postgresql://… ls /topics
  headrace shell --metastore-url postgresql://… --save-snapshot metadata.snapshot
  headrace shell --snapshot metadata.snapshot -c "cat /topics/orders/0/data"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--controllers", "-C", metavar="SERVERS", help="read a running cluster: host:port, ...")
    parser.add_argument("--snapshot", "-s", type=Path, metavar="FILE", help="read a snapshot file")
    parser.add_argument(
        "--snapshot-max-mib",
        type=whole(1, INT32_MAX),
        default=FILE_UNPACKED_MIB,
        metavar="MIB",
        help=f"memory that the records of a snapshot file may use ({FILE_UNPACKED_MIB})",
    )
    parser.add_argument("--save-snapshot", type=Path, metavar="FILE", help="save the metadata as a snapshot file")
    parser.add_argument("-c", dest="line", metavar="LINE", help="run this line and exit")
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="run this command, given as one or several arguments, and exit"
    )
    add_settings(parser, ("metastore.url",), short_config=False, every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One command, or lines until `exit` or the end of input."""
    image = _image(args)
    if args.save_snapshot is not None:
        _save(image, args.save_snapshot)
        print(f"snapshot saved: end_offset={image.offset} file={args.save_snapshot}")
        return 0
    shell = Shell(tree(image), print)
    with contextlib.suppress(LeaveShell):
        if args.line is not None:
            shell.run(args.line)
        elif len(args.words) == 1:  # the whole command in one argument, as kafka-metadata-shell accepts it
            shell.run(args.words[0])
        elif args.words:
            shell.run_words(args.words)
        else:
            _converse(shell)
    return 0


def _image(args: argparse.Namespace) -> MetadataImage:
    if args.snapshot is not None:
        return image_from_file(args.snapshot, args.snapshot_max_mib)
    if args.controllers is not None:
        return image_from_cluster(args.controllers)
    return asyncio.run(image_from_metastore(settings_from(args)))


def _save(image: MetadataImage, path: Path) -> None:
    try:
        path.write_bytes(encode_snapshot(image))
    except OSError as error:
        raise InvalidError(f"cannot write: {path}: {error.strerror}") from error


def _converse(shell: Shell) -> None:
    _complete_with(shell)
    print(GREETING)
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # drops the line, as other shells do
            print()
            continue
        try:
            shell.run(line)
        except HeadraceError as error:
            print(error, file=sys.stderr)


def _complete_with(shell: Shell) -> None:
    """Complete with Tab; words end only at blanks, so that paths stay complete."""

    def complete(word: str, number: int) -> str | None:
        found = shell.completions(readline.get_line_buffer()[: readline.get_begidx()], word)
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
