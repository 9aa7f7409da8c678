"""The pictures of docs/operate/console/: `make console-pictures`.

Three agents in two zones, producers, a group that falls behind for some minutes, and two tables, one of them
paused; then the pages in Chromium.
Colours are reduced to PALETTE, so that a picture has less than BYTES_MAX.
"""

from __future__ import annotations

import io
import itertools
import random
import sys
import tempfile
import threading
from pathlib import Path

import confluent_kafka
from PIL import Image

from headrace.cli.console.server import ConsoleOptions, ConsoleServer
from headrace.config.settings import Settings
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import SystemClock
from load.dev_server import DevServer
from tests.agent_process import AgentUnderTest
from tests.cli.console.chromium import chromium, open_page
from tests.cli.console.scene import BILLING, ORDERS, PAYMENTS, Member, catalog_settings, fill, order, with_tables
from tests.cli.console.walk import PAGES
from tests.tools import find_chromium

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "operate" / "console"
WIDE = (
    "overview",
    "topics",
    "records",
    "hard-values",
    "group",
    "reset-offsets",
    "files",
    "tables",
    "table",
    "configs",
    "charts",
)
NARROW = ("topic", "records")
PALETTE, BYTES_MAX = 96, 150 * 1024
LOAD_SECONDS = 280.0
ORDERS_PER_SECOND = 400


def main() -> int:
    """Write every picture; 1 if Chromium is missing."""
    if find_chromium() is None:
        print("needs Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tables"
        place.mkdir()
        settings = {"broker.rack": "eu-1a", "linger.ms": 100, **catalog_settings(place)}
        settings["tables.commit.interval.ms"] = 10_000
        with DevServer(Path(folder) / "data", agents=2, settings=settings) as server:
            third = {"metastore.url": server.metastore_url, "bucket": server.bucket, "broker.rack": "eu-1b"}
            with AgentUnderTest(third) as agent:
                fill(server.bootstrap)
                urls = [f"http://{each.http}" for each in server.agents] + [f"http://{agent.http}"]
                _take(server, tuple(urls), with_tables(server, place, "the lake is being moved"))
    return 0


def _take(server: DevServer, urls: tuple[str, ...], settings: Settings) -> None:
    options = ConsoleOptions(client_config(server.bootstrap, None), settings, ("127.0.0.1", 0), urls)
    console, stopping = ConsoleServer(options, SystemClock()), threading.Event()
    console.start()
    loads = [threading.Thread(target=load, args=(server.bootstrap, stopping)) for load in (_produce, _consume)]
    for each in loads:
        each.start()
    with Member(server.bootstrap, BILLING, [ORDERS, PAYMENTS], "billing-1"):
        stopping.wait(LOAD_SECONDS)
        _photograph(console.url.rstrip("/"))
    stopping.set()
    for each in loads:
        each.join()
    console.stop()


def _photograph(url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        wide, narrow = open_page(browser, 1280, "light"), open_page(browser, 360, "dark")
        for page, names, suffix in ((wide, WIDE, ""), (narrow, NARROW, "-narrow")):
            for name in names:
                page.goto(url + PAGES[name])
                picture = _smaller(page.screenshot())
                (FOLDER / f"{name}{suffix}.png").write_bytes(picture)
                print(f"{name}{suffix}.png {len(picture):,} bytes")
                assert len(picture) <= BYTES_MAX
            page.context.close()


def _smaller(picture: bytes) -> bytes:
    out = io.BytesIO()
    reduced = Image.open(io.BytesIO(picture)).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    reduced.save(out, "PNG", optimize=True)
    return out.getvalue()


def _produce(bootstrap: str, stopping: threading.Event) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    rng, pause = random.Random(7), 0.1
    for number in itertools.count():
        for step in range(rng.randrange(int(ORDERS_PER_SECOND * pause * 2))):
            producer.produce(ORDERS, order(number * 31 + step), f"customer-{step % 17}")
            if step % 3 == 0:
                producer.produce(PAYMENTS, f"paid {number}", f"order-{number}-{step}")
        producer.poll(0)
        if stopping.wait(pause):
            break
    producer.flush(300)


def _consume(bootstrap: str, stopping: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "dashboards", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "auto.commit.interval.ms": 1000})
    consumer.subscribe([ORDERS])
    while not stopping.is_set():
        consumer.consume(500, 0.5)
    consumer.close()


if __name__ == "__main__":
    sys.exit(main())
