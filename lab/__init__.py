"""How the shipped fits are made and judged.

- `lab.steps`: training steps that are traced, measured and compared.
- `lab.measured`: readers of `measurements/` and of public tables (docs/sources.md).
- `lab.collect`: commands that measure on a GPU; what they write goes to `measurements/`.
- `lab.fit`: commands that fit what ships in `src/wavecast/data`.
- `lab.score`: commands that compare predictions with measurements and write the docs' tables.

`python -m lab --list` lists the commands, and `--help` after one says what it needs. All of them
predict with the reference host, even on a machine whose own host was calibrated.
"""

import os

os.environ.setdefault("WAVECAST_HOST", "reference")
# The matrices of fits are small: threads of BLAS only wait for each other, and a fit takes twice
# as long. It must be set before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
