"""`python -m tfcluster` is the command `tfcluster`."""

import signal


def main() -> None:
    """Run the command line."""
    # Until the command can say that it was interrupted, and after it has ended, an interrupt ends it without words;
    # Python's own handler would print where in an import it struck.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tfcluster.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
