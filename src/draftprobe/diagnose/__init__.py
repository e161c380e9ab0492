"""What is wrong: from evidence to findings, a verdict and a mend.

Reads measurements and files, and knows no engine's process; nothing here prints.
"""
