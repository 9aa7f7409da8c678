"""Addresses with passwords: a wrong one is refused by naming its part, and nothing of it is in any message."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import string
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from headrace.cli.main import main
from headrace.config.addresses import HIDDEN, shown_address, without_logins
from headrace.config.broker_configs import holds_secret
from headrace.config.errors import ConfigError
from headrace.config.load import load, read_properties
from headrace.config.metastore_url import metastore_url_problem
from headrace.config.settings import Settings
from headrace.metastore.postgres.address import parsed, url_with_password
from headrace.metastore.postgres.pool import connected, open_pool
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("X2")
SECRET = "Zq7Kw9Xv2Bj"
WRONG = {
    f"postgresql://u:100%{SECRET}@db/headrace": "the password has a %",
    f"postgresql://u:{SECRET} x@db/headrace": "the password has a space",
    f"postgresql://u:{SECRET}\t@db/headrace": "the password has a space or a control character",
    f"postgresql://u:x%00{SECRET}@db/headrace": "the password has a %",
    f"postgresql://u%:{SECRET}@db/headrace": "the user has a %",
    f"postgresql://u:a@{SECRET}@db/headrace": "an @ in user, password or database",
    f"postgresql://u:a/{SECRET}@db/headrace": "a / in user or password",
    f"postgresql://u:{SECRET}/a@db/headrace": "a / in user or password",
    f"postgresql://u:7/{SECRET}?a=b@db/headrace": "parameter number 1 after the ? is none of libpq's",
    f"mysql://u:{SECRET}@db/headrace": "the scheme before :// is not postgresql",
    f"postgresql:/u:{SECRET}@db/headrace": "it does not begin with postgresql://",
    f"u:{SECRET}@db/headrace": "it does not begin with postgresql://",
    SECRET: "it does not begin with postgresql://",
    f"postgresql://u:{SECRET}@db:port/headrace": "host and port",
    f"postgresql://u:{SECRET}@db:70000/headrace": "the port is not between",
    f"postgresql://u:{SECRET}@[::1/headrace": "host and port",
    f"postgresql://u:{SECRET}": "host and port",
    f"postgresql://u:{SECRET}@db/head race": "the database has a space",
    f"postgresql://u:{SECRET}@db/headrace?sslmode": "parameter number 1",
    f"postgresql://u@db/headrace?sslmode=require&password={SECRET}=x": "parameter number 2",
    f"postgresql://u@db/headrace?passwort={SECRET}": "parameter number 1 after the ? is none of libpq's",
    f"host=db password='{SECRET}": "neither a postgresql:// address nor a list",
    f"host=db password={SECRET} {SECRET}": "neither a postgresql:// address nor a list",
}
"""Address -> the part that the message names."""
RIGHT = [
    "postgresql://headrace@db/headrace",
    "postgres://headrace:pw@db:5432/headrace?sslmode=verify-full&sslrootcert=/etc/ca.pem",
    "postgresql://u:p%40%2F%25%20@db.example.com,db2.example.com:5433/headrace?target_session_attrs=read-write",
    "postgresql:///headrace?host=/var/run/postgresql&user=agents",
    "postgresql://?host=/tmp/x&port=5433",
    "postgresql://",
    "postgresql://%2Fvar%2Frun%2Fpostgresql/headrace",
    "postgresql://u:p#?:=&w@[2001:db8::7]:5432/headrace",
    "postgresql://u:pw@db/headrace?options=-c%20search_path%3Dx",
    "host=db dbname=headrace user=u password='with space'",
    "",
]


def says_nothing_of(secret: str, told: str) -> bool:
    """No four characters of it."""
    return not any(secret[start : start + 4] in told for start in range(len(secret) - 3))


@pytest.mark.parametrize(("url", "part"), WRONG.items())
def test_the_message_names_the_part_and_how_to_write_it(url: str, part: str) -> None:
    with pytest.raises(InvalidError) as refused:
        parsed(url)
    message = str(refused.value)
    assert part in message
    assert "%40" in message
    shown = "".join(traceback.format_exception(refused.value, chain=True)[-1:]) + repr(refused.value)
    assert says_nothing_of(SECRET, shown)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None, "a traceback shows it, too"


@pytest.mark.parametrize("url", RIGHT)
def test_what_libpq_takes_as_it_was_meant_is_taken(url: str) -> None:
    assert metastore_url_problem(url) is None
    parsed(url)
    assert load(flags={"metastore.url": url}).metastore_url == url


def outcome(url: str) -> tuple[dict[str, str], str]:
    """(libpq's parameters, the refusal)."""
    try:
        return parsed(url), ""
    except InvalidError as error:
        return {}, str(error)


@pytest.mark.parametrize("seed", range(30))
def test_a_password_is_used_as_it_was_written_or_not_at_all(seed: int) -> None:
    """Also where libpq would read another host, database or password from it, and name them when it fails."""
    rng = random.Random(seed)
    for _ in range(100):
        password = "".join(rng.choices(string.ascii_letters + "%@/:?#[]& =+,;'\"\\\t" * 2, k=rng.randint(8, 20)))
        if re.search("%[0-9A-Fa-f]{2}", password):
            continue
        for url in (
            f"postgresql://user:{password}@db/headrace",
            f"postgresql://user:{password}@db:5432/headrace?ssl=1",
        ):
            found, told = outcome(url)
            assert says_nothing_of(password, told), password
            if found:
                assert (found["user"], found["password"], found["host"]) == ("user", password, "db")
        encoded = parsed(f"postgresql://user:{quote(password, safe='')}@db/headrace")
        assert encoded["password"] == password


@pytest.mark.parametrize(
    "command", [["migrate"], ["doctor"], ["storage", "info"], ["planners", "--role", "r"], ["agent"], ["compactor"]]
)
@pytest.mark.parametrize("by", ["flag", "environment", "file"])
def test_no_command_shows_it(
    command: list[str], by: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in [*WRONG][:: 1 if command == ["migrate"] else 5]:
        words = [*command, *([] if command[0] in ("migrate", "planners") else ["--bucket", tmp_path.as_uri()])]
        if by == "flag":
            words += ["--metastore-url", url]
        elif by == "environment":
            monkeypatch.setenv("HEADRACE_METASTORE_URL", url)
        else:
            (tmp_path / "p").write_text(f"metastore.url={url}\n", encoding="utf-8")
            words += ["--config", str(tmp_path / "p")]
        assert main(words) == 1
        told = "".join(capfd.readouterr())
        assert says_nothing_of(SECRET, told), (url, told)
        assert "metastore.url" in told


@pytest.mark.parametrize("url", WRONG)
async def test_no_connection_is_made_from_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = Settings(metastore_url=url, metastore_password_command="echo x")
    with pytest.raises(InvalidError, match=r"metastore\.url"):
        await open_pool(url, settings)
    with pytest.raises(InvalidError, match=r"metastore\.url"):
        url_with_password(settings)
    with pytest.raises(InvalidError, match=r"metastore\.url"), connected(url):
        pass
    assert says_nothing_of(SECRET, caplog.text)
    assert holds_secret("metastore.url", url)


@pytest.mark.parametrize(
    "flags",
    [
        {"s3.endpoint": f"https://key:{SECRET}@s3.example:9000"},
        {"s3.endpoint": f"ftp://key:{SECRET}@s3.example"},
        {"s3.endpoint": f"https://key:a/{SECRET}@s3.example"},
        {"s3.endpoint": f"https://[{SECRET}@s3"},
        {"sasl.oauthbearer.jwks.endpoint.url": f"http://user:{SECRET}@issuer/keys"},
        {"sasl.oauthbearer.jwks.endpoint.url": f"http://issuer/keys?token={SECRET}"},
        {"listener.name.a.sasl.oauthbearer.jwks.endpoint.url": f"http://user:a@{SECRET}@issuer/keys"},
        {f"postgresql://u:{SECRET}@db/headrace?sslmode": "require"},
        {"log.level": f"https://user:{SECRET}@x"},
    ],
)
def test_no_error_of_settings_shows_a_login(flags: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags=flags)
    assert says_nothing_of(SECRET, str(refused.value)), refused.value
    (name,) = flags
    assert (name if "/" not in name else "not a key=value line") in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        f"ssl.key.password: {SECRET}",
        f"metastore.url postgresql://u:{SECRET}@db/headrace",
        SECRET,
        f"postgresql://u:{SECRET}@db/headrace?sslmode=require",
        f"ssl.key.password:{SECRET}=",
        f"required password {SECRET} = x",
    ],
)
def test_a_malformed_line_is_not_repeated(line: str, tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text(line + "\n", encoding="utf-8")
    refusals: list[Callable[[], object]] = [lambda: load(path=file), lambda: read_properties(file)]
    for refusal in refusals:
        with pytest.raises(ConfigError, match=f"{file}:1") as refused:
            refusal()
        assert says_nothing_of(SECRET, str(refused.value))
    if line.startswith("metastore.url"):
        assert "metastore.url ..." in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["console", "--agent-http", f"ftp://u:{SECRET}@host:9644"],
        ["dump-log", f"s3://u:{SECRET}@bucket"],
    ],
)
def test_other_addresses_lose_their_login(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(words)
    assert says_nothing_of(SECRET, "".join(capfd.readouterr()))


def test_an_unknown_flag_is_named_without_the_login_in_its_value(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["migrate", "--metastore-urls", f"postgresql://u:{SECRET}@db/headrace"])
    told = "".join(capfd.readouterr())
    assert "--metastore-urls" in told
    assert says_nothing_of(SECRET, told)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://issuer/keys", "https://issuer/keys"),
        ("https://u:p@issuer/keys", f"https://{HIDDEN}@issuer/keys"),
        ("https://u:p@x/y@issuer/keys?token=t", f"https://{HIDDEN}@issuer/keys?{HIDDEN}"),
        ("https://u:p w\n@issuer", f"https://{HIDDEN}@issuer"),
        ("what?", "what?"),
        ("a@b", "a@b"),
    ],
)
def test_what_is_shown_of_an_address(value: str, shown: str) -> None:
    assert shown_address(value) == shown


def test_a_text_of_others_loses_the_logins_in_it() -> None:
    text = 'Could not connect to "https://key:pw@s3:9000/b/k@1" or http://u@h, mail a@b'
    expected = f'Could not connect to "https://{HIDDEN}@s3:9000/b/k@1" or http://{HIDDEN}@h, mail a@b'
    assert without_logins(text) == expected
