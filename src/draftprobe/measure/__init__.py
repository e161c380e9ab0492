"""How well a drafter drafts: replay on recorded states, acceptance, and real decoding."""
