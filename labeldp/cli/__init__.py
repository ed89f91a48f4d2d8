"""The command line. `labeldp.cli.app` is where it begins; one file for each command."""
