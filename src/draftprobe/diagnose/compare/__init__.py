"""The exact instrument: served states against states captured from the target on the same tokens.

Which boundary is each slot, what was done to it, and which wire is cut first. ``run`` compares,
``account`` describes one dump, ``explain`` names a slot, ``rows`` follows its rows, ``findings``
judges.
"""

from draftprobe.diagnose.compare.record import Comparison, SlotReport

__all__ = ["Comparison", "SlotReport"]
