"""One file per source of numbers; __main__ is the sampler process."""
