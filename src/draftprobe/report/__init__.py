"""A Verdict for people: terminal text. Computes nothing, so that a report can be made again."""
