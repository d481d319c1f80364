"""Records -> what a person or a machine reads; never measures."""
