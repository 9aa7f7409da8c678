"""`headrace dev` on one IPv6 address: a program, so that it can run in a network namespace without IPv4.

Prints a line of JSON with what it saw. Arguments: the directory, the address to advertise, the address to bind,
the number of agents.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from headrace.cli.main import main as headrace
from load.dev_server import DevServer
from tests.kafka_clients import KafkaClients

SECONDS_MAX = 300
PARTITIONS, RECORDS = 4, 40


def main(directory: str, advertised: str, bound: str, agents: str) -> None:
    """Write and read through all agents, and use HTTP, the command line and the console."""
    settings = {
        "listeners": f"PLAINTEXT://[{bound}]:0",
        "advertised.listeners": f"PLAINTEXT://[{advertised}]:0",
        "http.host": bound,
        "broker.rack": "a",
        "linger.ms": 5,
    }
    with DevServer(Path(directory), agents=int(agents), settings=settings) as server:
        seen: dict[str, Any] = {"addresses": [agent.kafka.rpartition(":")[0] for agent in server.agents]}
        seen["records"] = round_trip(server.bootstrap)
        pages = [agent.http.replace(f"[{bound}]", f"[{advertised}]") for agent in server.agents]
        seen["ready"] = [page(f"http://{address}/readyz")[0] for address in pages]
        with contextlib.redirect_stdout(io.StringIO()) as listed:
            assert headrace(["topics", "list", "--bootstrap-server", server.bootstrap, "--json"]) == 0
        seen["tool"] = listed.getvalue()
        seen["console"] = console(server.bootstrap, advertised)
    print(json.dumps(seen))


def round_trip(bootstrap: str) -> int:
    """Return how many records were written to and read from all partitions."""
    clients = KafkaClients(bootstrap)
    clients.create("six", PARTITIONS)
    clients.produce("six", range(RECORDS), PARTITIONS)
    return len({message.value() for message in clients.read_in_group("six", RECORDS, "six")})


def page(url: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        return answer.status, answer.read().decode()


def console(bootstrap: str, host: str) -> bool:
    """Return whether the console answers; where it needs no token, whether its page of topics names the topic."""
    command = [sys.executable, "-m", "headrace.cli.main", "console", "-b", bootstrap, "--listen", f"[{host}]:0"]
    if host != "::1":  # others could reach it
        token = Path(sys.argv[1]) / "token"
        token.write_text("a-token-of-a-person\n")
        command += ["--http-bearer-token-location", str(token)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready console="), line
        url = line.rstrip().removeprefix("ready console=")
        status, text = page(f"{url}topics" if host == "::1" else f"{url}readyz")
        return status == 200 and (host != "::1" or "six" in text)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main(*sys.argv[1:])
