"""What the target felt: recorded hidden states, and the capture that records them."""
