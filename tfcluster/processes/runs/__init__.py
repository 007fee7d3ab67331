"""The processes of a run: the fork server, the driver, and the program or script that the driver supervises."""
