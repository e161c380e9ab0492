"""A small trainer: makes the demo's and the tests' drafters, and shows whether a wiring can learn.

Trains with EAGLE-3's training-time test on recorded states; knows no server and no finding.
"""
