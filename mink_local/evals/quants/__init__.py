"""What quantizations lose: how far their next-token distributions are from those of a base file."""
