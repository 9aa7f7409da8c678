"""What the tools refuse, against a running cluster: nothing is done silently, and nothing by halves unsaid."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import Run, produce, told, type_in

BEYOND_INT64 = "99999999999999999999"


def values(run: Run, topic: str) -> list[str]:
    return [record["value"] for record in run("records", "consume", topic)]


def test_records_are_deleted_before_an_offset_of_the_log_or_not_at_all(
    run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topics", "create", "kept", "--partitions", "2")
    for index, lines in (("0", "abcde"), ("1", "fgh")):
        produce(run, monkeypatch, "kept", *lines, options=("--partition", index))
    refused = run("records", "delete", "kept", "--before-offset", "4", "--yes", status=1)
    assert refused == "error: offset out of range, nothing was deleted: before_offset=4: kept:1 ends at 3\n"
    run("records", "delete", "kept", "--before-offset", "1000000", "--yes", status=1)
    assert sorted(values(run, "kept")) == [*"abcdefgh"], "not even of the partition that has the offset"
    rows = run("records", "delete", "kept", "--before-offset", "3", "--yes")
    assert [(row["partition"], row["earliest"], row["error"]) for row in rows] == [(0, 3, None), (1, 3, None)]
    assert values(run, "kept") == [*"de"]
    run("records", "delete", "kept", "--before-offset", "-1", "--yes")
    assert values(run, "kept") == [], "-1 is Kafka's word for everything there is"


def test_an_offset_that_the_log_does_not_hold_is_not_read_from(
    run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topics", "create", "short", "--partitions", "2")
    produce(run, monkeypatch, "short", *"abc", options=("--partition", "1"))
    for beyond in ("4", BEYOND_INT64):
        refused = run("records", "consume", "short", "--from", beyond, status=1)
        assert refused == f"error: offset out of range: {beyond} (short:0 0..0, short:1 0..3)\n"
    assert run("records", "consume", "short", "--partition", "1", "--from", "3") == [], "the end is a place, too"
    capsys.readouterr()
    assert main(["records", "consume", "short", "--from", "2", "-b", server.bootstrap]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("warning: offset 2 is out of range")) == ("c\n", 1)
    assert "short:0 0..0" in shown.err
    run("records", "delete", "short", "--partition", "1", "--before-offset", "2", "--yes")
    assert "short:1 2..3" in run("records", "consume", "short", "--partition", "1", "--from", "1", status=1)


def test_values_are_bytes(
    server: DevServer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["topics", "create", "bytes", "-b", server.bootstrap])
    lines = b"k\xff:\xfe\x00\r\n:\nx:no end"
    type_in(monkeypatch, lines)
    words = ["bytes", "-b", server.bootstrap]
    assert main(["records", "produce", *words, "--key-separator", ":", "--partition", "0"]) == 0
    capsysbinary.readouterr()
    assert main(["records", "consume", *words]) == 0
    assert capsysbinary.readouterr().out == b"\xfe\x00\r\n\nno end\n"
    assert main(["records", "consume", *words, "--format", "key", "--max", "1"]) == 0
    assert capsysbinary.readouterr().out == b"k\xff\t\xfe\x00\r\n"
    assert main(["records", "consume", *words, "--json"]) == 0
    first, *others = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert (first["key_base64"], first["value_base64"]) == ("a/8=", "/gAN")
    assert all("value_base64" not in record for record in others)


def test_a_bad_line_is_named_and_the_lines_before_it_are_produced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "lines")
    for good in (0, 3, 500, 501):
        type_in(monkeypatch, b"k:v\n" * good + b"bad\n" + b"k:behind\n" * 3)
        refused = run("records", "produce", "lines", "--key-separator", ":", status=1)
        assert f"records produced before the error: {good}\n" in refused
        assert f"error: line {good + 1}: no ':' between key and value: bad\n" in refused
    assert values(run, "lines") == ["v"] * 1004


def test_a_header_may_be_given_twice_and_needs_a_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "headers")
    produce(run, monkeypatch, "headers", "x", options=("--header", "a=1", "--header", "a=2"))
    (record,) = run("records", "consume", "headers")
    assert record["headers"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert "not a header" in run("records", "produce", "headers", "--header", "=1", status=1)
    assert "--key-separator" in run("records", "produce", "headers", "--key-separator", "", status=1)
    assert "not UTF-8" in run("records", "produce", "headers", "--header", "\udcff=1", status=1)


def test_positions_stay_inside_the_log_and_that_is_said_before_it_is_done(
    run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topics", "create", "positions", "--partitions", "2")
    for index, lines in (("0", "abc"), ("1", "abcde")):
        produce(run, monkeypatch, "positions", *lines, options=("--partition", index))
    words = ["groups", "reset-offsets", "moved", "--topic", "positions", "--json", "-b", server.bootstrap]
    capsys.readouterr()
    assert main([*words, "--to-offset", "4", "--execute"]) == 0
    shown = capsys.readouterr()
    assert [row["new_offset"] for row in json.loads(shown.out)] == [3, 4]
    assert shown.err == "warning: offset 4 is outside positions:0 (0..3): its new offset is 3\n"
    assert main([*words, "--to-datetime", "2999-01-01T00:00:00+00:00"]) == 0
    assert capsys.readouterr().err.count("has no record at or after this time: its new offset is the log end") == 2
    assert [row["current_offset"] for row in run("groups", "describe", "moved")] == [3, 4]


def test_each_of_several_is_deleted_or_said_why_not(
    run: Run, server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topics", "create", "gone")
    run("topics", "create", "gone-too")
    capsys.readouterr()
    assert main(["topics", "delete", "gone", "nope", "gone-too", "--yes", "-b", server.bootstrap]) == 1
    shown = capsys.readouterr()
    *deleted, first, second = shown.out.splitlines()
    assert deleted == ["deleted: gone", "deleted: gone-too"]
    assert [line.split(" until ")[0] for line in (first, second)] == [
        "gone can be restored",
        "gone-too can be restored",
    ]
    assert second.endswith(": headrace topics restore gone-too --metastore-url …")
    assert shown.err == "error: refused: nope: unknown_topic_or_partition: topic does not exist\n"
    words = ["groups", "delete", "nope", "--yes", "-b", server.bootstrap]
    assert main(words) == 1
    reason = "refused: nope: group_id_not_found: group does not exist"
    assert capsys.readouterr().err == f"error: {reason}\n"
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [{"group": "nope", "outcome": "failed", "error": reason}]


def test_what_is_not_there_is_not_an_empty_table(run: Run) -> None:
    run("topics", "create", "there")
    for more in ((), ("--members",)):
        assert run("groups", "describe", "nope", *more, status=1) == "error: group does not exist: nope\n"
    run("groups", "reset-offsets", "only-positions", "--topic", "there", "--to-latest", "--execute")
    assert run("groups", "describe", "only-positions", "--members") == []
    refused = run("configs", "describe", "--topic", "there", "retention.ms", "nope", status=1)
    assert refused == "error: unknown config: nope\n"


def test_duplicate_values_are_refused(run: Run) -> None:
    run("topics", "create", "set-twice")
    for command in (
        ("configs", "set", "segment.ms=1", "segment.ms=2", "--topic", "set-twice"),
        ("configs", "delete", "segment.ms", "segment.ms", "--topic", "set-twice"),
        ("topics", "create", "x", "--set", "segment.ms=1", "--set", "segment.ms=1"),
        ("topics", "alter", "set-twice", "--set", "segment.ms=1", "--delete-config", "segment.ms"),
    ):
        assert run(*command, status=1) == "error: config given twice: segment.ms\n"
    assert run("configs", "describe", "--topic", "set-twice") == []


def test_json_is_for_scripts(run: Run, plain: Run, server: DevServer) -> None:
    run("topics", "create", "scripted", "--set", "segment.ms=9")
    rows = told(lambda: run("topics", "list"), lambda rows: "scripted" in {row["topic"] for row in rows})
    (listed,) = [row for row in rows if row["topic"] == "scripted"]
    (described,) = run("topics", "describe", "scripted")
    assert listed["id"] == described["id"]
    assert len(listed["id"]) == 22, "as kafka-topics prints it"
    told(lambda: plain("topics", "list"), lambda table: [listed["id"]] in [row[2:] for row in table])
    assert described["partitions"][0]["in_sync"] == described["partitions"][0]["replicas"]
    framed = run("records", "consume", "__cluster_metadata", "--max", "1")[0]
    assert framed["timestamp"] is None, "the metadata log's records have none"
    (config,) = run("configs", "describe", "--topic", "scripted")
    assert (config["read_only"], config["sensitive"]) == (False, False)
    assert config["synonyms"][0] == {"config": "segment.ms", "value": "9", "source": "DYNAMIC_TOPIC_CONFIG"}
    assert config["synonyms"][-1]["source"] == "DEFAULT_CONFIG"


def test_a_pipe_gets_whole_lines(plain: Run, run: Run) -> None:
    run("topics", "create", "piped")
    table = plain("configs", "describe", "--topic", "piped", "--explain")
    names = [row[0] for row in table[1:]]
    assert "follower.replication.throttled.replicas" in names
    assert len(names) == len(run("configs", "describe", "--topic", "piped", "--all"))


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "unregister", "-i", "2147483648"],
        ["cluster", "unregister", "-i", "-1"],
        ["topics", "create", "x", "--replication-factor", "99999"],
        ["topics", "create", "x", "--partitions", "99999999999"],
        ["topics", "create", "x", "--partitions", "0"],
        ["topics", "alter", "x", "--partitions", "many"],
        ["topics", "alter", "x"],
        ["records", "consume", "x", "--max", "-1"],
        ["records", "consume", "x", "--partition", "-1"],
        ["records", "delete", "x", "--before-offset", "-2"],
        ["records", "delete", "x", "--before-offset", BEYOND_INT64],
        ["groups", "reset-offsets", "x", "--to-offset", BEYOND_INT64],
        ["groups", "reset-offsets", "x", "--to-offset", "-1"],
        ["groups", "list", "--state", "foo"],
        ["groups", "list", "--type", "foo"],
        ["dump-log", "--start-offset", BEYOND_INT64],
        ["dev", "--agents", "0"],
    ],
)
def test_what_no_request_can_carry_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert any(why in told for why in ("not between", "not a whole number", "not one of", "nothing to alter")), told


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process is left as it was: its mask of modes is the command's for as long as it runs."""
    (tmp_path / "file").touch()
    assert main(["dev", "--data-dir", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"error: cannot create the data directory: {tmp_path}/file: Not a directory\n"


def test_ctrl_c_ends_a_reader_without_a_word(run: Run, server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topics", "create", "watched")
    produce(run, monkeypatch, "watched", "seen")
    words = ["records", "consume", "watched", "--follow", "-b", server.bootstrap]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        # a shell's background jobs, these tests among them, pass on that the signal is ignored
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    with subprocess.Popen([sys.executable, "-m", "headrace.cli.main", *words], text=True, **options) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == "seen\n"
        reader.send_signal(signal.SIGINT)
        assert reader.communicate(timeout=300) == ("", "")
        assert reader.returncode == 130


@pytest.mark.parametrize("data", [None, b"\xff\xfe"])
@pytest.mark.parametrize("command", ["topics list", "storage info", "cluster cluster-id", "agent"])
def test_a_file_of_settings_that_cannot_be_read_is_named(
    command: str, data: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    if data is not None:
        file.write_bytes(data)
    assert main([*command.split(), "-c", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(file) in error
    assert len(error.splitlines()) == 1


def test_a_text_that_the_protocol_cannot_carry_is_refused(run: Run) -> None:
    assert run("topics", "create", "\udcff", status=1).startswith("error: cannot encode request: ")


def test_reading_stops_at_the_end_of_what_people_type(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D is no yes."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def ended(question: str) -> Any:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    run("topics", "create", "spared")
    assert "not confirmed" in run("topics", "delete", "spared", status=1)
    assert run("topics", "describe", "spared")[0]["topic"] == "spared"


def test_the_http_port_is_named(server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Not its Kafka port: the answer of a port that speaks HTTP says nothing to a user."""
    assert main(["topics", "list", "-b", server.agents[0].http]) == 1
    refused = capsys.readouterr().err
    assert refused.endswith(f"{server.agents[0].http} it is an HTTP port: use the port of a Kafka listener\n")
