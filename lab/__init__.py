"""How good and how fast we are: one command each, run on demand.

Steps are issued by the reference host, whatever host of its user this machine knows.
"""

import os

os.environ.setdefault("WAVECAST_HOST", "reference")
