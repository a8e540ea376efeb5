"""How much the server takes on: sizes, numbers, seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """The bounds of one server. What is beyond them is refused with a reason."""

    upload_bytes: int = 64 << 20
    """The largest file that can be uploaded, as it is sent."""
    body_bytes: int = 32 << 10
    """The largest other request."""
    connections: int = 512
    """Connections at the same time, idle ones included. Others are told to come again (503)."""
    queue: int = 128
    """Questions that wait for a worker. Others are told to come again (503)."""
    visitor_queue: int = 64
    """Questions of one address that wait or run, so that it leaves room for others."""
    workers: int = max(1, min(4, os.cpu_count() or 1))
    """Worker processes."""
    job_s: float = 120.0
    """The longest that a worker works on one question. It is ended then."""
    job_bytes: int = 3 << 30
    """The most memory that a worker may allocate."""
    jobs: int = 500
    """Questions after which a worker is replaced by a new one."""
    receive_s: float = 60.0
    """The longest that a request takes to arrive."""
    answer_s: float = 300.0
    """The longest that a question waits for its answer, the work of a worker included."""
    uploads_bytes: int = 1 << 30
    """All uploaded files together. The longest unused ones are forgotten."""
    traces_bytes: int = 256 << 20
    """All traces of suite models together, on disk."""
    results_bytes: int = 512 << 20
    """All results together. The longest unused ones are forgotten, saved ones last."""
    cached_bytes: int = 64 << 20
    """The results that are kept in memory."""
