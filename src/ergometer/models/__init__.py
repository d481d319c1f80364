"""One file per network (or family); each exports MODEL and imports its framework only when built."""
