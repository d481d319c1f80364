"""The parent and the measured worker: one Spec -> one Record."""
