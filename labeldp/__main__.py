"""`python -m labeldp` is the same as `labeldp`."""

from labeldp.cli.app import main

if __name__ == "__main__":
    main()
