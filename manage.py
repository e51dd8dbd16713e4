#!/usr/bin/env python
"""Django's command line for Stillwater."""

from cloud.__main__ import main

if __name__ == "__main__":
    main()
