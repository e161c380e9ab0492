"""What the drafter is: its files, its wiring and its arithmetic. Knows no engine and no finding."""
