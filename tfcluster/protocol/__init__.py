"""What the command line and an agent say to each other, without I/O."""
