"""An API is described by one module: that of its group in agent/apis."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in ("agent", "protocol")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "client" not in path.parts  # a client of APIs, which serves none
}
KEYS, VERSIONS = "protocol/api_keys.py", "protocol/api_versions.py"
BEFORE_A_PRINCIPAL_IS_KNOWN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""Without a rule, so without a row."""
ELSEWHERE = {
    ApiKey.PRODUCE: "its codec, its memory and its quota",
    ApiKey.FETCH: "its codec, its memory and its quota",
    ApiKey.SHARE_FETCH: "its quota",
    ApiKey.CREATE_TOPICS: "the quota on partition changes",
    ApiKey.DELETE_TOPICS: "the quota on partition changes",
    ApiKey.CREATE_PARTITIONS: "the quota on partition changes",
    ApiKey.FIND_COORDINATOR: "a long one is judged in slices",
    ApiKey.JOIN_GROUP: "it waits for other members",
    ApiKey.SYNC_GROUP: "it waits for other members",
}
"""APIs that other modules of an agent name, too, and why."""


def test_each_api_has_its_row_in_one_module() -> None:
    named = {path: set(re.findall(r"\bApiKey\.(\w+)", text)) for path, text in SOURCES.items()}
    for api in set(APIS) - BEFORE_A_PRINCIPAL_IS_KNOWN:
        name = ApiKey(api).name
        naming = [path for path, names in named.items() if name in names]
        with_row = [path for path in naming if f"ApiKey.{name}: ApiRow(" in SOURCES[path]]
        assert len(with_row) == 1, (name, with_row)
        assert with_row[0].startswith("agent/apis/"), name
        others = set(naming) - {VERSIONS, *with_row}
        assert bool(others) == (api in ELSEWHERE), (name, others)


def test_an_api_takes_four_files() -> None:
    """Its versions, its row, its handler and a test: the key is one of Kafka's, which are all in the list already."""
    naming = {path for path, text in SOURCES.items() if re.search(r"LIST_CONFIG_RESOURCES|ListConfigResources", text)}
    assert naming - {KEYS} == {VERSIONS, "agent/apis/topics.py", "agent/topics/configs/change_requests.py"}
