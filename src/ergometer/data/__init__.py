"""One file per data set: synthetic shapes and real loaders."""
