"""`python -m tfcluster` is the command `tfcluster`."""

from tfcluster.cli.main import main

if __name__ == "__main__":
    main()
