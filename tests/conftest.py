"""What every test shares: one thread, here and in the processes that tests start; the order."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch loads, which is later

LONG = ("test_demo", "test_real_drafters", "test_real_verdicts", "test_readme")
"""Files that take minutes: they start first, or one worker would end with them alone."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG)
