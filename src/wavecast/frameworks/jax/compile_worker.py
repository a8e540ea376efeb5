"""The process that compiles a lowered step with XLA, for one GPU.

    python -m wavecast.frameworks.jax.compile_worker FOLDER

The folder has the module, the GPU's config and the options; the answer is written into it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from wavecast.frameworks.jax.releases import compile_module

MODULE, JOB, HLO, ANSWER = "module.mlirbc", "job.json", "scheduled.hlo", "answer.json"


def main(folder: Path) -> None:
    """Compile what a folder asks for."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    module = (folder / MODULE).read_bytes()
    text, sizes = compile_module(module, job["config"], job["devices"], job["options"])
    (folder / HLO).write_text(text, encoding="utf-8")
    (folder / ANSWER).write_text(json.dumps(sizes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
