"""What a newcomer types works: the command lines of README, the START pages and every `--help`, from a wheel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.commands import make_parser
from tests.package.distribution import WHEEL, DevPlaces, Environment, build
from tests.package.instructions import Example, of_helps, of_pages, with_places, words_of
from tests.package.runtime_environment import runtime_environment

SECONDS_MAX = 600
NOT_RUN = {
    **dict.fromkeys(("headrace dev", "headrace agent", "headrace compactor", "headrace bench"), "they run on"),
    "headrace console": "it runs on; README's line is run",
    "headrace storage format": "storage that is not formatted",
    "headrace storage adopt-bucket": "a bucket that was moved",
    "headrace doctor -c": "a file of settings",
    "headrace backup -c": "a file of settings",
    "headrace migrate --restored": "a restored Postgres",
    **dict.fromkeys(("headrace planners", "psql"), "another role of the database"),
    "headrace doctor --m": "its findings are about this machine",
    "headrace audit --": "a promoted or lost metastore",
    **dict.fromkeys(("headrace damage r", "headrace damage s"), "damage in the bucket"),
    "headrace topics alter orders --": "records that move for minutes",
    "headrace cluster unregister": "an agent that is gone",
    **dict.fromkeys(("headrace link", "headrace cluster export --from"), "another cluster"),
    **dict.fromkeys(("headrace groups d", "headrace groups r"), "a group with members"),
    **dict.fromkeys(("headrace segments s", "headrace segments h", "headrace segments m"), "merged files"),
    **dict.fromkeys(("headrace cluster plan", "headrace cluster apply"), "a file that describes the passwords, too"),
    "headrace users alter": "a file with a password",
    **dict.fromkeys(("headrace transactions a", "headrace transactions describe "), "an open transaction"),
    **dict.fromkeys(("headrace export", "headrace tables"), "an extra"),
    **dict.fromkeys(("headrace dump-log --files", "headrace dump-log --cluster-metadata-decoder --f"), "files"),
    "headrace dump-log --remote": "[--audit] is a choice",
    **dict.fromkeys(
        ("headrace shell --controllers", "headrace shell --metastore-url postgresql://… --s"), "it runs on"
    ),
    "headrace shell --snapshot": "a file",
}
"""How lines begin that need more than a running cluster, and what."""
RUN_MIN = 18


@pytest.mark.parametrize("example", [*of_pages(), *of_helps()], ids=str)
def test_every_example_is_a_command_line_that_is_accepted(example: Example) -> None:
    """Commands, flags and values exist, also of what cannot run here."""
    words = words_of(example)
    make_parser(words).parse_args(words)


def test_no_example_is_left_out() -> None:
    assert len(list(of_pages())) >= 12
    assert len({example.where for example in of_helps()}) >= 20


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with the packages of requirements/runtime.lock, and nothing else."""
    place = tmp_path_factory.mktemp("wheel")
    return runtime_environment(build(WHEEL, place), place / "venv")


@pytest.fixture(scope="module")
def places(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevPlaces]:
    with environment.dev(tmp_path_factory.mktemp("dev")) as places:
        yield places


def _type(environment: Environment, line: str, places: DevPlaces, folder: Path) -> str:
    """The output of one line in a shell with README's two variables; of a server, until it is ready."""
    path = f"{environment.place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(folder), "HEADRACE_BOOTSTRAP_SERVER": places.bootstrap}
    metastore, bucket = f"'{places.metastore}'", places.bucket
    written = {"127.0.0.1:9092": places.bootstrap, "s3://logs/headrace": bucket, "s3://…": bucket}
    written |= {
        "postgresql://headrace@db/headrace": metastore,
        "postgresql://…": metastore,
        "-url …": f"-url {metastore}",
    }
    command = with_places(line, written)
    if command == "headrace console":
        return _until_ready([*command.split(), "--listen", "127.0.0.1:0"], environ, folder)
    ended = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 0, f"{line}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def _until_ready(command: list[str], environ: dict[str, str], folder: Path) -> str:
    with subprocess.Popen(
        ["bash", "-ec", f"exec {' '.join(command)}"], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS_MAX) == 0
    return line


def test_the_first_steps_of_readme_work_as_they_are_written(
    environment: Environment, places: DevPlaces, tmp_path: Path
) -> None:
    lines = [example.line for example in of_pages() if example.where == "README.md" and "hello" in example.line]
    lines += [example.line for example in of_pages() if example.where == "README.md" and "console" in example.line]
    assert len(lines) == 4
    printed = [_type(environment, line, places, tmp_path) for line in lines]
    assert printed[2] == "world\n"
    assert printed[3].startswith("ready console=http://127.0.0.1:")


def test_a_missing_extra_is_named_with_a_command_for_this_wheel(environment: Environment, tmp_path: Path) -> None:
    command = [str(environment.place / "bin" / "headrace"), "export", "--topic", "x", "--format", "parquet"]
    flags = ["--to", str(tmp_path), "--metastore-url", "postgresql://nowhere/x", "--bucket", tmp_path.as_uri()]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert ended.returncode == 1
    assert "the extra `export` has it: pip install '/" in ended.stderr
    assert ".whl[export]'" in ended.stderr


@pytest.mark.slow
def test_the_examples_of_help_work_as_they_are_written(
    environment: Environment, places: DevPlaces, tmp_path: Path
) -> None:
    """All that a running cluster is enough for; the topic is made by one of them."""
    lines = [example.line for example in of_helps() if not example.line.startswith(tuple(NOT_RUN))]
    lines = [line for line in lines if not line.startswith("headrace top ") or "--once" in line]  # else it runs on
    assert len(lines) >= RUN_MIN
    (folder := tmp_path / ".zfunc").mkdir()
    for line in lines:
        _type(environment, line, places, tmp_path)
    assert "#compdef headrace" in (folder / "_headrace").read_text()
