"""Static findings: what files alone can tell of a drafter, one module per theme.

No check imports torch, and none reads more of the weights than d2t and t2d, except ``numbers``.
"""
