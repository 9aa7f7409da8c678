"""`headrace shell`: browse the cluster's metadata, interactively or with one command.

Place: opens a source, builds the tree (tree.py), reads lines. The commands are cat, cd, exit, find, help, history,
ls, man, pwd.
Invariant of commands: a command changes only the working directory and the history; a failure is an InvalidError
with the path.
Invariant: reads only. The image belongs to one offset of the log and does not change while the user browses it. An
error in one line ends that line, not the shell; if a one-shot command fails, the exit status is 1.
Source: KIP-631, kafka-shell.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import posixpath
import readline
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v0.request import FetchSnapshotRequest, PartitionSnapshot, SnapshotId, TopicSnapshot
from kio.schema.fetch_snapshot.v0.response import FetchSnapshotResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets, partitions_of
from headrace.cli.client.records import fetch
from headrace.cli.options import INT32_MAX, add_settings, settings_from, whole
from headrace.cli.output import write, write_error
from headrace.cli.shell.tree import Directory, Node, find, tree, walk
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, NEWEST_SNAPSHOT
from headrace.metastore.log.replay import ImageBuilder, apply
from headrace.metastore.log.snapshot import FILE_UNPACKED_MIB, encode_snapshot, load_image, load_snapshot
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import ClientConfig, ask, client_config
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.reader import walk_batches

GREETING = "Welcome to the Headrace metadata shell."
MANUAL = {
    "cat": ("cat FILE...", "Show the contents of metadata nodes."),
    "cd": ("cd [DIRECTORY]", "Set the current working directory."),
    "exit": ("exit", "Exit the metadata shell."),
    "find": ("find [PATH...]", "Search for nodes in the directory hierarchy."),
    "help": ("help [COMMAND]", "Display this help message, or that of a command."),
    "history": ("history [COUNT]", "Print command history."),
    "ls": ("ls [PATH...]", "List metadata nodes."),
    "man": ("man COMMAND", "Show the help text for a specific command."),
    "pwd": ("pwd", "Print the current working directory."),
}


class LeaveShell(Exception):
    """Raised by `exit`."""


class Shell:
    """One user's working directory and history. `run` prints through `say`."""

    def __init__(self, root: Directory, say: Callable[[str], None]) -> None:
        self.root = root
        self.directory = "/"
        self.history: list[str] = []
        self._say = say
        self._commands: dict[str, Callable[[Sequence[str]], None]] = {
            "cat": self._cat,
            "cd": self._cd,
            "exit": self._exit,
            "find": self._find,
            "help": self._help,
            "history": self._history,
            "ls": self._ls,
            "man": self._man,
            "pwd": self._pwd,
        }

    def run(self, line: str) -> None:
        """Run one line; InvalidError says what is wrong with it, LeaveShell ends the shell."""
        if line.strip():
            self.history.append(line.strip())
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise InvalidError(f"cannot parse the line: {error}") from error
        self.run_words(words)

    def run_words(self, words: Sequence[str]) -> None:
        """Run a command as `run` does, with the line already split."""
        if not words:
            return
        command = self._commands.get(words[0])
        if command is None:
            raise InvalidError(f"no such command: {words[0]} (`help` lists them)")
        command(words[1:])

    def completions(self, before: str, word: str) -> list[str]:
        """The possible completions of `word` on a line that starts with `before`."""
        if not before.strip():
            return [f"{name} " for name in self._commands if name.startswith(word)]
        if before.split()[0] == "man":
            return [name for name in self._commands if name.startswith(word)]
        head, slash, start = word.rpartition("/")
        node = find(self.root, self._absolute(head + slash))
        if not isinstance(node, Directory):
            return []
        return [
            f"{head}{slash}{name}{'/' if isinstance(child, Directory) else ' '}"
            for name, child in node.children.items()
            if name.startswith(start) and name.isprintable()  # readline writes them as they are
        ]

    def _cat(self, words: Sequence[str]) -> None:
        if not words:
            raise InvalidError("cat: a file name is required")
        for path, node in self._matches(words):
            if isinstance(node, Directory):
                raise InvalidError(f"cat: is a directory: {path}")
            self._say(node)

    def _cd(self, words: Sequence[str]) -> None:
        if len(words) > 1:
            raise InvalidError("cd: at most one directory")
        path, node = next(self._matches(words or ["/"]))
        if not isinstance(node, Directory):
            raise InvalidError(f"cd: not a directory: {path}")
        self.directory = path

    def _exit(self, words: Sequence[str]) -> None:
        raise LeaveShell

    def _find(self, words: Sequence[str]) -> None:
        for path, node in self._matches(words or ["."]):
            for below in walk(path, node):
                self._say(below)

    def _help(self, words: Sequence[str]) -> None:
        if words:
            self._man(words)
            return
        lines = [GREETING, "", f"usage:  {{{','.join(MANUAL)}}} ...", "", "commands:"]
        self._say("\n".join(lines + [f"  {name:<10} {meaning}" for name, (_, meaning) in MANUAL.items()]))

    def _history(self, words: Sequence[str]) -> None:
        if len(words) > 1 or not all(word.isdecimal() for word in words):
            raise InvalidError("history: at most one number")
        numbered = list(enumerate(self.history, 1))
        for number, line in numbered[-int(words[0]) :] if words and int(words[0]) else numbered:
            self._say(f"{number:5d}  {line}")

    def _ls(self, words: Sequence[str]) -> None:
        found = list(self._matches(words or ["."]))
        for path, node in found:
            if not isinstance(node, Directory):
                self._say(path)
                continue
            if len(found) > 1:
                self._say(f"{path}:")
            for name in node.children:
                self._say(name)

    def _man(self, words: Sequence[str]) -> None:
        if len(words) != 1 or words[0] not in MANUAL:
            raise InvalidError(f"exactly one command is required: {', '.join(MANUAL)}")
        usage, meaning = MANUAL[words[0]]
        self._say(f"usage: {usage}\n\n{meaning}")

    def _pwd(self, words: Sequence[str]) -> None:
        self._say(self.directory)

    def _absolute(self, path: str) -> str:
        joined = posixpath.normpath(posixpath.join(self.directory, path))
        return "/" + joined.lstrip("/")

    def _matches(self, patterns: Iterable[str]) -> Iterator[tuple[str, Node]]:
        """(path, node) of everything that the patterns match; NotFoundError for a pattern without a match."""
        for pattern in patterns:
            path = self._absolute(pattern)
            exact = find(self.root, path)
            found = [(path, exact)] if exact is not None else list(_glob("", self.root, path.strip("/").split("/")))
            if not found:
                raise NotFoundError(f"no such node: {path}")
            yield from found


