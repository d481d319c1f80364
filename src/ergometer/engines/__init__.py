"""One file or folder per framework; each exports ENGINE and imports its framework only when used."""
