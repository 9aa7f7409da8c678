"""`headrace users`, `acls`, `quotas`, `features` and `transactions` against a running cluster of two agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.cli.access_checks import check_acls, check_features, check_quotas, check_transactions, check_users
from tests.cli.command_lines import Run


def test_users(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_users(run, monkeypatch, tmp_path)


def test_acls(run: Run) -> None:
    check_acls(run)


def test_quotas(run: Run) -> None:
    check_quotas(run)


def test_features(run: Run) -> None:
    check_features(run, "metadata.format")


def test_transactions(run: Run, server: DevServer) -> None:
    check_transactions(run, server.bootstrap)
