"""How each trainer and server spells a Wiring, and what it really does with what it reads."""
