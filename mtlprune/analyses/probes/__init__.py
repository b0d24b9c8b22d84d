"""What every head knows, without a single trained parameter, and with controls beside it."""
