"""Tables, maps and pages: pure functions of run folders. Nothing here imports torch or an encoder."""
