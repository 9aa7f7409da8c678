"""The shell's commands on a tree: cat, cd, exit, find, help, history, ls, man, pwd.

Place: between the command line (interactive or one-shot) and the tree.
Invariant: a command changes only the working directory and the history; a failure is an InvalidError with the path.
Source: KIP-631, kafka-shell.sh.
"""

from __future__ import annotations

import fnmatch
import posixpath
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.cli.shell.tree import Directory, Node, find, walk
from headrace.storage.errors import InvalidError, NotFoundError

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
