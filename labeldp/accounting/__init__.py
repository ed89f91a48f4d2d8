"""What looks at labels cost. Numbers only: numpy and scipy."""
