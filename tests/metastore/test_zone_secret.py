"""The secret is the same for every agent of a cluster, and every cluster's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import ZoneSecret, opened_with
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.agent.topics.membership_world import World
from tests.metastore.sessions import Session


async def test_one_secret_per_cluster(metastore: PostgresMetastore, metastore_url: str) -> None:
    other = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    secret = await metastore.cluster.zone_secret()
    assert len(secret) == 32
    assert await other.cluster.zone_secret() == secret
    await other.close()


async def test_another_cluster_has_another(metastore: PostgresMetastore, metastore_url: str, raw: Session) -> None:
    url = metastore_url.replace("/test_", "/secret_")
    name = url.rsplit("/", 1)[1].split("?")[0]
    await raw.execute(f"CREATE DATABASE {name}".encode())
    try:
        migrate(url)
        other = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
        assert await other.cluster.zone_secret() != await metastore.cluster.zone_secret()
        await other.close()
    finally:
        await raw.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.requirement("X2")
async def test_a_rotation_has_three_steps(metastore: PostgresMetastore) -> None:
    first = await metastore.cluster.zone_secret()
    assert first.other is None
    assert await metastore.cluster.rotate_zone_secret() == ("added", ())
    added = await metastore.cluster.zone_secret()
    assert added == first
    assert added.other is not None
    assert len(added.other) == 32
    assert await metastore.cluster.rotate_zone_secret() == ("switched", ())
    switched = await metastore.cluster.zone_secret()
    assert (switched, switched.other) == (added.other, first)
    assert await metastore.cluster.rotate_zone_secret() == ("done", ())
    done = await metastore.cluster.zone_secret()
    assert (done, done.other) == (added.other, None)


@pytest.mark.requirement("X2")
async def test_a_step_waits_for_the_restart_of_every_agent(metastore: PostgresMetastore) -> None:
    """Each agent reads the secret when it starts."""
    world = World(metastore)
    await world.agent(1)
    await world.agent(2)
    await world.agent(3, unfence=False)
    assert await metastore.cluster.rotate_zone_secret() == ("added", ())
    assert await metastore.cluster.rotate_zone_secret() == ("added", (1, 2)), "a fenced one may be gone"
    await world.restart(1)
    assert await metastore.cluster.rotate_zone_secret() == ("added", (2,))
    await world.restart(2)
    assert await metastore.cluster.rotate_zone_secret() == ("switched", ())
    assert await metastore.cluster.rotate_zone_secret() == ("switched", (1, 2))


@pytest.mark.requirement("X2")
def test_agents_understand_each_other_in_every_step() -> None:
    """At each step agents that restarted and agents that did not work side by side."""
    old, new = b"o" * 32, b"n" * 32
    generations = [
        ZoneSecret(old),
        ZoneSecret(old, new),
        ZoneSecret(new, old),
        ZoneSecret(new),
    ]
    for before, after in itertools.pairwise(generations):
        for asker, asked in ((before, after), (after, before)):
            assert opened_with(asked, _reads_only(asker)) == ("read", bytes(asker))
    with pytest.raises(InvalidError):
        opened_with(generations[0], _reads_only(generations[2]))
    with pytest.raises(InvalidError):
        opened_with(old, _reads_only(new))


def _reads_only(signed_with: bytes) -> Callable[[bytes], str]:
    def read(secret: bytes) -> str:
        if secret != signed_with:
            raise InvalidError("not from an agent of this cluster")
        return "read"

    return read


def test_the_command_says_what_comes_next(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(3):
        assert main(["storage", "rotate-zone-secret", "--metastore-url", metastore_url]) == 0
        said.append(capsys.readouterr().out.split(".")[0])
    assert said == ["zone secret: added", "zone secret: switched", "zone secret: done"]
