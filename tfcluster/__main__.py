"""The entry point: `python -m tfcluster` runs the command `tfcluster`."""

import signal


def main() -> None:
    """Run the command line."""
    # Before the command can report an interrupt, and after it has finished, SIGINT ends the process without a message.
    # Python's own handler would print a traceback from the middle of an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tfcluster.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
