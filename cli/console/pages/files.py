"""Segment files by level, dead bytes, jobs of background work, and what runs now.

Place: /files; needs the metastore.
Invariant: reads only. Without the metastore's address the page says which flag is missing.
"""

from __future__ import annotations

from typing import NamedTuple

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.metastore_link import BackgroundWork
from headrace.cli.console.parts import ConsoleParts
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState


class LevelRow(NamedTuple):
    """Live files of one level."""

    level: int
    files: int
    bytes: int
    live_bytes: int

    @property
    def dead_bytes(self) -> int:
        """Bytes that are dead in files that still have live bytes, or wait for deletion."""
        return self.bytes - self.live_bytes


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/files"""

    @app.get("/files")
    def files() -> HTMLResponse:
        if console.metastore is None:
            return console.pages.render("files", work=None)
        work = console.metastore.background_work()
        levels = level_rows(work)
        return console.pages.render(
            "files",
            work=work,
            levels=levels,
            others=[row for row in work.levels if row.state is not FileState.LIVE],
            total=LevelRow(-1, *(sum(numbers) for numbers in zip(*(row[1:] for row in levels), strict=True)))
            if levels
            else LevelRow(-1, 0, 0, 0),
            running=[job for job in work.jobs if job.state is JobState.LEASED],
            waiting=[job for job in work.jobs if job.state is JobState.WAITING],
            ended=[job for job in work.jobs if job.state in (JobState.DONE, JobState.GIVEN_UP)],
            now_ms=console.clock.wall_ms(),
        )


def level_rows(work: BackgroundWork) -> list[LevelRow]:
    """Live files, by level."""
    return [
        LevelRow(row.level, row.files, row.bytes, row.live_bytes) for row in work.levels if row.state is FileState.LIVE
    ]
