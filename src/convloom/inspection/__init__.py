"""Looking at networks and plans: how long a step takes, and how far that is from the limit."""