def _glob(path: str, node: Node, names: Sequence[str]) -> Iterator[tuple[str, Node]]:
    """The nodes below `node` with matching names, one pattern for each level."""
    if not names:
        yield path or "/", node
    elif isinstance(node, Directory):
        for name, child in node.children.items():
            if fnmatch.fnmatchcase(name, names[0]):
                yield from _glob(f"{path}/{name}", child, names[1:])


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
        write(f"snapshot saved: end_offset={image.offset} file={args.save_snapshot}")
        return 0
    shell = Shell(tree(image), write)
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
    write(GREETING)
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            write()
            return
        except KeyboardInterrupt:  # drops the line, as other shells do
            write()
            continue
        try:
            shell.run(line)
        except HeadraceError as error:
            write_error(error)


def _complete_with(shell: Shell) -> None:
    """Complete with Tab; words end only at blanks, so that paths stay complete."""

    def complete(word: str, number: int) -> str | None:
        found = shell.completions(readline.get_line_buffer()[: readline.get_begidx()], word)
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


async def image_from_metastore(settings: Settings) -> MetadataImage:
    """The image at the end of the log. Errors as PostgresMetastore.open."""
    if not settings.metastore_url:
        raise ConfigError("set --snapshot, --controllers or --metastore-url")
    from headrace.metastore.postgres.store import PostgresMetastore  # here: the other sources need no Postgres

    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        return await load_image(metastore.cluster)
    finally:
        await metastore.close()


def image_from_cluster(controllers: str) -> MetadataImage:
    """The image at the current end of the log: the newest snapshot, if the start of the log was truncated, and the
    rest of `__cluster_metadata`. UnavailableError if no server answers, other errors as `require`.
    """
    config = client_config(controllers, None)
    partition = (METADATA_TOPIC, 0)
    with KafkaCluster.of(config) as cluster:
        leader = partitions_of(cluster, [METADATA_TOPIC])[partition]
        start, end = (list_offsets(cluster, {partition: at})[partition] for at in (EARLIEST, LATEST))
        image = _newest_snapshot(config) if start > 0 else MetadataImage()
        while image.offset < end:
            answered = fetch(cluster, leader, METADATA_TOPIC, {0: image.offset})
            records = [record.value or b"" for _, found, _ in answered for record in found]
            if not records:
                raise UnavailableError(f"the log ended early: offset={image.offset} end={end}")
            image = apply(image, records)
    return image


def _newest_snapshot(config: ClientConfig) -> MetadataImage:
    """The image of the newest snapshot, fetched in pieces."""
    data, end_offset, size = b"", NEWEST_SNAPSHOT, 1
    while len(data) < size:
        wanted = PartitionSnapshot(
            partition=i32(0),
            current_leader_epoch=i32(-1),
            snapshot_id=SnapshotId(end_offset=i64(end_offset), epoch=i32(0)),
            position=i64(len(data)),
        )
        topic = TopicSnapshot(name=TopicName(METADATA_TOPIC), partitions=(wanted,))
        answer = ask(config, FetchSnapshotRequest(topics=(topic,)), FetchSnapshotResponse)
        found = answer.topics[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            raise UnavailableError(f"cannot fetch metadata snapshot: {found.error_code.name}")
        end_offset, size = found.snapshot_id.end_offset, found.size
        data += found.unaligned_records
    builder = ImageBuilder(MetadataImage())
    for position, header in walk_batches(data):
        batch = memoryview(data)[position : position + header.size]
        builder.add(record.value or b"" for record in decode_records(batch))
    builder.offset = end_offset
    return builder.finish()


def image_from_file(path: Path, max_mib: int) -> MetadataImage:
    """The image in a snapshot file. InvalidError if it cannot be read or unpacks to more than `max_mib` MiB,
    CorruptError if it is corrupt.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidError(f"cannot read: {path}: {error.strerror}") from error
    return load_snapshot(data, max_mib * 1024 * 1024)
