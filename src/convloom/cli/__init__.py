"""The command line: one file a command, no logic that Python users would miss."""
