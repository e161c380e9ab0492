"""What every test shares: one thread, here and in the processes that tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch loads, which is later
