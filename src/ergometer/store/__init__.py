"""The database of Records, and the run directories with their samples and spans."""
