"""X2: secrets come from variables and files, and errors do not show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.errors import ConfigError
from headrace.config.listeners import for_listener
from headrace.config.load import load
from headrace.protocol.client.transport import client_config


@pytest.mark.requirement("X2")
def test_a_value_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "headrace.properties"
    secret.write_text("open sesame\n")
    file.write_text(
        f"metastore.url=${{env:DATABASE}}\ndelegation.token.secret.key=${{file:{secret}}}\n"
        f"listener.name.ext.ssl.key.password=${{file:{secret}}}\nbucket=s3://${{env:DATABASE}}\n"
    )
    settings = load(path=file, environ={"DATABASE": "postgresql://u:p@db/headrace"})
    assert settings.metastore_url == "postgresql://u:p@db/headrace"
    assert settings.delegation_token_secret_key == "open sesame"
    assert for_listener(settings, "EXT").ssl_key_password == "open sesame"
    assert settings.bucket == "s3://${env:DATABASE}", "a reference is the whole value"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${env:NOT_THERE}", "flags: linger.ms: no environment variable NOT_THERE"),
        ("${file:/not/there}", "flags: linger.ms: cannot read /not/there: No such file or directory"),
        ("${env:SECRET}", r"flags: linger.ms: invalid value \(not shown\) \(accepted: 1 to 60000\)"),
    ],
)
def test_errors_of_references_do_not_show_values(value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        load(environ={"SECRET": "hush"}, flags={"linger.ms": value})
    assert "hush" not in str(caught.value)


def test_tools_take_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", "open sesame")
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=admin\n"
        "sasl.password=${env:ADMIN_PASSWORD}\n"
    )
    assert client_config("h:1", file).login.password == "open sesame"
