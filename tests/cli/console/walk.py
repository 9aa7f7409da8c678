"""The pages of a walk through the console: every one, with data on it."""

from __future__ import annotations

from tests.cli.console.scene import BILLING, HARD, ORDERS

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": f"/topic?name={ORDERS}",
    "records": f"/records?topic={ORDERS}&partition=0&start=offset&at=12",
    "hard-values": f"/records?topic={HARD}&start=earliest",
    "record": f"/record?topic={ORDERS}&partition=0&offset=15",
    "groups": "/groups",
    "group": f"/group?name={BILLING}",
    "reset-offsets": f"/reset-offsets?group={BILLING}&topic={ORDERS}&to=shift&value=-10",
    "clients": "/clients",
    "files": "/files",
    "tables": "/tables",
    "links": "/links",
    "table": f"/table?name={ORDERS}",
    "configs": f"/configs?kind=topic&name={ORDERS}",
    "agent": "/configs?kind=agent",
    "charts": "/charts",
}
CHANGE_PAGES = {
    "new-topic": "/new-topic",
    "new-quota": "/new-quota?user=billing&client_id=loader",
    "confirm": f"/confirm/alter-topic-config?name={ORDERS}&config=retention.ms&value=86400000",
    "confirm-delete": f"/confirm/delete-topic?name={ORDERS}",
    "topic-changes": f"/topic?name={ORDERS}",
}
"""Pages of a console with --allow-changes."""
